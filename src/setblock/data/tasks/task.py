"""What a task is: examples to answer, and, where somebody can say so, what is right.

Knows the shape of a task. Knows nothing of any task in particular, of models, or of how a program is run.
"""

import random
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Generic, TypeVar

from setblock.data.splits import SPLITS, Split, split_of
from setblock.errors import ParameterError

Message = dict[str, str]
_FRUITLESS = 20_000  # so many drawn in a row, and none of them new: there are no more


@dataclass(frozen=True)
class Example:
    """One thing to answer. Tasks derive from it to add what their check needs.

    Attributes:
        question: what a user asks, as plain text.
        answer: a right answer, of which there may be others; or how a text goes on. None where nobody wrote one.
        identity: two examples of one identity are never in different splits; empty where a task has one split.
    """

    question: str
    answer: str | None = None
    identity: str = ""

    @property
    def messages(self) -> list[Message]:
        """The chat that asks it, `role` and `content` each; the answer is the assistant's next message."""
        return [{"role": "user", "content": self.question}]

    @property
    def prompt(self) -> str:
        """The same as a text to go on with, for models without a chat template. The template of tokenizers that are trained
        here writes the same."""
        return f"Question: {self.question}\nAnswer:"

    @property
    def completion(self) -> str | None:
        """The answer as it goes on after `prompt`."""
        return None if self.answer is None else f" {self.answer}"

    @property
    def record(self) -> dict[str, Any]:
        """The record that a model is trained on, in one of the shapes of `setblock.data.encoding`."""
        return {"prompt": self.prompt, "completion": self.completion}


@dataclass(frozen=True)
class ChatExample(Example):
    """An example that is trained on as a chat, written by the tokenizer's own template."""

    @property
    def record(self) -> dict[str, Any]:
        """The chat with its answer."""
        return {"messages": [*self.messages, {"role": "assistant", "content": self.answer}]}


@dataclass(frozen=True)
class TextExample(Example):
    """A text to go on with, as it stands."""

    @property
    def prompt(self) -> str:
        """The text."""
        return self.question

    @property
    def completion(self) -> str | None:
        """How it goes on."""
        return self.answer


@dataclass(frozen=True)
class Verdict:
    """What an answer scores.

    Attributes:
        right: whether it is right as a whole; `accuracy` is the share of these.
        scores: further scores by name, in 0..1; every verdict of a task has the same names.
    """

    right: bool
    scores: Mapping[str, float] = field(default_factory=dict)


@dataclass(frozen=True)
class Program:
    """Python that runs to its end only if the answer in it is right. It is run in the sandbox, never in this process."""

    source: str


E = TypeVar("E", bound=Example)


@dataclass(frozen=True)
class Task(Generic[E]):
    """A source of examples, and how their answers are judged.

    Attributes:
        name: on the command line and in recipes.
        asks: what is asked, in a few words.
        generate: of a split and a seed, the examples, in an order that is always the same. There may be no end of them.
        judge: what an answer's text scores, or the program that tells; None where there is no one right answer. Then answers
            are only compared with plain decoding's, token for token and by how likely the model finds them.
        runs_code: whether `judge` gives programs.
        raw: whether the prompt is a text to go on with as it stands, whatever chat template a model has.
        splits: those that it has.
    """

    name: str
    asks: str
    generate: Callable[[Split, int], Iterator[E]]
    judge: Callable[[E, str], Verdict | Program] | None = None
    runs_code: bool = False
    raw: bool = False
    splits: tuple[Split, ...] = SPLITS

    def examples(self, split: str = "test", *, seed: int = 0) -> Iterator[E]:
        """The examples of a split; another seed gives others of the same split, where there are others.

        Raises:
            ParameterError: the task has no such split.
        """
        for known in self.splits:
            if known == split:
                return self.generate(known, seed)
        one_of = "one of " if len(self.splits) > 1 else ""
        raise ParameterError(f"split of {self.name} must be {one_of}{', '.join(self.splits)}, not {split!r}")


def drawn(write: Callable[[random.Random], E | None], split: Split, *, key: str) -> Iterator[E]:
    """Distinct examples of one split, the same for the same key, until `write` gives no new ones.

    Args:
        write: writes one example, of whichever split, from what it draws; None where the draw gives none.
        key: another key gives other examples; it should hold the split and the seed.
    """
    rng = random.Random(key)
    seen: set[str] = set()
    fruitless = 0
    while fruitless < _FRUITLESS:
        fruitless += 1
        example = write(rng)
        if example is not None and split_of(example.identity) == split and example.question not in seen:
            seen.add(example.question)
            fruitless = 0
            yield example
