"""Define the options that say which examples a model is asked: those of a task, or the records of a file."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, ClassVar

from setblock.cli.messages import progress
from setblock.cli.options.decoding_options import setting_option
from setblock.cli.options.groups import TASK, option, option_group
from setblock.data.tasks import TASKS, task_named
from setblock.data.tasks.task import Split
from setblock.decoding.settings.operating_point import label_of
from setblock.decoding.settings.table import DecodingSettings
from setblock.errors import ParameterError
from setblock.evaluation.judging.judges import DEFAULT_JUDGE, JUDGES

if TYPE_CHECKING:
    from setblock.data.tasks import Task
    from setblock.evaluation.result import Result
    from setblock.model.sbd_model import SBDModel

DEFAULT_TASK = "word-problems"
BatchSizeOption = Annotated[
    int,
    option(
        ...,
        "Number of examples decoded at once, at least 1. It changes no answer and no count.",
        "--batch-size",
        panel=TASK,
    ),
]


def limit_option(usual: int) -> Any:
    """Return the option of how many examples are asked."""
    return option(None, f"Number of examples, at least 1. Default: {usual}, or all records of --input.", panel=TASK)


def split_option(usual: Split) -> Any:
    """Return the option of the split."""
    told = "The split of a task's examples: test for results, validation for choosing settings."
    return option(None, f"{told} Default: {usual}.", panel=TASK)


@option_group(TASK)
class ExamplesOptions:
    """Hold which examples a model is asked, and how its answers are judged."""

    usual_limit: ClassVar[int] = 100
    usual_split: ClassVar[Split] = "test"

    task: str | None = option(
        None,
        f"The task: {', '.join(TASKS)}, or a Python file of your own: FILE or FILE:NAME. Default: {DEFAULT_TASK}.",
        metavar="NAME",
    )
    source: Path | None = option(
        None,
        'Ask the records of a file instead of a task. Each line is {"prompt": "..."}, with or without a "completion", or '
        '{"messages": [...]}. The completion, or an assistant\'s message at the end, is the right answer.',
        "--input",
    )
    judge: str | None = option(
        None,
        f"With --input: how an answer is compared with the right one: {', '.join(JUDGES)}. Default: {DEFAULT_JUDGE}, if the "
        "file has right answers.",
        metavar="NAME",
    )
    raw: bool = option(False, "With --input: continue prompts as plain text, without the chat template.")
    allow_code_execution: bool = option(
        False,
        "Run the programs that the model writes for a coding task: in bubblewrap, or, where that is not installed, with limits "
        "on time and memory alone.",
    )
    split: Split | None = split_option("test")
    limit: int | None = limit_option(100)

    def chosen(self) -> "tuple[Task[Any], Split, int]":
        """Return the task, its split and how many examples of it are asked.

        Raises:
            SetBlockError: there is no such task or file, options exclude each other, or answers can't be judged here.
        """
        from setblock.evaluation.judging.judges import check_judge

        if self.source is None:
            for name, given in (("judge", self.judge), ("raw", self.raw)):
                if given:
                    raise ParameterError(f"--{name} needs --input: a task has its own way to ask and to judge")
            task = task_named(self.task or DEFAULT_TASK)
            check_judge(task, allow_code_execution=self.allow_code_execution)
            return task, self.split or self.usual_split, self.usual_limit if self.limit is None else self.limit
        from setblock.evaluation.judging.records_task import task_of_records

        for name, other in (("task", self.task), ("split", self.split)):
            if other is not None:
                raise ParameterError(f"--{name} and --input exclude each other: a file is no task, and has no splits")
        task = task_of_records(self.source, judge=self.judge, raw=self.raw)
        count = sum(1 for _ in task.examples("test"))
        return task, "test", count if self.limit is None else min(self.limit, count)


@option_group(TASK)
class TaskOptions(ExamplesOptions):
    """Hold which examples a sweep or a calibration asks, and how they are decoded together."""

    seed: int = option(
        0,
        "Seed that chooses the examples of the split. A calibration also draws from it the examples that determine "
        "the order of its tests.",
    )
    batch_size: BatchSizeOption = 100  # a sweep answers many examples: wide batches waste least
    max_new_tokens: int | None = setting_option("max_new_tokens")

    def swept(
        self,
        model: "SBDModel",
        task: "Task[Any]",
        points: list[DecodingSettings],
        *,
        split: str,
        limit: int,
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
                limit=limit,
                batch_size=self.batch_size,
                allow_code_execution=self.allow_code_execution,
                on_progress=lambda point, done: tell(f"{label_of(point)} of {len(points) + 1} settings", done, limit),
            )
