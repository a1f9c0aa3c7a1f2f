"""A check that a template wrote all that a chat says: a template silently leaves out what it has no place for.

Reasoning in front of an answer is the exception: most templates leave it out of earlier turns on purpose.
"""

import json
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from setblock.chat.messages import Chat, arguments_of
from setblock.chat.template import TemplateForm

CONTENT = "the content"
_THOUGHT = "</think>"


class LeftOut(NamedTuple):
    """A part of a chat that its template left out."""

    role: str | None  # of the message; None for a tool
    is_content: bool  # a message's content, and no call
    what: str  # in words


def left_out(chat: Chat, written: str, form: TemplateForm) -> Iterator[LeftOut]:
    """Yield the parts of a chat that are not in the text its template wrote. A part counts as written also where white
    space differs, or where it is escaped, once or twice, as in JSON or as a Python literal. Calls are always yielded if the
    template is known to leave them out."""
    known = _Written(written)
    for number, message in enumerate(chat.messages, start=1):
        for what, text in said(message):
            if text not in known or (what.startswith("the call") and form.leaves_out_calls):
                role = message["role"]
                yield LeftOut(role, what == CONTENT, f"{what} of message {number} ({role})")
    for tool in chat.tools or ():
        if tool["function"]["name"] not in known:
            yield LeftOut(None, False, f"the tool {tool['function']['name']!r}")


def said(message: Mapping[str, Any], *, with_reasoning: bool = False) -> Iterator[tuple[str, str]]:
    """Yield the texts of a message of a `Chat`, each after its name in words: its content, and the names and arguments
    of its calls. The reasoning in front of an assistant's content is included only if requested."""
    content = message["content"]
    if message["role"] == "assistant":
        thought, _, content = content.rpartition(_THOUGHT)
        if with_reasoning:
            yield "the reasoning", thought.rpartition("<think>")[2]
    yield CONTENT, content
    for call in message.get("tool_calls", ()):
        name = call["function"]["name"]
        yield f"the call of {name!r}", name
        for text in _leaves(arguments_of(call)):
            yield f"the arguments of {name!r}", text


def is_written(text: str, written: str) -> bool:
    """Return whether a template's text contains another, up to white space and JSON's escapes."""
    return text in _Written(written)


class _Written:
    """A text that a template wrote."""

    def __init__(self, text: str) -> None:
        self._text, self._even = text, ""

    def __contains__(self, text: str) -> bool:
        if not (text := text.strip()) or text in self._text:
            return True
        self._even = self._even or " ".join(self._text.split())
        once = json.dumps(text, ensure_ascii=False)[1:-1]
        forms = (text, once, json.dumps(once, ensure_ascii=False)[1:-1], json.dumps(text)[1:-1], repr(text)[1:-1])
        return any(" ".join(each.split()) in self._even for each in forms)


def _leaves(value: Any) -> Iterator[str]:
    """Yield the texts and numbers of arguments, and their keys."""
    if isinstance(value, Mapping):
        for key, each in value.items():
            yield key
            yield from _leaves(each)
    elif isinstance(value, Sequence) and not isinstance(value, str):
        for each in value:
            yield from _leaves(each)
    elif not isinstance(value, bool | None):
        yield str(value)
