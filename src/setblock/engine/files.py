"""Files of prompts and of answers: read lines of prompts, and write lines of answers as they come, to a file or to stdout.

Imports no PyTorch, so that a mistake in a file of prompts is reported at once.
"""

from collections import deque
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from setblock.errors import SetBlockError
from setblock.json_lines import PartFile, json_line, read_json


@dataclass(frozen=True)
class PromptLine:
    """A line of a file of prompts."""

    where: str  # the names of the file and the line, for messages
    number: int  # of the line, from 1
    id: str | int | None  # the line's key `id`
    prompt: str | list[int] | list[dict[str, Any]]  # a text or chat messages, as `setblock.generate` takes them


def read_prompts(text: str, *, name: str) -> list[PromptLine]:
    """Return the lines with prompts of the file `name`, whose content is `text`. Empty lines are skipped. Raise
    `SetBlockError`, which names the line, if one is no prompt."""
    lines = [
        _line(content, number, f"{name}, line {number}")
        for number, content in enumerate(text.split("\n"), start=1)
        if content.strip()
    ]
    if not lines:
        raise SetBlockError(f"{name} has no prompts: write one object per line, with the key prompt or messages")
    return lines


def _line(content: str, number: int, where: str) -> PromptLine:
    try:
        found = read_json(content)
    except ValueError as error:
        raise SetBlockError(f"{where} is not JSON ({error}): write one object per line") from error
    if not isinstance(found, dict):
        raise SetBlockError(f"{where} must be an object, not {type(found).__name__}")
    unknown = sorted(found.keys() - {"prompt", "messages", "id"})
    if unknown:
        raise SetBlockError(f"{where}: unknown key {unknown[0]!r}; the keys are prompt, messages and id")
    if ("prompt" in found) == ("messages" in found):
        raise SetBlockError(f"{where} must have either prompt or messages")
    name = found.get("id")
    if not isinstance(name, str | int | None) or isinstance(name, bool):
        raise SetBlockError(f"{where}: id must be a text or a whole number, not {name!r}")
    if "messages" in found:
        from setblock.decoding.answer.prompt import messages_at

        chat = messages_at(found["messages"], where)
        if chat[-1]["role"] == "assistant":
            raise SetBlockError(f"{where}: messages end in an assistant's message: the last one must be one to answer")
        return PromptLine(where, number, name, chat)
    prompt = found["prompt"]
    is_ids = isinstance(prompt, list) and bool(prompt) and all(type(each) is int for each in prompt)
    if not is_ids and not (isinstance(prompt, str) and prompt.strip()):
        raise SetBlockError(f"{where}: prompt must be a text that is not empty, or token ids, not {prompt!r}")
    return PromptLine(where, number, name, prompt)


Key = tuple[int, int]
"""An answer's key: the line of its prompt, and the number of the sample."""


class AnswerFile:
    """The file of answers `path`. Until it has all answers they are in `path` + `.part`, in the order in which they came. A
    later run with the same model and settings continues that file."""

    def __init__(self, path: Path) -> None:
        """Open the partial file, with the errors of `PartFile`."""
        self.path, self.done = path, set[Key]()
        self._file = PartFile(path)

    def begin(self, made: Mapping[str, Any]) -> None:
        """Continue the partial file of an earlier run. Raise `SetBlockError` if that run did not have the same `made`: the
        model and the settings of its answers."""
        self.done = set(map(_key, self._file.begin(made)))

    def add(self, key: Key, answer: dict[str, Any]) -> None:
        """Write an answer. If the program ends meanwhile, the file has the whole line or nothing of it."""
        self._file.add(_record(key, answer))
        self.done.add(key)

    def finish(self) -> None:
        """Sort the answers by their prompts, and give the complete file its name."""
        self._file.finish(partial(sorted, key=_key))

    def close(self) -> None:
        """Close the partial file, which a later run may continue."""
        self._file.close()


class AnswerPipe:
    """Answers on stdout, in the order of their keys. Each is written as soon as all before it are."""

    def __init__(self, keys: Iterable[Key]) -> None:
        self.done: set[Key] = set()
        self._open = deque(keys)
        self._waiting: dict[Key, str] = {}

    def add(self, key: Key, answer: dict[str, Any]) -> None:
        """Write an answer now if all before it are written, and after them otherwise."""
        self._waiting[key] = json_line(_record(key, answer))
        self.done.add(key)
        while self._open and self._open[0] in self._waiting:
            print(self._waiting.pop(self._open.popleft()), end="", flush=True)

    def finish(self) -> None:
        """Do nothing: `add` has written all answers."""


def _record(key: Key, answer: dict[str, Any]) -> dict[str, Any]:
    return {"line": key[0], "sample": key[1], **answer}


def _key(record: Mapping[str, Any]) -> Key:
    return record["line"], record["sample"]
