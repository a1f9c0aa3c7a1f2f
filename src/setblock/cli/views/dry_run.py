"""Show what a recipe would need (`setblock train --dry-run`).

Knows the estimate and a table. Knows nothing of how it is made.
"""

from dataclasses import asdict
from typing import TYPE_CHECKING

from rich import box
from rich.table import Table

from setblock.cli.messages import print_json, stdout_console
from setblock.errors import SetBlockError

if TYPE_CHECKING:
    from setblock.roofline.hardware import Hardware
    from setblock.training.config import SBDConfig
    from setblock.training.recipe import Recipe

_GIB = 2**30


def show_dry_run(
    recipe: "Recipe",
    arguments: "SBDConfig",
    *,
    gpus: int,
    memory: float | None,
    hardware: "Hardware",
    share: float,
    as_json: bool,
) -> None:
    """Print the estimate of a recipe.

    Args:
        memory: GiB that a GPU has; None: what the hardware has.

    Raises:
        SetBlockError: it needs more.
    """
    from setblock.training.dry_run import LEFT_OUT, advice, dry_run

    bits = 16 if arguments.bf16 or arguments.fp16 else 32
    found = dry_run(recipe, arguments, gpus=gpus, peak=hardware.peak(bits), share=share)
    limit = (hardware.memory or float("inf")) / _GIB if memory is None else memory
    if as_json:
        print_json({**asdict(found), "total": found.total, "hardware": hardware.name, "share": share, "memory": limit})
    else:
        table = Table(box=box.SIMPLE, show_header=False, pad_edge=False)
        table.add_column(style="dim", no_wrap=True)
        table.add_column(justify="right", no_wrap=True)
        for name, value in (
            ("parameters", f"{found.parameters:,}"),
            ("  that are trained", f"{found.trained:,}"),
            ("steps", f"{found.steps:,}"),
            ("rows", f"{found.rows:,}"),
            ("tokens at most", f"{found.tokens:,}"),
            ("tokens of a pass, with noisy ones", f"{found.pass_tokens:,}"),
            (f"GiB of each of {gpus} GPUs" + (", sharded" if found.is_sharded else ""), f"{found.total / _GIB:.1f}"),
            *((f"  {kind}", f"{size / _GIB:.1f}") for kind, size in found.peak.items()),
            ("GiB of a host while weights load", f"{found.host / _GIB:.0f}"),
            ("GiB of a checkpoint", f"{found.checkpoint / _GIB:.1f}"),
            ("GiB on disk", f"{found.disk / _GIB:.1f}"),
            ("operations", f"{found.operations:.2e}"),
            (f"days at {share:.0%} of the peak of {hardware.name}", f"{found.seconds / 86400:.2f}"),
            ("GPU-hours", f"{found.seconds / 3600 * gpus:,.1f}"),
        ):
            table.add_row(name, value)
        console = stdout_console()
        console.print(table)
        console.print("Left out: " + "; ".join(LEFT_OUT) + ".", style="dim", highlight=False)
    if found.total > limit * _GIB:
        raise SetBlockError(
            f"it needs {found.total / _GIB:.1f} GiB of each GPU, more than the {limit:.1f} GiB that there are: "
            f"{advice(found, recipe, arguments)}"
        )
