"""Accelerate's own FSDP2, set up by the file that is shipped: each way to train, on other numbers of processes, as on one.

Four processes, two on each of two "nodes", are stopped after a checkpoint; two go on, to what one process gets without a stop.
Each group of processes is started once and runs all cases.
"""

import json
import os
import re
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from accelerate.utils import fsdp_utils
from torch import Tensor
from torch.distributed.tensor import DTensor, distribute_tensor
from torch.optim import _muon

from setblock.errors import SetBlockError
from setblock.training.config import SBDConfig
from setblock.training.run import saving
from setblock.training.run import train as train_module
from setblock.training.run.checkpoints import is_finished, newest_checkpoint
from setblock.training.trainer import trainer
from setblock.training.trainer.sharding import set_up
from training.cases import STEPS, Case, held_out, losses, run, tensors_of
from training.fsdp_on_cpu import allow_fsdp_on_cpu
from training.processes import in_processes

# Each pair of values of two columns is in some row.
CASES = [
    Case("all weights", tied=False, loss="plain", precision="float32", checkpointing=False, optimizer="sgd"),
    Case("all weights", tied=True, loss="chunked", precision="float32", checkpointing=True, optimizer="muon"),
    Case("all weights", tied=True, loss="plain", precision="bfloat16", checkpointing=True, optimizer="adamw"),
    Case("all weights", tied=False, loss="chunked", precision="bfloat16", checkpointing=False, optimizer="sgd"),
    Case("merged", tied=False, loss="chunked", precision="float32", checkpointing=True, optimizer="sgd"),
    Case("merged", tied=True, loss="plain", precision="float32", checkpointing=False, optimizer="adamw"),
    Case("merged", tied=True, loss="chunked", precision="bfloat16", checkpointing=True, optimizer="sgd"),
    Case("merged", tied=False, loss="plain", precision="bfloat16", checkpointing=False, optimizer="muon"),
    Case("future block", tied=False, loss="plain", precision="float32", checkpointing=True, optimizer="muon"),
    Case("future block", tied=True, loss="chunked", precision="float32", checkpointing=False, optimizer="adamw"),
    Case("future block", tied=False, loss="chunked", precision="bfloat16", checkpointing=False, optimizer="adamw"),
    Case("future block", tied=True, loss="plain", precision="bfloat16", checkpointing=True, optimizer="sgd"),
]
USUAL = {3, 5, 8, 10}  # each value of a column is in some row; the others run nightly
GROWING = (0, 5, 1)  # stopped on two processes, ended on four


def params(numbers: Sequence[int], usual: Collection[int]) -> list[Any]:
    marks = {number: [] if number in usual else [pytest.mark.nightly] for number in numbers}
    return [pytest.param(CASES[number], id=str(CASES[number]), marks=marks[number]) for number in numbers]


def exactly_orthogonal(matrix: Tensor, coefficients: tuple[float, float, float], steps: int, eps: float) -> Tensor:
    """Muon's iteration in float64.

    PyTorch's rounds to bfloat16. Where a matrix has singular values far apart, its result then differs by a fifth between two
    processes and one, from equal gradients: what sharding itself does would not be seen. A sharded matrix is gathered once, and
    not for each product.
    """
    a, b, c = coefficients
    whole = matrix.full_tensor() if isinstance(matrix, DTensor) else matrix
    x = whole.double() if len(matrix) <= matrix.shape[1] else whole.double().T
    x = x / x.norm().clamp(min=eps)
    for _ in range(steps):
        gram = x @ x.T
        x = a * x + (b * gram + c * gram @ gram) @ x
    x = (x if len(matrix) <= matrix.shape[1] else x.T).to(matrix.dtype)
    return distribute_tensor(x, matrix.device_mesh, matrix.placements) if isinstance(matrix, DTensor) else x


def in_group(count: int, work: Callable[[], dict[str, str]], folder: Path, *, nodes: int = 1) -> list[dict[str, str]]:
    """What each of so many processes returns."""

    def printed() -> None:
        allow_fsdp_on_cpu()
        _muon._zeropower_via_newtonschulz = exactly_orthogonal
        print(json.dumps(work()))

    folder.mkdir(exist_ok=True)
    return [json.loads(said.splitlines()[-1]) for said in in_processes(count, printed, folder, nodes=nodes)]


@dataclass(frozen=True)
class Runs:
    """The folder of all runs, and what each group said of each."""

    folder: Path
    said: dict[str, list[dict[str, str]]]


@pytest.fixture(scope="module")
def runs(models: Path, tmp_path_factory: pytest.TempPathFactory, request: pytest.FixtureRequest) -> Runs:
    folder = tmp_path_factory.mktemp("runs")
    items: list[Any] = [item for item in request.session.items if item.path == request.path]

    def requested(test: str) -> list[Case]:
        names = [item.name for item in items if item.name.startswith(f"test_a_run_stopped_on_{test}")]
        return [case for case in CASES if any(f"[{case}]" in name for name in names)]

    cases, growing = requested(""), requested("two")

    def all_of(kind: str, cases: Sequence[Case], **options: Any) -> dict[str, str]:
        return {str(case): run(case, models, folder / f"{kind}-{CASES.index(case)}", **options) for case in cases}

    def by_four() -> dict[str, str]:
        said, devices, load = dict[str, str](), list[str](), train_module.load

        def noting(*args: Any, **kwargs: Any) -> Any:
            devices.append(str(kwargs["device"]))
            return load(*args, **kwargs)

        train_module.load = noting
        for case in cases:
            said |= all_of("ours", [case], stop=True) | {f"{case} read to": " ".join(devices)}
            devices.clear()
        return said

    def by_two() -> dict[str, str]:
        started = all_of("growing", growing, stop=True)
        return all_of("ours", cases) | {f"growing {name}": each for name, each in started.items()}

    said = {
        "alone": in_group(1, lambda: all_of("alone", cases, is_one=True), folder / "group-1"),
        "four": in_group(4, by_four, folder / "group-4", nodes=2),
        "two": in_group(2, by_two, folder / "group-2"),
        "four again": in_group(4, lambda: all_of("growing", growing), folder / "group-4-again", nodes=2),
    }
    return Runs(folder, said)


def assert_same(case: Case, runs: Runs, models: Path, kind: str) -> None:
    """Half precision differs from autocast on one process, which keeps what is between the layers in float32. Gradients summed
    in half precision would differ by 0.018."""
    ours, alone = (runs.folder / f"{name}-{CASES.index(case)}" for name in (kind, "alone"))
    start = Path(case.recipe(models, ours)["model"]["path"])
    tolerance = 0.005 if case.precision == "bfloat16" else 1e-6
    assert losses(ours) == pytest.approx(losses(alone), rel=max(tolerance, 1e-5))
    assert len(losses(ours)) == STEPS
    for found_scores, expected_scores in zip(held_out(ours), held_out(alone), strict=True):
        assert found_scores == pytest.approx(expected_scores, rel=max(tolerance, 1e-5), abs=tolerance)
    assert json.loads((ours / "config.json").read_text())["dtype"] == case.precision, "the type that it started in"
    found, expected, before = tensors_of(ours), tensors_of(alone), tensors_of(start)
    assert found.keys() == expected.keys()
    assert any(
        name not in before or not torch.equal(weight[: len(before[name])], before[name])
        for name, weight in expected.items()
    )
    for name, weight in expected.items():
        assert found[name].dtype == weight.dtype == before.get(name, weight).dtype, name
        if tolerance < 1e-3:
            torch.testing.assert_close(found[name], weight, atol=tolerance, rtol=tolerance, msg=name)
        else:
            assert (found[name] - weight).float().norm() <= tolerance * weight.float().norm(), name


@pytest.mark.parametrize("case", params(range(len(CASES)), USUAL))
def test_a_run_stopped_on_four_processes_ends_on_two_as_on_one(runs: Runs, models: Path, case: Case) -> None:
    for group, end in (("alone", "trained"), ("four", "stopped"), ("two", "trained")):
        assert {said[str(case)] for said in runs.said[group]} == {end}
    read_to = [said[f"{case} read to"] for said in runs.said["four"]]
    assert read_to == ["cpu", *["meta" if case.is_read_once else "cpu"] * 3]
    assert_same(case, runs, models, "ours")


@pytest.mark.parametrize("case", params(GROWING, {5}))
def test_a_run_stopped_on_two_processes_ends_on_four_as_on_one(runs: Runs, models: Path, case: Case) -> None:
    assert [said[f"growing {case}"] for said in runs.said["two"]] == ["stopped"] * 2
    assert [said[str(case)] for said in runs.said["four again"]] == ["trained"] * 4
    assert_same(case, runs, models, "growing")


LORA, WHOLE = Case("merged"), Case("all weights", tied=True)
TIED_ADAPTER = Case("merged", tied=True, options=("--fsdp_cpu_ram_efficient_loading", "true"))
WRAPPED = Case("merged", options=("--fsdp_activation_checkpointing", "true"))


def forgetful(get: Callable[..., dict[str, Any]]) -> Callable[..., dict[str, Any]]:
    """A way to take a model's tensors that loses one."""

    def losing(*args: Any, **kwargs: Any) -> dict[str, Any]:
        state = get(*args, **kwargs)
        return {name: weight for name, weight in state.items() if "layers.1.mlp.down_proj" not in name}

    return losing


@pytest.fixture(scope="module")
def refusals(models: Path, tmp_path_factory: pytest.TempPathFactory) -> Runs:
    """What is to be refused, by four processes on two nodes."""
    folder = tmp_path_factory.mktemp("refusals")

    def work() -> dict[str, str]:
        said = {
            "wrapped": run(WRAPPED, models, folder / "wrapped"),
            "whole": run(Case(options=("--fsdp_state_dict_type", "FULL_STATE_DICT")), models, folder / "whole"),
            "tied adapter": run(TIED_ADAPTER, models, folder / "tied-adapter"),
            "unsaved": run(Case(precision="bfloat16"), models, folder / "unsaved", save_strategy="no", max_steps=1),
            "batch": run(WHOLE, models, folder / "batch", global_batch_size=6),
        }
        node = os.environ["GROUP_RANK"]
        said["apart"] = run(WHOLE, models, folder / f"apart-{node}")
        said["each"] = run(WHOLE, models, folder / "each", save_on_each_node=True)
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(trainer, "set_up", lambda plugin: None)
            said["adapter lost"] = run(WRAPPED, models, folder / "adapter-lost", save_steps=1)
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(fsdp_utils, "_get_model_state_dict", forgetful(fsdp_utils._get_model_state_dict))
            said["checkpoint lost"] = run(WHOLE, models, folder / "checkpoint-lost", save_steps=1)
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(saving, "get_model_state_dict", forgetful(saving.get_model_state_dict))
            said["result lost"] = run(WHOLE, models, folder / "result-lost", save_strategy="no", max_steps=1)
        return said

    return Runs(folder, {"four": in_group(4, work, folder / "group", nodes=2)})


@pytest.mark.parametrize(
    ("name", "message"),
    [
        (
            "wrapped",
            "fsdp_activation_checkpointing must be false: .* set training.activation_checkpointing to true instead",
        ),
        ("whole", "fsdp_state_dict_type must be SHARDED_STATE_DICT"),
        ("tied adapter", "fsdp_cpu_ram_efficient_loading must be false for an adapter on a model that ties"),
        (
            "batch",
            r"global_batch_size must be a multiple of 4 \(4 processes x per_device_train_batch_size 1\), such as 4 or 8, not 6",
        ),
        (
            "apart",
            r"training.output_dir .*apart-\d is not the same folder on all nodes: name one on a disk that they share$",
        ),
        ("each", "training.save_on_each_node must be false: the 2 nodes share training.output_dir"),
        ("adapter lost", r"checkpoint-1 is incomplete: 28 of 29 tensors are missing there"),
        ("result lost", "the gathered model is incomplete: 1 of 20 tensors are missing there"),
        ("checkpoint lost", r"checkpoint-1 is incomplete: 1 of 20 tensors are missing there"),
    ],
)
def test_what_would_lose_something_is_refused_by_all_processes_in_one_line(
    refusals: Runs, name: str, message: str
) -> None:
    for said in refusals.said["four"]:
        assert re.search(message, said[name]), said[name]
        assert said[name].startswith("refused: ")
        assert "\n" not in said[name]
    for folder in refusals.folder.glob(f"{name.replace(' ', '-')}*"):
        assert newest_checkpoint(folder) is None
        assert not is_finished(folder)


def test_what_an_evaluation_has_gathered_is_not_taken_for_what_was_trained(refusals: Runs) -> None:
    """It is in half precision, and nothing was saved since."""
    assert {said["unsaved"] for said in refusals.said["four"]} == {"trained"}


def test_fsdp1_is_refused() -> None:
    plugin: Any = SimpleNamespace(fsdp_version=1)
    with pytest.raises(SetBlockError, match="fsdp_version must be 2, not 1"):
        set_up(plugin)


def test_deepspeed_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ACCELERATE_USE_DEEPSPEED", "true")
    with pytest.raises(ValueError, match=r"DeepSpeed is not supported: .*fsdp2.yaml"):
        SBDConfig(output_dir=str(tmp_path))
