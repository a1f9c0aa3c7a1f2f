"""`contrib/fit_delta.py` as a person runs it: it begins, begins at a stored delta, and continues where it ended."""

import runpy
import shutil
import sys
from pathlib import Path

import pytest
import torch
import yaml
from safetensors.torch import load_file

from families import SMALLEST_LLAMA
from setblock.model.loading.delta import with_delta
from setblock.training.recipe import load_recipe
from setblock.training.run.train import train

SCRIPT = Path(__file__).parents[2] / "contrib" / "fit_delta.py"
LLAMA = SMALLEST_LLAMA | {"tie_word_embeddings": True}


def written(file: Path, **model: object) -> Path:
    """Write a recipe of six steps, with a checkpoint after every second one."""
    training = {
        "output_dir": str(file.with_suffix("")),
        "logit_shift": True,
        "per_device_train_batch_size": 2,
        "num_train_epochs": 1,
        "learning_rate": 1e-2,
        "use_cpu": True,
        "save_steps": 2,
        "report_to": "none",
    }
    data = {"source": "word-problems", "documents": 12}
    file.write_text(yaml.safe_dump({"model": model, "data": data, "training": training}))
    return file


def test_it_trains_a_delta_and_continues_from_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    train(*load_recipe(written(tmp_path / "base.yaml", config=LLAMA, vocab_size=300)))
    train(*load_recipe(written(tmp_path / "tuned.yaml", path=str(tmp_path / "base"))))
    recipe = written(tmp_path / "fit.yaml", path=str(tmp_path / "tuned"))

    def fitted(to: str, *more: str) -> dict[str, torch.Tensor]:
        options = ["--base", str(tmp_path / "base"), "--to", str(tmp_path / to), *more]
        monkeypatch.setattr(sys, "argv", [str(SCRIPT), str(recipe), *options])
        runpy.run_path(str(SCRIPT), run_name="__main__")
        return load_file(tmp_path / to / "delta.safetensors")

    first = fitted("first")
    start = load_file(tmp_path / "base" / "model.safetensors")
    assert with_delta(start, dict(first)).keys() == start.keys()
    other = ("--set", f"training.output_dir={tmp_path / 'other'}")
    again = fitted("again", "--from", str(tmp_path / "first"), "--set", "training.learning_rate=1e-9", *other)
    for name, tensor in with_delta(start, dict(first)).items():
        torch.testing.assert_close(with_delta(start, dict(again))[name], tensor, atol=2e-3, rtol=0)

    # A run that was ended after its second checkpoint: the same result
    for checkpoint in (tmp_path / "fit").glob("checkpoint-*"):
        if checkpoint.name != "checkpoint-4":
            shutil.rmtree(checkpoint)
    resumed = fitted("resumed")
    assert not (tmp_path / "fit" / "checkpoint-2").exists(), "it began anew"
    assert resumed.keys() == first.keys()
    assert all(torch.equal(resumed[name], each) for name, each in first.items())
