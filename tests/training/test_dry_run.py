"""A dry run against a real step of the same recipe, as PyTorch's profiler counts its memory on a CPU."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch
import yaml
from torch.profiler import ProfilerActivity, profile
from typer.testing import CliRunner

from conftest import TEXTS
from families import tiny_model
from setblock.cli.app import app
from setblock.data.tokenizer import train_tokenizer
from setblock.model.attention.document_attention import document_attention
from setblock.training.dry_run import RowSample, _rows, dry_run
from setblock.training.loss.forward import SplitHead, training_loss
from setblock.training.recipe import load_recipe
from setblock.training.run.train import context_length_of, prepared_model, starting_tokenizer

SIZES: dict[str, dict[str, Any]] = {
    "wide": {"hidden_size": 256, "num_hidden_layers": 2, "intermediate_size": 1024, "num_attention_heads": 4},
    "deep": {"hidden_size": 128, "num_hidden_layers": 5, "intermediate_size": 256, "num_attention_heads": 4},
    "large vocabulary": {
        "hidden_size": 128,
        "num_hidden_layers": 2,
        "intermediate_size": 256,
        "num_attention_heads": 4,
    },
}


def recipe_of(folder: Path, size: str, **training: Any) -> Path:
    content = {
        "model": {"config": {"model_type": "llama", "max_position_embeddings": 512} | SIZES[size], "vocab_size": 300},
        "data": {"source": "word-problems", "documents": 40, "row_length": 256},
        "training": {
            "output_dir": str(folder / "out"),
            "block_sizes": [8],
            "max_steps": 10,
            "per_device_train_batch_size": 2,
            "use_cpu": True,
            "report_to": "none",
        }
        | training,
    }
    path = folder / "recipe.yaml"
    path.write_text(yaml.safe_dump(content))
    return path


def measured(path: Path) -> int:
    """The most bytes that a second step holds, by the allocations and frees that the profiler records."""
    recipe, args = load_recipe(path)
    config, tokenizer = starting_tokenizer(recipe.model, recipe.data)
    sbd = prepared_model(recipe, args)
    model = sbd.model.train()
    if args.activation_checkpointing:
        model.activation_checkpointing_enable()
    optimizer = torch.optim.AdamW(model.parameters())
    context = context_length_of(config)
    rows = _rows(recipe, tokenizer, context, are_counted=False)
    inputs = RowSample.of(recipe, args, rows, context_length=context).largest(
        args, batch=args.per_device_train_batch_size
    )
    head = SplitHead(model.get_output_embeddings(), lambda logits: logits)

    def step() -> None:
        with document_attention(model):
            loss = training_loss(model, inputs, head=head, ntp_weight=1, matp_weight=1)
            torch.autograd.backward(loss.total)

    step()
    optimizer.step()
    optimizer.zero_grad()
    held = sum(p.nbytes for p in model.parameters())
    held += sum(s.nbytes for state in optimizer.state.values() for s in state.values())
    with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as found:
        step()
    now = most = 0
    for event in found.profiler.kineto_results.events():
        if event.name() == "[memory]":
            now += event.nbytes()
            most = max(most, now)
    return held + most


@pytest.mark.in_turn
@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("checkpointing", [False, True])
def test_the_estimate_is_what_a_step_holds(tmp_path: Path, size: str, checkpointing: bool) -> None:
    path = recipe_of(tmp_path, size, activation_checkpointing=checkpointing)
    recipe, args = load_recipe(path)
    estimate = dry_run(recipe, args, gpus=1, peak=1e12, share=0.4)
    assert estimate.total == pytest.approx(measured(path), rel=0.15)


def test_an_adapter_on_the_future_block_is_sharded_like_all_else(tmp_path: Path) -> None:
    tokenizer = train_tokenizer(TEXTS, vocab_size=300)
    shape = {"num_hidden_layers": 3, "max_position_embeddings": 512}
    tiny_model("llama", vocab_size=len(tokenizer), **shape).save_pretrained(tmp_path / "model")
    tokenizer.save_pretrained(tmp_path / "model")
    content = yaml.safe_load(recipe_of(tmp_path, "deep").read_text())
    content |= {"model": {"path": str(tmp_path / "model")}, "adapter": {"r": 8, "only_noisy": True}}
    content["data"]["row_length"] = 512
    path = tmp_path / "recipe.yaml"
    path.write_text(yaml.safe_dump(content))
    recipe, args = load_recipe(path)
    one, eight = (dry_run(recipe, args, gpus=gpus, peak=1e12, share=0.4) for gpus in (1, 8))
    assert eight.peak["optimizer"] == one.peak["optimizer"] // 8
    assert eight.peak["weights"] < one.peak["weights"]
    assert eight.trained < eight.parameters
    assert eight.host == 2 * eight.parameters, "one process reads the weights"


@pytest.mark.parametrize(
    ("data", "message"),
    [
        ({"source": "none.jsonl"}, "data source none.jsonl: no such file"),
        (
            {"mixture": [{"source": "word-problems", "documents": 9}, {"source": "./no"}]},
            "data source ./no: no such file",
        ),
        (
            {"source": "word-problems", "documents": 9, "evaluation": {"source": "none/*.jsonl"}},
            "data source none/*.jsonl: no file matches",
        ),
        (
            {"source": "word-problems", "documents": 9, "tokenised": "none"},
            "data.tokenised none holds no tokenised data",
        ),
    ],
)
def test_data_that_is_not_there(tmp_path: Path, data: dict[str, Any], message: str) -> None:
    path = recipe_of(tmp_path, "wide")
    recipe = yaml.safe_load(path.read_text())
    path.write_text(yaml.safe_dump({**recipe, "data": data, "training": {**recipe["training"], "max_steps": 2}}))
    outcome = CliRunner().invoke(app, ["train", str(path), "--dry-run"])
    assert outcome.exit_code == 1
    assert message in outcome.stderr


def test_the_command(tmp_path: Path) -> None:
    path = recipe_of(tmp_path, "wide")

    def run(*arguments: str) -> Any:
        return CliRunner().invoke(app, ["train", str(path), "--dry-run", *arguments])

    one, eight = (json.loads(run("--json", "--gpus", count).stdout) for count in ("1", "8"))
    assert not (tmp_path / "out").exists()
    assert eight["host"] == one["host"], "one process reads the weights that are sharded"
    assert one["rows"] == 20
    assert eight["rows"] == 160
    assert one["seconds"] == pytest.approx(eight["seconds"])
    assert eight["peak"]["optimizer"] == pytest.approx(one["peak"]["optimizer"] / 8, rel=0.05)
    refused = run("--gpus", "1", "--memory", "0.001")
    assert "time on 1 GPU, h100, at 40% of the peak" in refused.stdout
    assert refused.exit_code == 1
    assert "more than the 0.0 GiB that there are: set training.activation_checkpointing: true" in refused.stderr


def figures(*arguments: str) -> Any:
    outcome = CliRunner().invoke(app, ["train", *arguments, "--dry-run", "--json"])
    assert outcome.exit_code == 0, outcome.output
    return json.loads(outcome.stdout)


def test_rows_are_as_long_as_the_data(tmp_path: Path) -> None:
    """Without packing a row is a document, whatever the context has room for."""
    path = recipe_of(tmp_path, "wide", max_steps=-1, num_train_epochs=2)
    content = yaml.safe_load(path.read_text())
    texts = [{"text": "a b c " * 5}] * 6 + [{"text": "a b c " * 60}] * 2
    (tmp_path / "texts.jsonl").write_text("".join(json.dumps(each) + "\n" for each in texts))
    content["data"] = {"source": str(tmp_path / "texts.jsonl"), "loss_on": "all"}
    path.write_text(yaml.safe_dump(content))
    recipe, _ = load_recipe(path)
    _, tokenizer = starting_tokenizer(recipe.model, recipe.data)
    lengths = [len(tokenizer(each["text"]).input_ids) + 1 for each in texts]  # an end of text
    found = figures(str(path))
    assert (found["reads_data"], found["rows"], found["steps"]) == (True, 16, 8)
    assert found["tokens"] == pytest.approx(2 * sum(lengths), abs=2 * len(lengths))
    longest = 2 * max(lengths)
    assert longest <= found["pass_tokens"] <= 3 * longest, "two long rows, and their noisy tokens"
    one = figures(str(path), "--set", "training.per_device_train_batch_size=1")
    assert one["operations"] == pytest.approx(found["operations"])


def test_a_folder_with_a_config_alone_is_enough(tmp_path: Path) -> None:
    model = tiny_model("llama", vocab_size=300, max_position_embeddings=512, **SIZES["wide"])
    model.config.save_pretrained(tmp_path / "model")
    content = yaml.safe_load(recipe_of(tmp_path, "wide").read_text())
    path = tmp_path / "recipe.yaml"
    path.write_text(yaml.safe_dump(content | {"model": {"path": str(tmp_path / "model")}}))
    found = figures(str(path))
    assert (found["parameters"], found["reads_data"]) == (model.num_parameters(), False)
    assert found["tokens"] == 10 * 2 * 256
    outcome = CliRunner().invoke(app, ["train", str(path), "--dry-run", "--set", "training.max_steps=-1"])
    assert outcome.exit_code == 1
    assert "has no tokenizer here, so that rows can't be counted: set training.max_steps" in outcome.stderr


@pytest.mark.parametrize("name", ["smollm2-135m", "HuggingFaceTB/SmolLM2-135M-Instruct"])
def test_the_roofline_s_table_needs_no_network(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    content = yaml.safe_load(recipe_of(tmp_path, "wide").read_text())
    path = tmp_path / "recipe.yaml"
    path.write_text(yaml.safe_dump(content | {"model": {"path": name}}))
    outcome = CliRunner().invoke(app, ["train", str(path), "--dry-run", "--json"])
    assert json.loads(outcome.stdout)["parameters"] == 134_515_008
    assert ("the sizes are those of smollm2-135m in the roofline's table" in outcome.stderr) == ("/" in name)
    del content["data"]["row_length"]
    path.write_text(yaml.safe_dump(content | {"model": {"path": name}}))
    outcome = CliRunner().invoke(app, ["train", str(path), "--dry-run"])
    assert "how long rows are can't be known without the data: set data.row_length" in outcome.stderr


def test_what_is_printed_is_for_the_hardware_that_was_named(tmp_path: Path) -> None:
    path = str(recipe_of(tmp_path, "wide"))
    h100, l4 = figures(path), figures(path, "--hardware", "l4")
    assert l4["seconds"] / h100["seconds"] == pytest.approx(67 / 30.3)
    own = figures(path, "--hardware", "l4", "--peak", "67")
    assert own["seconds"] == pytest.approx(h100["seconds"])
    # With so little of the peak that it takes minutes
    peak = f"{h100['seconds'] * 67 / 600:.12f}"
    printed = CliRunner().invoke(app, ["train", path, "--dry-run", "--hardware", "l4", "--peak", peak]).stdout
    line = next(line for line in printed.splitlines() if "time on" in line)
    assert line.split() == "time on 1 GPU, l4 (own figures), at 40% of the peak 10.0 minutes".split()
    assert "GiB of a GPU, of 22" in printed
    left_out = printed.partition("Left out:\n")[2].strip().splitlines()
    assert len(left_out) == 3
    assert all(each.startswith("- ") for each in left_out)
