"""The commands on a model with a recurrent state: trained by a recipe in each way, decoded, and not exported."""

import json
from pathlib import Path

import pytest
from transformers import PreTrainedTokenizerBase

from families import tiny_model

SHORT = ("--max-new-tokens", 30)


@pytest.fixture(scope="module")
def folder(trained_tokenizer: PreTrainedTokenizerBase, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A base model, and a recipe for it."""
    folder = tmp_path_factory.mktemp("recurrent")
    shape = {"initializer_range": 0.2, "max_position_embeddings": 512}
    tiny_model("lfm2", vocab_size=len(trained_tokenizer), **shape).save_pretrained(folder / "base")
    trained_tokenizer.save_pretrained(folder / "base")
    record = {"prompt": "Tom has 5 pens.", "completion": " He has 5 pens."}
    (folder / "data.jsonl").write_text(f"{json.dumps(record)}\n" * 4)
    recipe = {
        "model": {"path": str(folder / "base")},
        "data": {"source": str(folder / "data.jsonl")},
        "training": {
            "output_dir": str(folder / "run"),
            "block_attention": "causal",
            "block_sizes": [4],
            "max_steps": 2,
            "save_strategy": "no",
            "report_to": "none",
            "use_cpu": True,
        },
    }
    (folder / "recipe.yaml").write_text(json.dumps(recipe))
    return folder


def text_of(run, model, method):
    outcome = run("generate", "Tom has", "--model", model, "--method", method, "--json", *SHORT)
    assert outcome.code == 0
    return json.loads(outcome.stdout)["text"]


@pytest.mark.parametrize("adapter", [(), ("adapter.r=4",), ("adapter.r=4", "adapter.only_noisy=true")])
def test_train_then_decode(run, folder, tmp_path, adapter):
    if adapter:
        pytest.importorskip("peft")
    model = tmp_path / "run"
    changes = [each for change in (f"training.output_dir={model}", *adapter) for each in ("--set", change)]
    assert run("train", folder / "recipe.yaml", *changes).code == 0
    plain = text_of(run, model, "ntp")
    assert text_of(run, model, "exact") == plain
    assert text_of(run, model, "sbd")
    if "adapter.only_noisy=true" in adapter:
        assert plain == text_of(run, folder / "base", "ntp")
    compared = json.loads(run("compare", "Tom has", "--model", model, "--json", *SHORT).stdout)
    assert compared["identical"]
    options = ("--task", "word-problems", "--limit", 3, "--json", *SHORT)
    evaluated = json.loads(run("evaluate", "--model", model, *options).stdout)
    assert evaluated["identical_to_ntp"] == 1
    said = run("chat", "--model", model, *SHORT, stdin="Tom has\nMore\n")
    assert said.code == 0
    assert said.stdout.strip()
    file = tmp_path / "model.gguf"
    outcome = run("export", "--model", model, "--output", file)
    assert outcome.code == 1
    assert "can't be exported" in outcome.message
    assert not file.exists()


@pytest.mark.parametrize(
    ("command", "said"),
    [
        (("generate", "Tom", "--compile", "--model"), "lfm2 can't be compiled: it keeps a recurrent state"),
        (("export", "--output", "model.gguf", "--model"), "models of type lfm2 can't be exported"),
    ],
)
def test_what_is_refused(run, folder, command, said):
    outcome = run(*command, folder / "base")
    assert outcome.code == 1
    assert said in outcome.stderr.splitlines()[-1]


@pytest.mark.parametrize(
    ("command", "said"),
    [
        (("train", "--dry-run"), "what lfm2 needs can't be estimated: it keeps a recurrent state"),
        (("data", "inspect"), "lfm2 keeps a recurrent state"),
        (("train", "--set", "training.block_attention=bidirectional"), "block_attention: causal"),
    ],
)
def test_recipes_that_are_refused(run, folder, command, said):
    outcome = run(*command, folder / "recipe.yaml")
    assert outcome.code == 1
    assert said in outcome.stderr.splitlines()[-1]
