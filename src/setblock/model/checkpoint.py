"""Operations on a checkpoint's files: write its SBD config, copy it, and check that it contains every tensor that it should."""

import json
import math
import shutil
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path

import torch
from safetensors import safe_open
from torch import Tensor

from setblock.errors import SetBlockError, prefixed
from setblock.files import whole_folder, write_whole, writing
from setblock.model.protocol.sbd_config import CONFIG_KEY, SBDModelConfig

Sums = dict[str, tuple[tuple[int, ...], float]]
"""The shape of each tensor and the sum of its elements in float64, by name."""


def sums_of(tensors: Iterable[tuple[str, Tensor]]) -> Sums:
    """Return shapes and sums of named tensors. Tensors sharded over processes (DTensor) require a call in every process."""
    found: Sums = {}
    for name, tensor in tensors:
        total = tensor.detach().sum(dtype=torch.float64)
        whole = getattr(total, "full_tensor", lambda total=total: total)()
        found[name] = (tuple(tensor.shape), float(whole))
    return found


def stored_sums(folder: Path) -> Sums:
    """Return shapes and sums of all tensors in the safetensors files of a folder."""
    found: Sums = {}
    for path in sorted(folder.glob("*.safetensors")):
        with safe_open(path, framework="pt") as file:
            found |= sums_of((name, file.get_tensor(name)) for name in file.keys())  # noqa: SIM118
    return found


WEIGHTS, WEIGHTS_INDEX = "model.safetensors", "model.safetensors.index.json"
"""Transformers' names for the weights of a checkpoint: a single file, or the index of several."""


def weight_files(folder: Path) -> set[Path]:
    """Return the paths of a checkpoint's weights, by Transformers' names and the index of its shards; some may not exist. Files
    that the index names outside the folder, and files that are not safetensors, are left out."""
    found = {folder / WEIGHTS, folder / WEIGHTS_INDEX}
    with suppress(OSError, ValueError, KeyError, TypeError, AttributeError):  # no index, or not one of weights
        names = set(json.loads((folder / WEIGHTS_INDEX).read_text(encoding="utf-8"))["weight_map"].values())
        found |= {folder / name for name in names if Path(name).name == name and name.endswith(".safetensors")}
    return found


def refuse_adapter(folder: Path) -> None:
    """Raise `SetBlockError` if a folder has the files of a PEFT adapter: Transformers would load a model saved there together
    with the adapter."""
    if (folder / "adapter_config.json").exists():
        raise SetBlockError(f"{folder} holds an adapter, with which the model would be loaded: save it elsewhere")


def refuse_loss(expected: Sums, found: Sums, where: str | Path) -> None:
    """Raise `SetBlockError` if a tensor that should be in `where` is missing there, or has another shape or sum.

    Transformers stores some models' tensors under other names or in parts. So tensors whose names are missing are compared all
    together, by their number of elements and their sum.
    """
    for name in expected.keys() & found.keys():
        (shape, total), (there, total_there) = expected[name], found[name]
        if there != shape or not _same(total, total_there):
            raise SetBlockError(
                f"{where} is incomplete: {name} has shape {list(there)} and sum {total_there:g} there, and "
                f"{list(shape)} and {total:g} in the model"
            )
    missing, others = (_all_of(a, names=a.keys() - b.keys()) for a, b in ((expected, found), (found, expected)))
    if missing[0] and not (missing[0] == others[0] and _same(missing[1], others[1])):
        names = sorted(expected.keys() - found.keys())
        raise SetBlockError(
            f"{where} is incomplete: {len(names)} of {len(expected)} tensors are missing there, in whole or in part, "
            f"{names[0]} the first"
        )


def _same(one: float, other: float) -> bool:
    """Return whether two sums are equal up to the order of their terms; a model may also have diverged."""
    return math.isclose(one, other, rel_tol=1e-9, abs_tol=1e-6) or (math.isnan(one) and math.isnan(other))


def _all_of(sums: Sums, *, names: Iterable[str]) -> tuple[int, float]:
    """Return the number of elements of some tensors, and their sum."""
    chosen = [sums[name] for name in sorted(names)]
    return sum(math.prod(shape) for shape, _ in chosen), math.fsum(total for _, total in chosen)


def write_sbd_config(folder: Path, sbd_config: SBDModelConfig) -> None:
    """Replace the SBD config in a checkpoint's `config.json`. Every other entry stays, and the file changes at once or not at
    all. Raise `SetBlockError` if the folder is no checkpoint or can't be written."""
    path = folder / "config.json"
    with prefixed(f"can't write {path}", (OSError, ValueError)):
        config = json.loads(path.read_text(encoding="utf-8")) | {CONFIG_KEY: sbd_config.to_json()}
    write_whole(path, json.dumps(config, indent=2, sort_keys=True) + "\n")


def copy_checkpoint(source: Path, folder: Path) -> None:
    """Copy a checkpoint into a new or empty folder, which appears once it is whole. Raise `SetBlockError` if that fails."""
    with writing(folder):
        folder.parent.mkdir(parents=True, exist_ok=True)
    with whole_folder(folder) as whole:
        shutil.copytree(source, whole)
        for path in (whole, *whole.rglob("*")):
            path.chmod(path.stat().st_mode | 0o200)  # the copy's owner may write to it
