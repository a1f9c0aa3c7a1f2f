"""Read a JSONL file of prompts."""

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from setblock.errors import SetBlockError
from setblock.files import read_text


@dataclass(frozen=True)
class PromptLine:
    """Hold a line of the file.

    Attributes:
        where: the file and the line, for messages.
        number: of the line, from 1.
        id: what the line calls itself, if anything.
        prompt: a text or chat messages, as `setblock.generate` takes them.
    """

    where: str
    number: int
    id: str | int | None
    prompt: str | list[int] | list[dict[str, Any]]


def read_prompts(path: Path) -> list[PromptLine]:
    """Return all lines of the file; empty ones are left out.

    Raises:
        SetBlockError: there is no such file, or a line of it is no prompt; the message names the line.
    """
    lines = [
        _line(content, number, f"{path}, line {number}")
        for number, content in enumerate(read_text(path).split("\n"), start=1)
        if content.strip()
    ]
    if not lines:
        raise SetBlockError(f"{path} has no prompts: write one object per line, with the key prompt or messages")
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
        return PromptLine(where, number, name, _messages(found["messages"], where))
    prompt = found["prompt"]
    is_ids = isinstance(prompt, list) and bool(prompt) and all(type(each) is int for each in prompt)
    if not is_ids and not (isinstance(prompt, str) and prompt.strip()):
        raise SetBlockError(f"{where}: prompt must be a text that is not empty, or token ids, not {prompt!r}")
    return PromptLine(where, number, name, prompt)


def _messages(found: Any, where: str) -> list[dict[str, Any]]:
    from setblock.decoding.answer.text import messages_at

    chat = messages_at(found, where)
    if chat[-1]["role"] == "assistant":
        raise SetBlockError(f"{where}: messages end in an assistant's message: the last one must be one to answer")
    return chat
