"""Several processes train what one does: the same rows in the same order, the same losses, the same weights in the end.

Through the command line, as users start it; by gloo on the CPU. Each run is a few steps of a toy.
"""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
import yaml
from safetensors.torch import load_file

STEPS = 3


def recipe_of(folder: Path, **training: Any) -> Path:
    content = {
        "model": {
            "config": {
                "model_type": "llama",
                "hidden_size": 16,
                "num_hidden_layers": 2,
                "intermediate_size": 16,
                "num_attention_heads": 2,
                "max_position_embeddings": 512,
                "initializer_range": 0.2,
                "tie_word_embeddings": True,
            },
            "vocab_size": 300,
        },
        "data": {"documents": 2 * 2 * STEPS, "evaluation_documents": 4},
        "training": {
            "output_dir": str(folder / "model"),
            "max_steps": STEPS,
            "block_sizes": [2, 4, 8],
            "per_device_train_batch_size": 2,
            "per_device_eval_batch_size": 2,
            "learning_rate": 0.5,
            "lr_scheduler_type": "constant",
            "optim": "sgd",  # AdamW makes much of rounding
            "use_cpu": True,
            "logging_steps": 1,
            "eval_strategy": "steps",
            "eval_steps": STEPS,
            "save_steps": STEPS,
            "save_only_model": True,
            "report_to": "none",
            "disable_tqdm": True,
        }
        | training,
    }
    folder.mkdir()
    path = folder / "recipe.yaml"
    path.write_text(yaml.safe_dump(content))
    return path


def run(folder: Path, *, processes: int, **training: Any) -> Path:
    """Train in a folder and return where the model is."""
    said = started("-m", "setblock", "train", str(recipe_of(folder, **training)), processes=processes)
    assert said.count("saved to") == 1, "said once, by one process"
    return folder / "model"


def started(*program: str, processes: int) -> str:
    """What a program prints that runs in so many processes."""
    launcher = ["-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={processes}"] if processes > 1 else []
    done = subprocess.run(
        [sys.executable, *launcher, *program],
        env={
            **os.environ,
            "OMP_NUM_THREADS": "1",
            "CUDA_VISIBLE_DEVICES": "",
            "PYTHONPATH": str(Path(__file__).parents[1]),
        },
        capture_output=True,
        text=True,
        timeout=240,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    return done.stdout


def history(model: Path, key: str) -> list[float]:
    state = json.loads((model / f"checkpoint-{STEPS}" / "trainer_state.json").read_text())
    return [entry[key] for entry in state["log_history"] if key in entry]


@pytest.fixture(scope="module")
def alone(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """One process that accumulates over two batches."""
    return run(tmp_path_factory.mktemp("alone") / "run", processes=1, gradient_accumulation_steps=2)


def assert_same_training(ours: Path, theirs: Path) -> None:
    for key in ("loss", "ntp_loss", "matp_loss", "eval_ntp_loss", "eval_matp_loss"):
        expected = history(theirs, key)
        assert len(expected) == (1 if "eval" in key else STEPS)
        assert history(ours, key) == pytest.approx(expected, rel=1e-4), key
    weights, expected_weights = (load_file(folder / "model.safetensors") for folder in (ours, theirs))
    assert weights.keys() == expected_weights.keys()
    for name, weight in expected_weights.items():
        torch.testing.assert_close(weights[name], weight, atol=1e-5, rtol=1e-4, msg=name)


def test_two_processes_are_one_that_accumulates(alone: Path, tmp_path: Path) -> None:
    assert_same_training(run(tmp_path / "two", processes=2, cross_entropy="chunked"), alone)


def test_sharded_weights_are_whole_ones() -> None:
    """FSDP2: each process holds half of every weight. The loss in chunks needs them in the middle of the forward pass.

    PyTorch's own, since Accelerate leaves FSDP off where processes run on CPUs.
    """
    assert "same" in started(str(Path(__file__).parent / "sharded.py"), processes=2)
