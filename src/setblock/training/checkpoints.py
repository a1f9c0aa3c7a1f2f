"""What an earlier run left in an output folder.

Knows the folders that Transformers' `Trainer` and `SBDModel.save` write. Knows nothing of models.
"""

import json
import re
from pathlib import Path

_CHECKPOINT = re.compile(r"checkpoint-(\d+)")


def newest_checkpoint(folder: Path) -> Path | None:
    """The checkpoint of the most steps in `folder` that is whole, or None.

    The Trainer writes `trainer_state.json` last: a checkpoint without a readable one was being written when the process
    was killed, and is passed over.
    """
    whole = [path for path in folder.glob("checkpoint-*") if _CHECKPOINT.fullmatch(path.name) and _is_whole(path)]
    return max(whole, key=step_of, default=None)


def step_of(checkpoint: Path) -> int:
    """The optimiser step after which a checkpoint was written."""
    found = _CHECKPOINT.fullmatch(checkpoint.name)
    assert found
    return int(found[1])


def is_finished(folder: Path) -> bool:
    """Whether the final model is in `folder`: its `config.json` is the last of its files to appear."""
    return (folder / "config.json").is_file()


def _is_whole(checkpoint: Path) -> bool:
    try:
        state = json.loads((checkpoint / "trainer_state.json").read_text())
    except (OSError, ValueError):
        return False
    return isinstance(state, dict) and state.get("global_step") == step_of(checkpoint)
