"""Find what all processes of a run, on one node or on many, see of an earlier run in the output folder.

Knows folders and processes. Knows nothing of models.
"""

import os
from dataclasses import dataclass
from pathlib import Path

from accelerate.utils import gather_object

from setblock.errors import SetBlockError
from setblock.training.checkpoints import is_finished, make_folder, step_of, whole_checkpoints
from setblock.training.config import SBDConfig
from setblock.training.sharding import is_sharded


@dataclass(frozen=True)
class EarlierRun:
    """Hold what is in the output folder.

    Attributes:
        is_finished: the final model is there.
        checkpoint: the newest that all processes have; None where there is none.
    """

    is_finished: bool
    checkpoint: Path | None


def earlier_run(args: SBDConfig) -> EarlierRun:
    """Return what all processes see of an earlier run. Every process must call this.

    Raises:
        SetBlockError: the folder can't be made, or another node does not see what the main process writes there.
    """
    output = Path(args.output_dir)
    if args.world_size > 1:
        make_folder(output)
        _check_shared(output, args)
    checkpoints = whole_checkpoints(output)
    seen = gather_object([(is_finished(output), {step_of(path) for path in checkpoints})])
    common = set.intersection(*(steps for _, steps in seen))
    newest = max((path for path in checkpoints if step_of(path) in common), key=step_of, default=None)
    return EarlierRun(is_finished=seen[0][0], checkpoint=newest)


def _check_shared(output: Path, args: SBDConfig) -> None:
    """Refuse folders that processes don't share, where a checkpoint is written by few of them, or a share by each."""
    path = output / ".shared"
    (token,) = {each for each in gather_object([os.urandom(8).hex() if args.process_index == 0 else ""]) if each}
    if args.process_index == 0:
        path.write_text(token)
    gather_object([None])  # written
    mine = path.read_text() if path.is_file() else ""
    seen = gather_object([(mine == token, args.local_process_index == 0)])
    is_shared, nodes = all(same for same, _ in seen), sum(first for _, first in seen)
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
