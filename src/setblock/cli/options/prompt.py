"""Read what a model is asked: the PROMPT argument, and a system message."""

import sys
from typing import TYPE_CHECKING

from setblock.cli.options.groups import DECODING, option, option_group, optional
from setblock.errors import ParameterError, SetBlockError

if TYPE_CHECKING:
    from setblock.decoding.answer.text import Prompt


@option_group(DECODING)
class PromptOptions:
    """Hold how a prompt is given to the model."""

    raw: bool = option(False, "Continue the prompt as plain text, without the chat template.", is_rare=True)
    system: str | None = optional("System message before the prompt.", metavar="TEXT")

    def asked(self, prompt: str | None) -> "Prompt | None":
        """Return what the model is asked; None if no PROMPT is given. Raise `SetBlockError` if options exclude each other, or
        the text is not valid UTF-8."""
        if self.raw and self.system is not None:
            raise ParameterError("--raw has no place for a system message: leave out --system")
        return None if prompt is None else self.with_system(read_prompt(prompt))

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


def shown(prompt: "Prompt") -> str:
    """Return a prompt as text for a report: of a chat, each message with its role."""
    if isinstance(prompt, str):
        return prompt
    return "\n".join(f"{each['role']}: {each['content']}" for each in prompt)  # type: ignore[index]
