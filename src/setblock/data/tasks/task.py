"""The definition of a task, which has examples to answer, and a judge if there are right answers."""

import hashlib
import random
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Generic, Literal, TypeVar

from setblock.errors import ParameterError

Split = Literal["train", "validation", "test"]
SPLITS: tuple[Split, ...] = ("train", "validation", "test")

_HELD_OUT_PERCENT = 5  # of all identities, for each of validation and test


def split_of(identity: str) -> Split:
    """Return the split of this identity. It depends on the text only, so that no two splits can share an identity."""
    bucket = int.from_bytes(hashlib.sha256(identity.encode()).digest()[:4]) % 100
    if bucket < _HELD_OUT_PERCENT:
        return "test"
    return "validation" if bucket < 2 * _HELD_OUT_PERCENT else "train"


Message = dict[str, str]
_FRUITLESS = 20_000  # draws in a row without a new example, after which there are no more


@dataclass(frozen=True)
class Example:
    """One example: the user's `question`, as plain text, and one right `answer`, or the continuation of a text; None if
    the task has no answers. Examples with the same `identity` are always in the same split; it is empty if a task has
    one split. Tasks derive from this class to add the fields that their judge needs."""

    question: str
    answer: str | None = None
    identity: str = ""

    @property
    def messages(self) -> list[Message]:
        """Return the question as chat messages with `role` and `content`. The answer is the assistant's next message."""
        return [{"role": "user", "content": self.question}]

    @property
    def prompt(self) -> str:
        """Return the question as a text to continue, as the template of tokenizers that are trained here writes it."""
        return f"Question: {self.question}\nAnswer:"

    def requested(self, *, raw: bool) -> str | list[Message]:
        """Return a model's input: the text to continue if `raw`, else the messages."""
        return self.prompt if raw else self.messages

    @property
    def completion(self) -> str | None:
        """Return the answer as the continuation of `prompt`."""
        return None if self.answer is None else f" {self.answer}"

    @property
    def record(self) -> dict[str, Any]:
        """Return the record to train on, in one of the shapes of `setblock.data.texts.encoding`."""
        return {"prompt": self.prompt, "completion": self.completion}


@dataclass(frozen=True)
class ChatExample(Example):
    """An example that training uses as a chat, with the tokenizer's template."""

    @property
    def record(self) -> dict[str, Any]:
        """Return the chat with its answer."""
        return {"messages": [*self.messages, {"role": "assistant", "content": self.answer}]}


@dataclass(frozen=True)
class TextExample(Example):
    """A text to continue."""

    @property
    def prompt(self) -> str:
        """Return the text."""
        return self.question

    @property
    def completion(self) -> str | None:
        """Return the continuation of the text."""
        return self.answer


@dataclass(frozen=True)
class Verdict:
    """The judgement of an answer: whether it is `right` as a whole (`accuracy` is the share of right answers), and
    further `scores` by name, in 0..1. All verdicts of a task have the same names."""

    right: bool
    scores: Mapping[str, float] = field(default_factory=dict)


E = TypeVar("E", bound=Example)


@dataclass(frozen=True)
class Task(Generic[E]):
    """A source of examples with a judge of their answers.

    Attributes:
        name: its name on the command line and in recipes.
        asks: a short description.
        generate: of a split and a seed, the examples, in an order that is always the same. There may be no end of them.
        judge: what an answer's text scores; None where there is no one right answer. Then answers are only compared with plain
            decoding's, token for token.
        runs_code: whether `judge` runs programs that the model writes, in processes of their own. It is called only if the user
            allows that, and from several threads.
        check: raises `SetBlockError` if answers can't be judged on this machine. Called before anything is decoded.
        raw: whether the prompt is a text to continue without any chat template.
        splits: the splits of the task.
    """

    name: str
    asks: str
    generate: Callable[[Split, int], Iterator[E]]
    judge: Callable[[E, str], Verdict] | None = None
    runs_code: bool = False
    check: Callable[[], None] | None = None
    raw: bool = False
    splits: tuple[Split, ...] = SPLITS

    def examples(self, split: str = "test", *, seed: int = 0) -> Iterator[E]:
        """Return the examples of a split. Another seed gives other examples of the same split, if there are more. Raise
        `ParameterError` if the task has no such split."""
        if split in self.splits:
            return self.generate(split, seed)
        one_of = "one of " if len(self.splits) > 1 else ""
        raise ParameterError(f"split of {self.name} must be {one_of}{', '.join(self.splits)}, not {split!r}")


def drawn(write: Callable[[random.Random], E | None], split: Split, *, key: str) -> Iterator[E]:
    """Yield distinct examples of one split, the same for the same key, which should contain the split and the seed.
    `write` makes an example, of any split, from a random generator, or returns None. The examples end when it gives no
    new ones."""
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
