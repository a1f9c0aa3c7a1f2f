"""Copy, reverse, sort, shuffle or change a list of names, after ParallelBench's waiting lines (arXiv 2510.04767).

Trivial one token at a time, and what breaks when tokens are chosen apart from each other: where several answers are right, each
place may have any name but not all places the same one. Knows how a line is written and what is right.
"""

import random
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Literal, get_args

from setblock.data.tasks.task import Example, Split, Task, Verdict, drawn
from setblock.data.tasks.word_problems import PEOPLE

Operation = Literal["copy", "reverse", "sort", "shuffle", "replace", "insert", "remove"]
OPERATIONS: tuple[Operation, ...] = get_args(Operation)

_SHORTEST, _LONGEST = 4, 10

_ASKED = {
    "copy": "Write the line as it is.",
    "reverse": "Write the line from the last one to the first.",
    "sort": "Write the line in alphabetical order.",
    "shuffle": "Write the same people in another order, whichever.",
    "replace": "{newcomer} takes the place of one of them, whoever it is. Write the new line.",
    "insert": "{newcomer} joins them, at whichever place. Write the new line.",
    "remove": "One of them leaves, whoever it is. Write the new line.",
}

_TOLD = {
    "copy": "as it is",
    "reverse": "from its end",
    "sort": "in alphabetical order",
    "shuffle": "in another order, whichever",
    "replace": "a name in the place of any other",
    "insert": "one more name, anywhere",
    "remove": "any name left out",
}


@dataclass(frozen=True)
class WaitingLine(Example):
    """Hold a line and what is to become of it. `newcomer` is a name that is not in it."""

    operation: Operation = "copy"
    line: tuple[str, ...] = ()
    newcomer: str = ""

    def is_right(self, written: Sequence[str]) -> bool:
        """Return whether a line is one that was asked for."""
        line, written = list(self.line), list(written)
        shorter, longer = sorted((line, written), key=len)
        one_more = len(longer) == len(shorter) + 1
        if self.operation == "copy":
            return written == line
        if self.operation == "reverse":
            return written == line[::-1]
        if self.operation == "sort":
            return written == sorted(line)
        if self.operation == "shuffle":
            return Counter(written) == Counter(line) and written != line
        if self.operation == "replace":
            changed = [new for old, new in zip(line, written, strict=False) if old != new]
            return len(written) == len(line) and changed == [self.newcomer]
        places = [place for place in range(len(longer)) if longer[:place] + longer[place + 1 :] == shorter]
        if self.operation == "insert":
            return one_more and longer is written and any(written[place] == self.newcomer for place in places)
        return one_more and longer is line and bool(places)


def waiting_lines(operation: Operation, split: Split, seed: int = 0) -> Iterator[WaitingLine]:
    """Yield examples of one operation. A line is of one split, whatever is to be done with it."""
    return drawn(partial(_write, operation), split, key=f"line-{operation}-{split}-{seed}")


def names_in(answer: str) -> list[str]:
    """Return the names of an answer's first line, in order: separated by commas, the full stop at the end left out."""
    first = next((line for line in answer.splitlines() if line.strip()), "")
    return [name.strip() for name in first.strip().removesuffix(".").split(",")]


def _write(operation: Operation, rng: random.Random) -> WaitingLine:
    *line, newcomer = rng.sample(PEOPLE, rng.randint(_SHORTEST, _LONGEST) + 1)
    requested = _ASKED[operation].format(newcomer=newcomer)
    answer = _done(operation, line, newcomer, rng)
    return WaitingLine(
        question=f"These people wait in a line: {', '.join(line)}. {requested}",
        answer=", ".join(answer),
        identity=" ".join(line),
        operation=operation,
        line=tuple(line),
        newcomer=newcomer,
    )


def _done(operation: Operation, line: list[str], newcomer: str, rng: random.Random) -> list[str]:
    place = rng.randrange(len(line))
    if operation == "shuffle":
        shuffled = rng.sample(line, len(line))
        return shuffled if shuffled != line else [*line[1:], line[0]]
    if operation == "insert":
        place = rng.randrange(len(line) + 1)
        return [*line[:place], newcomer, *line[place:]]
    return {
        "copy": line,
        "reverse": line[::-1],
        "sort": sorted(line),
        "replace": [*line[:place], newcomer, *line[place + 1 :]],
        "remove": [*line[:place], *line[place + 1 :]],
    }[operation]


def _judge(example: WaitingLine, answer: str) -> Verdict:
    return Verdict(example.is_right(names_in(answer)))


TASKS = tuple(
    Task(f"line-{operation}", f"a waiting line of names: {_TOLD[operation]}", partial(waiting_lines, operation), _judge)
    for operation in OPERATIONS
)
