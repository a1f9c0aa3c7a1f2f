"""Accelerate's own FSDP2 in processes on CPUs, set up by the file that is shipped for it."""

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

from accelerate.commands.launch import _validate_launch_command, launch_command_parser
from accelerate.state import AcceleratorState, PartialState
from accelerate.utils import DistributedType
from accelerate.utils.launch import prepare_multi_gpu_env

SHIPPED = Path(__file__).parent.parent.parent / "recipes" / "accelerate" / "fsdp2.yaml"


def environment(*options: str) -> dict[str, str]:
    """The variables that `accelerate launch --config_file recipes/accelerate/fsdp2.yaml OPTIONS` gives its processes."""
    parser = launch_command_parser()
    launched, *_ = _validate_launch_command(parser.parse_args(["--config_file", str(SHIPPED), *options, "train.py"]))
    before = dict(os.environ)
    try:
        made = prepare_multi_gpu_env(launched)
    finally:
        os.environ.clear()
        os.environ.update(before)
    return {name: value for name, value in made.items() if before.get(name) != value}


def allow_fsdp_on_cpu() -> None:
    """Let Accelerate shard where processes run on CPUs. It does nothing for that but to check for an accelerator here."""
    original: Callable[..., None] = AcceleratorState.__init__

    def init(self: Any, *args: Any, fsdp_plugin: Any = None, **kwargs: Any) -> None:
        original(self, *args, fsdp_plugin=fsdp_plugin, **kwargs)
        if fsdp_plugin is not None and self.distributed_type == DistributedType.MULTI_CPU:
            if self._mixed_precision != "no":
                fsdp_plugin.set_mixed_precision(self._mixed_precision)
            self.fsdp_plugin = fsdp_plugin
            self.distributed_type = PartialState._shared_state["distributed_type"] = DistributedType.FSDP

    AcceleratorState.__init__ = init
