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
from setblock.training.dry_run import _inputs, dry_run
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
    config, _ = starting_tokenizer(recipe.model, recipe.data)
    sbd = prepared_model(recipe, args)
    model = sbd.model.train()
    if args.activation_checkpointing:
        model.activation_checkpointing_enable()
    optimizer = torch.optim.AdamW(model.parameters())
    inputs = _inputs(args, rows=args.per_device_train_batch_size, length=256, context_length=context_length_of(config))
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
    assert "days at 40% of the peak of h100" in refused.stdout
    assert refused.exit_code == 1
    assert "more than the 0.0 GiB that there are: set training.activation_checkpointing: true" in refused.stderr
