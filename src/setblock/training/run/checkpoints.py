"""What an earlier run left in an output folder: its recipe, its checkpoints, its final model.

Reads the folders that Transformers' `Trainer` and `SBDModel.save` write. The processes of a run, on one node or on
many, must see the same in them.
"""

import json
import os
import re
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from zipfile import is_zipfile

from accelerate.utils import gather_object
from safetensors import SafetensorError, safe_open

from setblock.errors import SetBlockError, warn
from setblock.files import FULL_DISK, differences, write_whole, writing
from setblock.training.config import SBDConfig
from setblock.training.recipe import Recipe, checked_recipe
from setblock.training.trainer.sharding import is_sharded

_RECIPE_FILE = "recipe.json"

RECORD = "trained.json"
"""The file of a checkpoint that is written last: shape and sum of each trained tensor
(`setblock.training.run.saving`)."""

# Values of the training section that may change when a run resumes: they don't change what is learned.
_FREE = re.compile(
    r"output_dir|logging_.*|save_.*|eval_.*|report_to|disable_tqdm|dataloader_.*|use_cpu|fsdp.*|ddp_.*|activation_checkpointing|torch_compile.*"
    # Their product, the global batch, is recorded.
    r"|per_device_train_batch_size|gradient_accumulation_steps|global_batch_size"
)


def make_folder(folder: Path) -> None:
    """Make a run's output folder, or raise `SetBlockError` if it can't be made."""
    with writing(folder, what="to training.output_dir"):
        folder.mkdir(parents=True, exist_ok=True)


def claim(folder: Path, recipe: Recipe, **known: Any) -> None:
    """Record in `folder` which recipe is trained there, together with `known`: a hash of the `documents`, and the rows
    of a step, `global_batch_size`. Raise `SetBlockError` as `check_run` does."""
    wanted = check_run(folder, recipe, **known)
    if not (folder / _RECIPE_FILE).is_file():
        write_whole(folder / _RECIPE_FILE, json.dumps(wanted, indent=2) + "\n")


def check_run(folder: Path, recipe: Recipe, **known: Any) -> dict[str, Any]:
    """Return the record of a recipe's run, together with `known`. Raise `SetBlockError` if `folder` holds another run,
    which this one would silently continue. Of a finished run, only the recipe is compared, since its data may not be
    read."""
    wanted: dict[str, Any] = json.loads(recipe.model_dump_json()) | known
    wanted["training"] = {key: value for key, value in wanted["training"].items() if not _FREE.fullmatch(key)}
    path = folder / _RECIPE_FILE
    recorded = json.loads(path.read_text()) if path.is_file() else wanted
    for key, there, here in differences({key: recorded.get(key) for key in wanted}, wanted):
        found = f"with {key} {there!r}, not {here!r}"
        if key == "documents":
            found = "on other documents, the recipe's data has changed since"
        raise SetBlockError(f"{folder} holds a run {found}: delete it, or give another training.output_dir")
    return wanted


def recorded_recipe(folder: Path) -> tuple[Recipe, SBDConfig] | None:
    """Return the recipe of the run in `folder`, for use on a CPU; None where there is no run. Raise `SetBlockError` if
    this version can't read the record."""
    path = folder / _RECIPE_FILE
    if not path.is_file():
        return None
    try:
        content = without_nulls(json.loads(path.read_text()))
        for key in ("documents", "global_batch_size"):
            content.pop(key, None)
        if "mixture" in content["data"]:
            content["data"].pop("split", None)  # its recorded default, which is valid only inside each source
    except (ValueError, KeyError, TypeError) as error:
        raise SetBlockError(
            f"{path} is not the record of a run: delete it, or give another training.output_dir"
        ) from error
    return checked_recipe(path, content, overrides={"training.output_dir": str(folder), "training.use_cpu": True})


def without_nulls(value: Any) -> Any:
    """Return a recorded recipe without its nulls, which are keys that the recipe did not give."""
    if isinstance(value, dict):
        return {key: without_nulls(each) for key, each in value.items() if each is not None}
    return [without_nulls(each) for each in value] if isinstance(value, list) else value


def whole_checkpoints(folder: Path) -> list[Path]:
    """Return the complete checkpoints in `folder`. The record of what was trained is written last, when all processes
    are done and the rest was checked: a checkpoint without it was being written when a process was killed. A checkpoint
    with a file that was truncated later, as by an interrupted copy, is not complete either."""
    return [path for path in _checkpoints(folder) if _is_whole(path)]


def warn_of_incomplete(folder: Path, *, after: int) -> None:
    """Warn if incomplete checkpoints of later steps than the one that a run resumes from are skipped."""
    last = max(_checkpoints(folder), key=step_of, default=None)
    if last is not None and step_of(last) > after:
        where = " on another node" if _is_whole(last) else ""
        warn(f"{last} is not complete{where}: training starts at step {after}")


def _checkpoints(folder: Path) -> list[Path]:
    return [path for path in folder.glob("checkpoint-*") if path.name.removeprefix("checkpoint-").isdecimal()]


def newest_checkpoint(folder: Path) -> Path | None:
    """Return the complete checkpoint of the most steps in `folder`, or None."""
    return max(whole_checkpoints(folder), key=step_of, default=None)


def step_of(checkpoint: Path | None) -> int:
    """Return the optimiser step after which a checkpoint was written; 0 where there is none."""
    return 0 if checkpoint is None else int(checkpoint.name.removeprefix("checkpoint-"))


def is_finished(folder: Path) -> bool:
    """Return whether the final model is in `folder`: its `config.json` is the last of its files to appear."""
    return (folder / "config.json").is_file()


@contextmanager
def telling_of_full_disks(folder: Path) -> Iterator[None]:
    """Turn the errors of a full disk into a `SetBlockError`, and make room: the checkpoint that was being written is
    deleted, earlier files stay."""
    before = {*_checkpoints(folder)}
    try:
        yield
    except Exception as error:
        # Python reports a full disk by a number, safetensors in words, and PyTorch's writer only as a failed write
        causes = (error, error.__cause__)
        is_full = any(isinstance(each, OSError) and each.errno in FULL_DISK for each in causes)
        if not is_full and not re.search("No space left|PytorchStreamWriter failed writing", str(error)):
            raise
        for path in _checkpoints(folder):
            if path not in before and not _is_whole(path):
                shutil.rmtree(path, ignore_errors=True)
        step = step_of(newest_checkpoint(folder))
        raise SetBlockError(
            f"no space left to write to {folder}: free some space and run the same command again to resume from step {step}"
        ) from error


def _is_whole(checkpoint: Path) -> bool:
    """Return whether a checkpoint was written completely, and none of its files was truncated since."""
    try:
        state = json.loads((checkpoint / "trainer_state.json").read_text())
    except (OSError, ValueError):
        return False
    is_read = isinstance(state, dict) and state.get("global_step") == step_of(checkpoint)
    return is_read and (checkpoint / RECORD).is_file() and all(map(_has_end, checkpoint.iterdir()))


def _has_end(path: Path) -> bool:
    """Return whether a file of tensors is not truncated. PyTorch's are ZIP archives, which have their directory at the
    end."""
    try:
        if path.suffix in (".pt", ".pth"):
            return is_zipfile(path)
        if path.suffix == ".safetensors":
            with safe_open(path, framework="pt"):
                return True
    except (OSError, SafetensorError):
        return False
    return True


def earlier_run(args: SBDConfig) -> tuple[bool, Path | None]:
    """Return whether an earlier run has left its final model, and the newest checkpoint that all processes see, or
    None. Every process must call this."""
    output = Path(args.output_dir)
    checkpoints = whole_checkpoints(output)
    seen = gather_object([(is_finished(output), {step_of(path) for path in checkpoints})])
    common = set.intersection(*(steps for _, steps in seen))
    return seen[0][0], max((path for path in checkpoints if step_of(path) in common), key=step_of, default=None)


def check_shared(args: SBDConfig) -> None:
    """Raise `SetBlockError` if processes don't share the output folder although only some of them, or each for its own
    share, write a checkpoint; or if the folder can't be made. Every process must call this."""
    if args.world_size == 1:
        return
    output = Path(args.output_dir)
    make_folder(output)
    path = output / ".shared"
    if args.process_index == 0:
        path.write_text(os.urandom(8).hex())
    gather_object([None])  # written
    token = path.read_text() if path.is_file() else ""
    seen = gather_object([(token, args.local_process_index == 0)])
    is_shared, nodes = len({each for each, _ in seen}) == 1, sum(first for _, first in seen)
    if args.process_index == 0:
        path.unlink()
    if is_shared and args.save_on_each_node and nodes > 1:
        raise SetBlockError(
            f"training.save_on_each_node must be false: the {nodes} nodes share training.output_dir {output}"
        )
    if not is_shared and (is_sharded(args) or not args.save_on_each_node):
        more = "" if is_sharded(args) else ", or set training.save_on_each_node to true"
        raise SetBlockError(
            f"training.output_dir {output} is not the same folder on all nodes: name one on a disk that they share{more}"
        )
