"""Several processes train what one does: the same rows in the same order, the same losses, the same weights in the end.

Through the command line, by gloo on the CPU. Each run is a few steps of a toy.
"""

import json
from pathlib import Path
from typing import Any

import pytest
import torch
import yaml
from safetensors.torch import load_file

from families import SMALLEST_LLAMA
from setblock.cli.app import app
from training.processes import in_processes

STEPS, BATCHES = 3, 4


def recipe_of(folder: Path, *, data: dict[str, Any] | None = None, **training: Any) -> Path:
    """Steps of four batches of one row, however they are spread."""
    content = {
        "model": {
            "config": SMALLEST_LLAMA | {"initializer_range": 0.2, "tie_word_embeddings": True},
            "vocab_size": 300,
        },
        "data": data
        or {
            "source": "word-problems",
            "documents": BATCHES * STEPS,
            "evaluation": {"split": "validation", "documents": 4},
        },
        "training": {
            "output_dir": str(folder / "model"),
            "max_steps": STEPS,
            "block_sizes": [2, 4, 8],
            "per_device_train_batch_size": 1,
            "per_device_eval_batch_size": 1,
            "learning_rate": 0.5,
            "lr_scheduler_type": "constant",
            "optim": "sgd",  # AdamW makes much of rounding
            "use_cpu": True,
            "logging_steps": 1,
            "save_steps": STEPS,
            "save_only_model": True,
            "report_to": "none",
        }
        | ({} if data else {"eval_strategy": "steps", "eval_steps": STEPS})
        | training,
    }
    folder.mkdir(parents=True)
    path = folder / "recipe.yaml"
    path.write_text(yaml.safe_dump(content))
    return path


def run(folder: Path, *, processes: int, **options: Any) -> Path:
    """Train in a folder and return where the model is."""
    path = recipe_of(folder, **options)
    said = in_processes(processes, lambda: app(["train", str(path)], standalone_mode=False), folder)
    assert sum(text.count("saved to") for text in said) == 1, "said once, by one process"
    return folder / "model"


def history(model: Path, key: str) -> list[float]:
    entries = map(json.loads, (model / "metrics.jsonl").read_text().splitlines())
    return [entry[key] for entry in entries if key in entry]


@pytest.fixture(scope="module")
def alone(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """One process that accumulates over four batches."""
    return run(tmp_path_factory.mktemp("alone") / "run", processes=1, gradient_accumulation_steps=BATCHES)


def assert_same_training(ours: Path, theirs: Path, *, evaluated: bool = True) -> None:
    keys = ("loss", "ntp_loss", "matp_loss", *(("eval_ntp_loss", "eval_matp_loss") if evaluated else ()))
    for key in keys:
        expected = history(theirs, key)
        assert len(expected) == (1 if "eval" in key else STEPS)
        assert history(ours, key) == pytest.approx(expected, rel=1e-4), key
    weights, expected_weights = (load_file(folder / "model.safetensors") for folder in (ours, theirs))
    assert weights.keys() == expected_weights.keys()
    for name, weight in expected_weights.items():
        torch.testing.assert_close(weights[name], weight, atol=1e-5, rtol=1e-4, msg=name)


def test_four_processes_are_one_that_accumulates(alone: Path, tmp_path: Path) -> None:
    assert_same_training(run(tmp_path / "four", processes=4, cross_entropy="chunked"), alone)


def test_a_stream_is_read_once_for_all_processes(tmp_path: Path) -> None:
    path = tmp_path / "texts.jsonl"
    texts = (f"Number {i} is followed by {i + 1}, and that by {i + 2}." for i in range(40))
    path.write_text("".join(json.dumps({"text": text}) + "\n" for text in texts))
    data = {"source": str(path), "streaming": True, "shuffle_buffer": 8, "row_length": 64}
    one = run(tmp_path / "one", processes=1, data=data, gradient_accumulation_steps=BATCHES)
    two = run(tmp_path / "two", processes=2, data=data, gradient_accumulation_steps=BATCHES // 2)
    assert_same_training(two, one, evaluated=False)
