import json
import os
import re
import shutil
import signal
import warnings

import pytest
import torch
import yaml
from safetensors import SafetensorError
from safetensors.torch import load_file

from families import SMALLEST_LLAMA
from setblock.errors import SetBlockError
from setblock.files import only_writer
from setblock.training.trainer.trainer import SBDTrainer
from training.processes import in_processes

from .conftest import run_app

STEPS = 6  # 12 documents, 2 batches of 2 a step: 3 steps an epoch


def _write_recipe(folder):
    content = {
        "model": {
            "config": SMALLEST_LLAMA,
            "vocab_size": 300,
        },
        "data": {
            "source": "word-problems",
            "documents": 12,
            "evaluation": {"split": "validation", "documents": 2},
        },
        "training": {
            "output_dir": str(folder / "model"),
            "logit_shift": True,
            "num_train_epochs": 2,
            "per_device_train_batch_size": 2,
            "gradient_accumulation_steps": 2,
            "learning_rate": 1e-2,
            "use_cpu": True,
            "save_steps": 2,
            "save_total_limit": 2,
            "report_to": "none",
        },
    }
    path = folder / "recipe.yaml"
    path.write_text(yaml.safe_dump(content))
    return path


@pytest.fixture
def recipe(tmp_path):
    """A recipe of two epochs in float32; its output folder is `tmp_path / "model"`."""
    return _write_recipe(tmp_path)


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    """A run of the recipe that nothing stopped. Read only."""
    folder = tmp_path_factory.mktemp("whole")
    outcome = run_app("train", _write_recipe(folder))
    assert outcome.code == 0
    assert f"saved to {folder / 'model'} after 0 min " in outcome.stdout
    return folder / "model"


def _assert_same_weights(ours, theirs):
    found, expected = (load_file(folder / "model.safetensors") for folder in (ours, theirs))
    assert found.keys() == expected.keys()
    for name, weights in expected.items():
        assert torch.equal(weights, found[name]), name


def _interrupt_at(step, monkeypatch):
    training_step = SBDTrainer.training_step

    def interrupted(self, *args, **kwargs):
        if self.state.global_step == step:
            raise KeyboardInterrupt
        return training_step(self, *args, **kwargs)

    monkeypatch.setattr(SBDTrainer, "training_step", interrupted)


def _killed_at(step, run, recipe):
    """A process that is killed in the middle of a step, as the kernel does where memory is short; its id."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # of forks beside threads, from Python 3.12 on
        child = os.fork()
    if child:
        return child
    try:
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(SBDTrainer, "training_step", _killing(SBDTrainer.training_step, step))
            run("train", recipe)
    finally:
        os._exit(1)  # never back into the tests of the parent


def _killing(training_step, step):
    def killed(self, *args, **kwargs):
        if self.state.global_step == step:
            os.kill(os.getpid(), signal.SIGKILL)
        return training_step(self, *args, **kwargs)

    return killed


def test_an_interrupted_run_ends_in_the_weights_of_one_that_was_not(run, recipe, whole, tmp_path, monkeypatch):
    broken = tmp_path / "model"

    # 1. Ctrl-C after the fifth step: the last checkpoint is that of the fourth
    with monkeypatch.context() as patch:
        _interrupt_at(5, patch)
        outcome = run("train", recipe)
    assert outcome.code == 130
    assert outcome.message == "setblock: interrupted; run the same command again to resume from step 4"
    assert not (broken / "config.json").exists()
    assert not list(broken.glob(".saving-*"))

    # 2. And the process was killed in the middle of writing others
    shutil.copytree(
        broken / "checkpoint-4", broken / "checkpoint-5", ignore=shutil.ignore_patterns("trainer_state.json")
    )
    shutil.copytree(broken / "checkpoint-4", broken / "checkpoint-6")
    (broken / "checkpoint-6" / "trainer_state.json").write_text('{"global_step": ')

    # 3. And once more, while it learned
    child = _killed_at(5, run, recipe)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == -signal.SIGKILL

    # 4. The same command goes on
    outcome = run("train", recipe)
    assert outcome.code == 0
    assert outcome.stderr.splitlines() == [
        f"setblock: warning: {broken / 'checkpoint-6'} is not complete: training starts at step 4",
        "setblock: going on from step 4",
    ]
    _assert_same_weights(broken, whole)
    assert json.loads((broken / "config.json").read_text())["setblock"]["logit_shift"] is True

    # 5. And once more says that there is nothing left to do
    before = (broken / "model.safetensors").stat().st_mtime_ns
    outcome = run("train", recipe)
    assert outcome.code == 0
    assert f"{broken} is already trained" in outcome.stdout
    assert (broken / "model.safetensors").stat().st_mtime_ns == before

    # 6. But not where the recipe has changed since
    outcome = run("train", recipe, "--set", "training.learning_rate=0.5")
    assert outcome.code == 1
    assert "holds a run with training.learning_rate 0.01, not 0.5: delete it" in outcome.message


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_a_signal_saves_what_is_trained(run, recipe, whole, tmp_path, monkeypatch, number, code):
    """In the third step, whose result the next save would not have kept. The same command goes on to the same weights."""
    training_step = SBDTrainer.training_step

    def signalled(self, *args, **kwargs):
        if self.state.global_step == 2 and not signals:
            signals.append(number)
            os.kill(os.getpid(), number)
        return training_step(self, *args, **kwargs)

    signals = []
    with monkeypatch.context() as patch:
        patch.setattr(SBDTrainer, "training_step", signalled)
        outcome = run("train", recipe)
    assert outcome.code == code
    assert outcome.stderr.splitlines() == [
        "setblock: stopping after this step; interrupt again to stop at once",
        "setblock: stopped and saved; run the same command again to resume from step 3",
    ]
    assert not (tmp_path / "model" / "config.json").exists()
    assert [signal.getsignal(each) for each in (signal.SIGINT, signal.SIGTERM)] == [
        signal.default_int_handler,
        signal.SIG_DFL,
    ]
    assert run("train", recipe).message == "setblock: going on from step 3"
    _assert_same_weights(tmp_path / "model", whole)


def test_one_of_two_processes_has_a_signal(run, recipe, tmp_path):
    """Both stop after the same step, one of them saves, and the same command goes on to what a run without a stop gets."""
    in_processes(2, lambda: run("train", recipe, "--output", tmp_path / "whole"), tmp_path)
    training_step = SBDTrainer.training_step
    signals = []

    def signalled(self, *args, **kwargs):
        if self.args.process_index == 1 and self.state.global_step == 1 and not signals:
            signals.append(signal.SIGTERM)
            os.kill(os.getpid(), signal.SIGTERM)
        return training_step(self, *args, **kwargs)

    def stopped():
        SBDTrainer.training_step = signalled
        outcome = run("train", recipe)
        print(outcome.code, outcome.stderr)

    told = "setblock: stopped and saved; run the same command again to resume from step 2"
    assert [text.split(maxsplit=1) for text in in_processes(2, stopped, tmp_path)] == [["143", f"{told}\n\n"], ["143"]]
    assert not (tmp_path / "model" / "config.json").exists()
    in_processes(2, lambda: run("train", recipe), tmp_path)
    _assert_same_weights(tmp_path / "model", tmp_path / "whole")


def test_a_second_interruption_stops_at_once(run, recipe, tmp_path, monkeypatch):
    training_step = SBDTrainer.training_step

    def signalled(self, *args, **kwargs):
        if self.state.global_step == 3:
            os.kill(os.getpid(), signal.SIGINT)
        return training_step(self, *args, **kwargs)

    monkeypatch.setattr(SBDTrainer, "training_step", signalled)  # called twice a step
    outcome = run("train", recipe)
    assert outcome.code == 130
    assert outcome.stderr.splitlines()[1:] == [
        "setblock: interrupted; run the same command again to resume from step 2"
    ]


def test_held_out_data_is_evaluated_at_the_end_and_the_first_step_is_logged(run, recipe, tmp_path):
    recipe.write_text(recipe.read_text().replace("  evaluation:\n    split: validation\n    documents: 2\n", ""))
    recipe.write_text(recipe.read_text().replace("  evaluation:\n    documents: 2\n    split: validation\n", ""))
    outcome = run("train", recipe, "--set", "data.evaluation_fraction=0.2")
    assert outcome.code == 0, outcome.stderr
    lines = outcome.stdout.splitlines()
    assert lines[0].startswith("step 0/6: held out: loss ")
    assert lines[1].startswith("step 1/")
    evaluated, measured, both = lines[-5:-2]
    assert "step 6/6: held out: ntp " in evaluated
    assert "step 6/6: held out: loss " in measured
    assert re.fullmatch(
        r"held-out: loss \d\.\d{3} -> \d\.\d{3} nats a token, \d+\.\d% -> \d+\.\d% of tokens as in the reference "
        r"\(\d+ tokens of \d+ documents\)",
        both,
    )
    folder = tmp_path / "model"
    assert f"saved to {folder} after 0 min " in lines[-2]
    assert lines[-1] == f"next: setblock generate --model {folder} 'Your prompt'"
    card = (folder / "README.md").read_text()
    assert "| eval_ntp_loss | " in card
    assert both.removeprefix("held-out: ") in card


def test_a_run_says_why_there_are_no_held_out_figures(run, recipe):
    content = yaml.safe_load(recipe.read_text())
    del content["data"]["evaluation"]
    recipe.write_text(yaml.safe_dump(content))
    outcome = run("train", recipe, "--set", "training.max_steps=1")
    missing = (
        "held-out: not measured, since the recipe holds no documents out (data.evaluation or data.evaluation_fraction)"
    )
    assert missing in outcome.stdout.splitlines()


def test_a_full_disk_leaves_the_checkpoint_before(run, recipe, tmp_path, monkeypatch):
    folder = tmp_path / "model"
    save_checkpoint = SBDTrainer._save_optimizer_and_scheduler
    for error in (  # of Python and of safetensors
        OSError(28, "No space left on device"),
        SafetensorError("Error while serializing: I/O error: No space left on device"),
    ):

        def full(self, output_dir, error=error):
            if self.state.global_step == 4:
                raise error
            save_checkpoint(self, output_dir)

        with monkeypatch.context() as patch:
            patch.setattr(SBDTrainer, "_save_optimizer_and_scheduler", full)
            outcome = run("train", recipe)
        assert outcome.code == 1
        assert outcome.stderr.splitlines()[-1] == (
            f"setblock: error: no space left to write to {folder}: free some space and run the same command again to resume "
            "from step 2"
        )
        assert [path.name for path in folder.glob("checkpoint-*")] == ["checkpoint-2"]
    outcome = run("train", recipe)
    assert (outcome.code, outcome.message) == (0, "setblock: going on from step 2")


def test_a_second_run_in_one_folder_is_refused_at_once(run, recipe, tmp_path, monkeypatch):
    """While the first one trains; afterwards the folder has no file of the lock, which an upload would take along."""
    folder, said = tmp_path / "model", []
    training_step = SBDTrainer.training_step

    def with_another(self, *args, **kwargs):
        if not said:
            with pytest.raises(SetBlockError) as refused, only_writer(folder):
                pass
            said.append(str(refused.value))
        return training_step(self, *args, **kwargs)

    monkeypatch.setattr(SBDTrainer, "training_step", with_another)
    assert run("train", recipe).code == 0
    assert said == [f"another process is writing to {folder}: wait for it, or name another file"]
    assert not [path.name for path in folder.iterdir() if path.name.startswith(".")]

    other = tmp_path / "other"
    other.mkdir()
    with only_writer(other):
        outcome = run("train", recipe, "--output", other)
    said = f"another process is writing to {other}: wait for it, or give another training.output_dir"
    assert (outcome.code, outcome.message) == (1, f"setblock: error: {said}")
    assert [path.name for path in other.iterdir()] == [".lock"]


@pytest.mark.parametrize("name", ["optimizer.pt", "rng_state.pth", "model.safetensors"])
def test_a_checkpoint_that_was_cut_off_is_passed_over(run, recipe, whole, tmp_path, monkeypatch, name):
    folder = tmp_path / "model"
    with monkeypatch.context() as patch:
        _interrupt_at(5, patch)
        assert run("train", recipe).code == 130
    assert {path.name for path in folder.glob("checkpoint-*")} == {"checkpoint-2", "checkpoint-4"}
    path = folder / "checkpoint-4" / name
    path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])
    outcome = run("train", recipe)
    assert outcome.code == 0
    assert outcome.stderr.splitlines() == [
        f"setblock: warning: {folder / 'checkpoint-4'} is not complete: training starts at step 2",
        "setblock: going on from step 2",
    ]
    _assert_same_weights(folder, whole)


def test_a_run_says_how_it_goes(run, recipe, whole, tmp_path):
    """Losses and speed in lines and in the metrics; decoding now and then; a card. None of it changes what is learned."""
    recipe.write_text(
        recipe.read_text()
        + "evaluate_decoding: {task: word-problems, limit: 2, every: 4, gammas: [0.1, inf], max_new_tokens: 12}\n"
    )
    folder = tmp_path / "model"
    outcome = run("train", recipe, "--set", "training.logging_steps=2")
    assert outcome.code == 0
    lines = outcome.stdout.splitlines()
    assert any(line.startswith("step 2/6: loss ") and "tokens/s" in line for line in lines)
    assert sum("held out: " in line and "NFE speed-up" in line for line in lines) == 3  # at steps 0, 4 and 6
    entries = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    decoded = [entry for entry in entries if "eval_accuracy_ntp" in entry]
    assert [entry["step"] for entry in decoded] == [0, 4, 6]
    assert all(entry["eval_nfe_speedup_inf"] > entry["eval_nfe_speedup_0.1"] / 2 > 0 for entry in decoded)
    assert all(entry["eval_nfe_speedup_exact"] > 0 for entry in decoded)
    assert all(entry["eval_accuracy_exact"] == entry["eval_accuracy_ntp"] for entry in decoded)
    card = (folder / "README.md").read_text()
    assert "library_name: transformers" in card
    assert f"| eval_nfe_speedup_inf | {decoded[-1]['eval_nfe_speedup_inf']:.4g} |" in card
    assert "hidden_size: 16" in card
    assert str(tmp_path) not in card

    # The section is no part of what is trained, and a run without it learns the same
    _assert_same_weights(folder, whole)


@pytest.mark.parametrize("reporter", ["dvclive", "chess"])
def test_a_reporter_that_is_not_installed(run, recipe, tmp_path, reporter):
    folder = tmp_path / "model"
    outcome = run("train", recipe, "--output", folder, "--set", f"training.report_to={reporter}")
    assert outcome.code == 1
    assert outcome.message.startswith(
        f"setblock: error: training.report_to {reporter}: its package is not installed; use none"
    )
    assert not folder.exists()


@pytest.mark.parametrize(
    ("section", "said"),
    [
        ("task=chess", "there is no task 'chess'; there are instructions, "),
        ("every=0", "evaluate_decoding.every must be "),
        ("gammas=[-1]", "gamma must be"),
    ],
)
def test_decoding_that_can_not_be_evaluated(run, recipe, section, said):
    outcome = run("train", recipe, "--set", f"evaluate_decoding.{section}")
    assert outcome.code in (1, 2)
    assert said in outcome.message


@pytest.mark.parametrize("steps", [STEPS, STEPS - 2], ids=["at the end of an epoch", "in the middle of one"])
def test_a_run_killed_while_it_saved_the_model_saves_it_again(run, recipe, whole, tmp_path, steps):
    if steps == STEPS:
        shutil.copytree(whole, tmp_path / "model")
    else:
        recipe.write_text(recipe.read_text() + f"  max_steps: {steps}\n")
        assert run("train", recipe).code == 0
    expected = load_file(tmp_path / "model" / "model.safetensors")
    (tmp_path / "model" / "config.json").unlink()
    (tmp_path / "model" / "model.safetensors").unlink()
    assert run("train", recipe).message == f"setblock: going on from step {steps}"
    found = load_file(tmp_path / "model" / "model.safetensors")
    assert all(torch.equal(weights, found[name]) for name, weights in expected.items())


def test_overrides_reach_every_section(run, recipe, tmp_path):
    overrides = (
        "training.max_steps=1",
        "training.learning_rate=1e-4",
        "model.config.hidden_size=8",
        "data.documents=4",
    )
    outcome = run("train", recipe, *(part for each in overrides for part in ("--set", each)))
    assert outcome.code == 0
    assert json.loads((tmp_path / "model" / "config.json").read_text())["hidden_size"] == 8


@pytest.mark.parametrize(
    ("override", "said"),
    [
        ("training.lerning_rate=1", "unknown key 'training.lerning_rate', did you mean 'learning_rate'?"),
        ("training.learning_rate=fast", "training.learning_rate must be a number, not 'fast'"),
        ("training.block_sizes=[0]", "block_sizes must be integers of at least 1"),
        ("optimiser.name=sgd", "unknown key 'optimiser'; there are model, data, training, adapter, evaluate_decoding"),
        (
            "data.rows=3",
            "unknown key 'data.rows'; there are name, split, revision, documents, ",
        ),
        ("data.max_length=32", "unknown key 'data.max_length', did you mean 'row_length'?"),
        ("data.documents=0", "data.documents must be at least 1, not 0"),
        ("data.source.name=x", "'source' is not a section"),
        ("data.row_length=8", "has room for 8: set data.too_long"),
        ("model.path=somewhere", "give either path or config"),
        ("model.config.model_type=abacus", "model.config: can't make a model of it"),
        ("model.config.num_attention_heads=0", "model.config: can't make a model of it"),
        ("model.vocab_size=10", "vocab_size must be at least 261, not 10"),
        ("training.learning_rate", "of the form section.key=value"),
        ("training.push_to_hub=true", "training.push_to_hub: nothing would be pushed; run `hf upload REPOSITORY"),
        ("training.learning_rate=[", "is not YAML"),
    ],
)
def test_bad_values_are_one_line(run, recipe, tmp_path, override, said):
    if override.startswith("data.source"):
        recipe.write_text(recipe.read_text().replace("data:", "data:\n  source: word-problems"))
    outcome = run("train", recipe, "--set", override)
    assert outcome.code == 1
    assert outcome.message.startswith("setblock: error: ")
    assert said in outcome.message
    assert not list((tmp_path / "model").glob("*"))


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (None, "can't read recipe"),
        (b"a: [1", "is not YAML"),
        (b"\xff", "must be valid UTF-8"),
        (b"- 1", "must be a mapping"),
    ],
)
def test_files_that_are_no_recipe(run, tmp_path, content, said):
    if content is not None:
        (tmp_path / "recipe.yaml").write_bytes(content)
    outcome = run("train", tmp_path / "recipe.yaml")
    assert outcome.code == 1
    assert said in outcome.message


def test_output_that_is_a_file_or_the_model_itself(run, recipe, tmp_path, sbd_folder):
    (tmp_path / "file").write_text("")
    assert "can't write to training.output_dir" in run("train", recipe, "--output", tmp_path / "file").message
    start = ("--set", "model.config=null", "--set", "model.vocab_size=null", "--set", f"model.path={sbd_folder}")
    outcome = run("train", recipe, *start, "--output", sbd_folder)
    assert "must not be model.path" in outcome.message
