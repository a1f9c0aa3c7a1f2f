"""Read lines of prompts, and write lines of their answers as they come, to a file or to stdout.

Knows lines and files. Knows nothing of how answers are made, and imports no PyTorch.
"""

import json
from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from setblock.errors import SetBlockError
from setblock.files import whole_lines, write_whole, writing


@dataclass(frozen=True)
class PromptLine:
    """Hold a line of the file."""

    where: str  # the file and the line, for messages
    number: int  # of the line, from 1
    id: str | int | None  # what the line calls itself, if anything
    prompt: str | list[int] | list[dict[str, Any]]  # a text or chat messages, as `setblock.generate` takes them


def read_prompts(text: str, *, name: str) -> list[PromptLine]:
    """Return the lines of the file `name`, but empty ones. Raise `SetBlockError`, which names a line that is no prompt."""
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
        found = json.loads(content)
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
        from setblock.decoding.answer.text import messages_at

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
"""Line of the prompt, and number of the sample."""


class AnswerFile:
    """Collect answers for the file `path`. Until all are there they are in `path` + `.part`, in the order in which they
    came, behind a line that says how they are made; a run that is made otherwise does not continue them."""

    def __init__(self, path: Path, *, made: dict[str, Any]) -> None:
        """Open the part. Raise `SetBlockError` if a whole file exists, a part was made otherwise, or there is no folder."""
        self.path, self.part = path, path.with_name(f"{path.name}.part")
        if path.exists():
            raise SetBlockError(f"{path} exists already: name another file, or move it away")
        header = json.dumps(made, sort_keys=True)
        with writing(self.part):
            found, *lines = whole_lines(self.part) or [b""]
            if found.decode() not in ("", header):
                raise SetBlockError(
                    f"{self.part} was made with other prompts, settings or model: delete it to start again"
                )
            self._file = open(self.part, "ab")  # noqa: SIM115  # closed by `close`
        if not found:
            self._write(header)
        self.done: set[Key] = {(answer["line"], answer["sample"]) for answer in map(json.loads, lines)}

    def add(self, key: Key, answer: dict[str, Any]) -> None:
        """Write an answer. It is there, or it is not, whenever the program ends."""
        self._write(_written(key, answer))
        self.done.add(key)

    def _write(self, line: str) -> None:
        self._file.write(line.encode() + b"\n")
        self._file.flush()

    def finish(self) -> None:
        """Sort the answers, which are all there, by their prompts, and give the file its name."""
        _, *lines = self.part.read_text().splitlines()
        ordered = sorted(map(json.loads, lines), key=lambda answer: (answer["line"], answer["sample"]))
        write_whole(self.path, "".join(json.dumps(answer) + "\n" for answer in ordered))
        self.part.unlink()

    def close(self) -> None:
        """Close the part, which a later run may continue."""
        self._file.close()


class AnswerPipe:
    """Write answers to stdout, in the order of their keys: each as soon as those before it are there."""

    def __init__(self, keys: Iterable[Key]) -> None:
        self.done: set[Key] = set()
        self._open = deque(keys)
        self._waiting: dict[Key, str] = {}

    def add(self, key: Key, answer: dict[str, Any]) -> None:
        """Write an answer, now or later."""
        self._waiting[key] = _written(key, answer)
        self.done.add(key)
        while self._open and self._open[0] in self._waiting:
            print(self._waiting.pop(self._open.popleft()), flush=True)

    def finish(self) -> None:
        """Do nothing: all is written."""


def _written(key: Key, answer: dict[str, Any]) -> str:
    return json.dumps({"line": key[0], "sample": key[1], **answer})
