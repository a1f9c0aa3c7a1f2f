"""Read what a model is asked: the PROMPT argument, a system message, or a chat in a file."""

import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

from setblock.cli.options.groups import DECODING, option, option_group
from setblock.engine.files import chat_at
from setblock.errors import ParameterError, SetBlockError
from setblock.files import read_text

if TYPE_CHECKING:
    from setblock.decoding.answer.text import Prompt


@option_group(DECODING)
class PromptOptions:
    """Hold how a prompt is given to the model."""

    raw: bool = option(False, "Continue the prompt as plain text, without the chat template.", is_rare=True)
    system: str | None = option(None, "System message before the prompt.", metavar="TEXT")
    messages: Path | None = option(
        None,
        'Answer the chat in this JSON file instead of PROMPT: [{"role": "user", "content": "..."}, ...]. The last message is '
        "the one to answer.",
    )

    def asked(self, prompt: str | None) -> "Prompt | None":
        """Return what the model is asked; None if neither PROMPT nor a chat is given. Raise `SetBlockError` if options exclude
        each other, the file is no chat, or a text is not valid UTF-8."""
        if self.raw and (self.system is not None or self.messages is not None):
            raise ParameterError("--raw has no place for messages: leave out --system and --messages")
        if self.messages is None:
            return None if prompt is None else self.with_system(read_prompt(prompt))
        if prompt is not None or self.system is not None:
            raise ParameterError("--messages takes the place of PROMPT and --system: write them into the file")
        return read_chat(self.messages)

    def with_system(self, prompt: str) -> "Prompt":
        """Return a text with the system message before it, if there is one."""
        if self.system is None:
            return prompt
        return [{"role": "system", "content": self.system}, {"role": "user", "content": prompt}]


def read_prompt(argument: str) -> str:
    """Return the text of the PROMPT argument: itself, or stdin's where it is `-`. Raise `SetBlockError` if it is not valid
    UTF-8, or stdin is closed."""
    if argument == "-" and sys.stdin is None:
        raise SetBlockError("stdin is closed, so that no prompt could be read from it")
    try:
        # Bytes, since how stdin is decoded depends on the locale.
        text = sys.stdin.buffer.read().decode("utf-8-sig") if argument == "-" else argument
        text.encode()  # bytes of an argument that are not UTF-8 come as lone surrogates
    except UnicodeError as error:
        raise SetBlockError("prompt must be valid UTF-8") from error
    return text


def read_chat(path: Path) -> list[dict[str, Any]]:
    """Return the messages of a JSON file: a list, or an object with the list under `messages`. Raise `SetBlockError` if the
    file can't be read, or holds no chat that can be answered."""
    text = read_text(path)
    try:
        found = json.loads(text)
    except ValueError as error:
        raise SetBlockError(f"{path} is not JSON ({error}): write a list of messages with role and content") from error
    return chat_at(found.get("messages") if isinstance(found, dict) else found, str(path))


def shown(prompt: "Prompt") -> str:
    """Return a prompt as text for a report: of a chat, each message with its role."""
    if isinstance(prompt, str):
        return prompt
    return "\n".join(f"{each['role']}: {each['content']}" for each in prompt)  # type: ignore[index]
