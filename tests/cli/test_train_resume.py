"""`setblock train` that is interrupted, killed, or has no space left: the same command goes on to the same weights."""

import json
import os
import shutil
import signal
import warnings

import pytest
import torch
from safetensors import SafetensorError
from safetensors.torch import load_file

from setblock.errors import SetBlockError
from setblock.files import only_writer
from setblock.training.trainer.trainer import SBDTrainer
from training.processes import in_processes

from .conftest import assert_same_weights

STEPS = 6


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
    assert_same_weights(broken, whole)
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
    assert_same_weights(tmp_path / "model", whole)


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

    message = "setblock: stopped and saved; run the same command again to resume from step 2"
    assert [text.split(maxsplit=1) for text in in_processes(2, stopped, tmp_path)] == [
        ["143", f"{message}\n\n"],
        ["143"],
    ]
    assert not (tmp_path / "model" / "config.json").exists()
    in_processes(2, lambda: run("train", recipe), tmp_path)
    assert_same_weights(tmp_path / "model", tmp_path / "whole")


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
    assert_same_weights(folder, whole)


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
