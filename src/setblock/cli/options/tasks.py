"""The options of the examples that a model answers, from a task or a file of records, and of the settings of a sweep."""

from contextlib import nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, Any

from setblock.cli.messages import progress, resumable
from setblock.cli.options.decoding_options import key_values, setting_option, with_own_sampler
from setblock.cli.options.groups import TASK, option, option_group, optional
from setblock.data.tasks import TASKS, Task, task_named
from setblock.data.tasks.task import Split
from setblock.decoding.samplers.named import SAMPLERS
from setblock.decoding.settings.table import POINT, DecodingSettings
from setblock.errors import ParameterError
from setblock.evaluation.operating_point import label_of
from setblock.evaluation.records import DEFAULT_JUDGE, JUDGES, task_of_records

if TYPE_CHECKING:
    from setblock.evaluation.result import Result
    from setblock.evaluation.run import EvaluationOptions
    from setblock.evaluation.sweeps.grid import Grid
    from setblock.model.sbd_model import SBDModel

DEFAULT_TASK = "word-problems"
BATCH_SIZE = "Number of examples decoded at once, at least 1. It changes no answer and no count."


@option_group(TASK)
class ExamplesOptions:
    """The options of the examples, and of how answers are judged."""

    task: str | None = optional(
        f"The task: {', '.join(TASKS)}, or a Python file of your own: FILE or FILE:NAME. Default: {DEFAULT_TASK}.",
        metavar="NAME",
    )
    source: Path | None = optional(
        'Ask the records of a file instead of a task. Each line is {"prompt": "..."}, with or without a "completion", or '
        '{"messages": [...]}. The completion, or an assistant\'s message at the end, is the right answer.',
        "--input",
    )
    judge: str | None = optional(
        f"With --input: how an answer is compared with the right one: {', '.join(JUDGES)}. Default: {DEFAULT_JUDGE}, if the "
        "file has right answers.",
        metavar="NAME",
    )
    raw: bool = option(False, "With --input: continue prompts as plain text, without the chat template.")
    allow_code_execution: bool = option(
        False,
        "Let a coding task run the programs that the model writes. tasks/humaneval of the repository confines them by "
        "bubblewrap, or, where that is not installed, by limits on time and memory alone.",
    )
    split: Split | None = optional(
        "The split of a task's examples: test for results, validation for choosing settings. Default: test; of calibrate, "
        "validation.",
    )
    limit: int | None = optional(
        "Number of examples, at least 1. Default: 100; of calibrate, 1000; or all records of --input."
    )

    def chosen(self, *, split: Split = "test", limit: int = 100) -> tuple[Task[Any], "EvaluationOptions"]:
        """Return the task, and which of its examples are answered; `split` and `limit` are the options' defaults. Raise
        `SetBlockError` if there is no such task or file, options exclude each other, or answers can't be judged here."""
        from setblock.evaluation.judging import check_judge

        if self.source is None:
            for name, given in (("judge", self.judge), ("raw", self.raw)):
                if given:
                    raise ParameterError(f"--{name} needs --input: a task has its own way to ask and to judge")
            task = task_named(self.task or DEFAULT_TASK)
            check_judge(task, allow_code_execution=self.allow_code_execution)
            split, limit = self.split or split, limit if self.limit is None else self.limit
            return task, {"split": split, "limit": limit, "allow_code_execution": self.allow_code_execution}
        for name, other in (("task", self.task), ("split", self.split)):
            if other is not None:
                raise ParameterError(f"--{name} and --input exclude each other: a file is no task, and has no splits")
        task = task_of_records(self.source, judge=self.judge, raw=self.raw)
        count = sum(1 for _ in task.examples("test"))
        return task, {"split": "test", "limit": count if self.limit is None else min(self.limit, count)}


@option_group(TASK)
class TaskOptions(ExamplesOptions):
    """The options of the examples of a sweep or a calibration, and of their batches."""

    seed: int = option(
        0,
        "Seed that chooses the examples of the split. A calibration also draws from it the examples that determine "
        "the order of its tests.",
    )
    batch_size: int = option(100, BATCH_SIZE)  # a sweep answers many examples: wide batches waste least
    max_new_tokens: int | None = setting_option("max_new_tokens")

    def swept(
        self,
        model: "SBDModel",
        task: Task[Any],
        requested: "EvaluationOptions",
        grids: "list[Grid]",
        *,
        out: Path | None = None,
    ) -> "list[Result]":
        """Return the results of a sweep (see `setblock.evaluation.run.sweep`) over all points of the grids, behind a bar."""
        from setblock.evaluation.run import sweep
        from setblock.evaluation.sweeps.grid import points_of

        points, limit = points_of(model, grids), requested["limit"]
        requested = {**requested, "seed": self.seed, "batch_size": self.batch_size}
        with nullcontext() if out is None else resumable(), progress() as report:
            return sweep(
                model,
                task,
                points,
                **requested,
                path=out,
                shared=DecodingSettings(max_new_tokens=self.max_new_tokens),
                on_progress=lambda point, done: report(f"{label_of(point)} of {len(points) + 1} settings", done, limit),
            )


@option_group("Grid")
class GridOptions:
    """The options of a sweep's operating points."""

    methods: list[str] | None = optional(
        "sbd or exact. Can be repeated. Default: both. ntp always runs once.", "--method"
    )
    samplers: list[str] | None = optional(
        f"A sampler to sweep in method sbd: {', '.join(SAMPLERS)}. Can be repeated. Default: entropy-prefix.",
        "--sampler",
        metavar="NAME",
    )
    grid: list[str] | None = optional(
        f"Values of a sampler's parameter (factor=0.5,1), or of {' or '.join(name for name in POINT if name != 'sampler')}. "
        "Can be repeated. All combinations are decoded. Default: several values of each sampler's main parameter.",
        metavar="KEY=V,V,...",
    )
    grid_file: Path | None = optional(
        "A YAML file with a list of grids, such as `- {sampler: factor, factor: [0.5, 1], block_size: [4, 16]}`. "
        "Replaces the other options of this group.",
    )

    def grids(self) -> "list[Grid]":
        """Return the grids. Raise `SetBlockError` if an option is malformed or has an unknown name."""
        from setblock.evaluation.sweeps.grid import DEFAULT_SAMPLER, METHODS, grids_of, read_grids

        if self.grid_file is not None:
            if self.methods or self.samplers or self.grid:
                raise ParameterError("--grid-file takes the place of --method, --sampler and --grid")
            grids = read_grids(self.grid_file)
            for name in (each for grid in grids for each in grid.get("sampler", ())):
                with_own_sampler(name)
            return grids
        for name in self.samplers or ():
            with_own_sampler(name)
        given = key_values("--grid", self.grid)
        for key, listed in given.items():
            if not all(listed.split(",")):
                raise ParameterError(f"--grid {key} must have values, such as factor=0.5,1, not {listed!r}")
        values = {key: [each.strip() for each in listed.split(",")] for key, listed in given.items()}
        return grids_of(self.methods or METHODS, self.samplers or [DEFAULT_SAMPLER], values)
