"""Several processes train what one does: the same rows in the same order, the same losses, the same weights in the end.

Through the command line, by gloo on the CPU. Each run is a few steps of a toy.
"""

import json
import os
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import yaml
from safetensors.torch import load_file

from families import SMALLEST_LLAMA
from setblock.cli.app import app
from setblock.errors import SetBlockWarning
from setblock.training.config import SBDConfig
from setblock.training.run import train as train_module
from setblock.training.run.checkpoints import RECORD, whole_checkpoints
from training.cases import Case, losses, tensors_of
from training.cases import run as run_case
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
    keys = (
        "loss",
        "ntp_loss",
        "matp_loss",
        *(("eval_ntp_loss", "eval_matp_loss", "eval_token_loss") if evaluated else ()),
    )
    for key in keys:
        expected = history(theirs, key)
        assert len(expected) == (2 if key == "eval_token_loss" else 1 if "eval" in key else STEPS)
        assert history(ours, key) == pytest.approx(expected, rel=1e-4), key
    weights, expected_weights = (load_file(folder / "model.safetensors") for folder in (ours, theirs))
    assert weights.keys() == expected_weights.keys()
    for name, weight in expected_weights.items():
        torch.testing.assert_close(weights[name], weight, atol=1e-5, rtol=1e-4, msg=name)


def test_four_processes_are_one_that_accumulates(alone: Path, tmp_path: Path) -> None:
    assert_same_training(run(tmp_path / "four", processes=4, cross_entropy="chunked"), alone)


def test_nodes_with_their_own_disks_resume_at_the_step_that_all_have(models: Path, tmp_path: Path) -> None:
    """Two nodes of two processes stop after two steps, and one has not completed its last checkpoint. They end as one process
    does without a stop."""

    def trained(output: Path, **options: Any) -> None:
        starts: list[tuple[bool, Path | None]] = []
        train_module.earlier_run = noting(train_module.earlier_run, starts)
        with warnings.catch_warnings(record=True) as warned:
            warnings.simplefilter("always")
            said = run_case(Case(), models, output, is_one=True, save_steps=1, **options)
        messages = [str(each.message) for each in warned if each.category is SetBlockWarning]
        print(said, "from", starts[0][1], *messages)

    def on_nodes(stop: bool) -> set[str]:
        def work() -> None:
            trained(nodes[int(os.environ["GROUP_RANK"])], stop=stop, save_on_each_node=True)

        (tmp_path / f"group-{stop}").mkdir()
        return {said.splitlines()[-1] for said in in_processes(4, work, tmp_path / f"group-{stop}", nodes=2)}

    alone, nodes = tmp_path / "alone", [tmp_path / f"node-{node}" for node in range(2)]
    in_processes(1, lambda: trained(alone), tmp_path)
    assert on_nodes(stop=True) == {"stopped from None"}
    assert [{path.name for path in whole_checkpoints(node)} for node in nodes] == [{"checkpoint-1", "checkpoint-2"}] * 2
    (nodes[1] / "checkpoint-2" / RECORD).unlink()
    passed_over = f"{nodes[0] / 'checkpoint-2'} is not complete on another node: training starts at step 1"
    resumed = [f"trained from {node / 'checkpoint-1'}" for node in nodes]
    assert on_nodes(stop=False) == {*resumed, f"{resumed[0]} {passed_over}"}
    assert losses(nodes[0]) == pytest.approx(losses(alone), rel=1e-5)
    assert len(losses(alone)) == len(whole_checkpoints(nodes[1])) == 3
    found, expected = tensors_of(nodes[0]), tensors_of(alone)
    assert found.keys() == expected.keys()
    for name, weight in expected.items():
        torch.testing.assert_close(found[name], weight, atol=1e-6, rtol=1e-6, msg=name)


def noting(function: Callable[[SBDConfig], Any], found: list[Any]) -> Callable[[SBDConfig], Any]:
    """A function that looks for an earlier run and notes what it has found."""

    def looking(args: SBDConfig) -> Any:
        found.append(function(args))
        return found[-1]

    return looking


def test_tokenised_data_is_learned_as_the_texts_themselves(tmp_path: Path) -> None:
    path, tokens = tmp_path / "texts.jsonl", tmp_path / "tokens"
    texts = (f"Number {i} is followed by {i + 1}, and that by {i + 2}." for i in range(400))
    path.write_text("".join(json.dumps({"text": text}) + "\n" for text in texts))
    data = {"source": str(path), "row_length": 64}
    recipe = recipe_of(tmp_path / "recipe", data=data)
    arguments = ["data", "tokenise", str(recipe), "--output", str(tokens), "--processes", "2"]
    in_processes(1, lambda: app(arguments, standalone_mode=False), recipe.parent)
    in_order = {"train_sampling_strategy": "sequential"}
    texts_themselves = run(tmp_path / "texts", processes=1, data=data, gradient_accumulation_steps=BATCHES, **in_order)
    there = data | {"tokenised": str(tokens)}
    four = run(tmp_path / "four", processes=4, data=there, **in_order)
    assert_same_training(four, texts_themselves, evaluated=False)
