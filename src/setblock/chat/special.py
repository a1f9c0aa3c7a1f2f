"""Marks that keep the text of a chat apart from what its template writes, where that text spells special tokens.

`apply_chat_template(sanitize_control_tokens=True)` of Transformers does the same since 5.20, but returns no text in
which training could find the answers, and does not sanitise keys of objects.
"""

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from transformers import PreTrainedTokenizerBase

from setblock.chat.messages import Chat, strings_of
from setblock.errors import SetBlockError

Segment = tuple[str, bool]
"""A piece of text, and whether it is plain text only: then the name of a special token in it is not that token."""

_USUAL_ROLES = {"system", "developer", "user", "assistant", "tool", "function"}


_NEVER = re.compile(r"(?!)")


@dataclass(frozen=True)
class Marks:
    """The marks of a chat. Each special token that the chat spells as plain text has a mark behind its first
    character."""

    mark: re.Pattern[str] = _NEVER
    token: re.Pattern[str] = _NEVER  # with its mark; or a mark alone, where the template cut the token

    def segments(self, text: str) -> list[Segment]:
        """Return the segments of a text that a template wrote, without the marks."""
        found, here = list[Segment](), 0
        for match in self.token.finditer(text):
            found += [(text[here : match.start()], False), (self.removed(match[0]), True)]
            here = match.end()
        return [segment for segment in [*found, (text[here:], False)] if segment[0]]

    def removed(self, text: str) -> str:
        """Return a text without marks."""
        return self.mark.sub("", text)

    def blanked(self, text: str) -> str:
        """Return a text of the same length with spaces in place of marked tokens."""
        return self.token.sub(lambda match: " " * len(match[0]), text)


NO_MARKS = Marks()
"""The marks of a chat that spells no special token."""


def special_tokens(tokenizer: PreTrainedTokenizerBase) -> re.Pattern[str]:
    """Return a pattern of the special tokens' spellings, the longest first. It matches nothing if there are no special
    tokens."""
    return re.compile("|".join(map(re.escape, _spelled(tokenizer))) or r"(?!)")


def _spelled(tokenizer: PreTrainedTokenizerBase) -> list[str]:
    added = [token.content for token in tokenizer.added_tokens_decoder.values() if token.special and token.content]
    return sorted({*added, *tokenizer.all_special_tokens}, key=lambda token: (-len(token), token))


def held_apart(tokenizer: PreTrainedTokenizerBase, chat: Chat) -> tuple[Chat, Marks]:
    """Return a chat with a mark inside each special token that it spells, in any field, and the marks. The mark is a
    character that neither the chat nor a special token contains, so that the chat can't forge one. Raise
    `SetBlockError` for a role that a template could turn into a special token, and where no character is left."""
    special, template = special_tokens(tokenizer), tokenizer.get_chat_template(tools=chat.tools)
    for role in {message["role"] for message in chat.messages} - _USUAL_ROLES:
        is_named = f"'{role}'" in template or f'"{role}"' in template
        if not is_named and any(role in token and role != token for token in _spelled(tokenizer)):
            raise SetBlockError(f"role must not be a part of a special token's name, as {role!r} is")
    texts = [*strings_of(chat.messages), *strings_of(chat.tools)]
    if not any(map(special.search, texts)):
        return chat, NO_MARKS
    taken = "\0".join([*texts, special.pattern, template])
    here, lower = set(taken), taken.lower()
    free = (chr(code) for code in range(0xE000, 0xF900))  # for private use
    mark = next((each for each in free if each not in here and _escaped(each) not in lower), None)
    if mark is None:
        raise SetBlockError("the chat has all characters for private use: leave some out")
    marked = replace(chat, messages=_marked(chat.messages, special, mark), tools=_marked(chat.tools, special, mark))
    found = f"(?:{mark}|(?i:{re.escape(_escaped(mark))}))"  # a template may write JSON in ASCII, and the mark with it
    tokens = (f"{re.escape(token[:1])}{found}{re.escape(token[1:])}" for token in _spelled(tokenizer))
    return marked, Marks(re.compile(found), re.compile("|".join([*tokens, found])))


def _escaped(character: str) -> str:
    return json.dumps(character)[1:-1]


def _marked(value: Any, special: re.Pattern[str], mark: str) -> Any:
    if isinstance(value, str):
        return special.sub(lambda match: f"{match[0][:1]}{mark}{match[0][1:]}", value)
    if isinstance(value, Mapping):
        return {_marked(key, special, mark): _marked(each, special, mark) for key, each in value.items()}
    return [_marked(each, special, mark) for each in value] if isinstance(value, list | tuple) else value
