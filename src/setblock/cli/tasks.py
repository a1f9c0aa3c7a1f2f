"""Define the options that say which examples of which task a sweep or a calibration asks."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from setblock.cli.decoding_options import setting_option
from setblock.cli.messages import progress
from setblock.cli.options import TASK, SplitOption, option, option_group
from setblock.decoding.settings import DecodingSettings
from setblock.evaluation.sandbox import Level

if TYPE_CHECKING:
    from setblock.data.tasks import Task
    from setblock.decoding.operating_point import OperatingPoint
    from setblock.evaluation.result import Result
    from setblock.model.sbd_model import SBDModel

LimitOption = Annotated[int, option(..., "Number of examples, at least 1.", "--limit", panel=TASK)]
BatchSizeOption = Annotated[
    int,
    option(
        ...,
        "Number of examples decoded at once, at least 1. It changes no answer and no count.",
        "--batch-size",
        panel=TASK,
    ),
]
SandboxOption = Annotated[
    Level,
    option(
        ...,
        "How programs of coding tasks are confined. confined: as far as the sandbox can. files-readable: accept that "
        "programs can read your files, if the kernel has no Landlock.",
        "--sandbox",
        panel=TASK,
    ),
]


@option_group(TASK)
class TaskOptions:
    """Hold which examples, and how they are decoded together."""

    task: str = option("word-problems", "The task; `setblock evaluate --help` lists all tasks.", metavar="NAME")
    split: SplitOption = "test"
    limit: LimitOption = 100
    seed: int = option(
        0,
        "Seed that chooses the examples of the split. A calibration also draws from it the examples that determine "
        "the order of its tests.",
    )
    batch_size: BatchSizeOption = 100  # a sweep answers many examples: wide batches waste least
    sandbox: SandboxOption = "confined"
    max_new_tokens: int | None = setting_option("max_new_tokens")

    def swept(
        self,
        model: "SBDModel",
        task: "Task[Any]",
        points: "list[OperatingPoint]",
        *,
        split: str,
        out: Path | None = None,
    ) -> "list[Result]":
        """Return the results of a sweep (see `setblock.evaluation.run.sweep`), behind a bar."""
        from setblock.evaluation.run import sweep

        with progress() as tell:
            return sweep(
                model,
                task,
                points,
                split=split,
                seed=self.seed,
                path=out,
                shared=DecodingSettings(max_new_tokens=self.max_new_tokens),
                limit=self.limit,
                batch_size=self.batch_size,
                level=self.sandbox,
                on_progress=lambda point, done: tell(f"{point.label} of {len(points) + 1} settings", done, self.limit),
            )
