"""Find how a model's chat template writes calls of tools, write their grammar, and read calls from a growing text.

Knows chat templates and texts. Knows nothing of models or HTTP. No family of models is named here: a template is shown a call,
and what it makes of it is how its model was taught to call.
"""

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from jinja2 import TemplateError
from transformers import PreTrainedTokenizerBase

from setblock.errors import SetBlockError, prefixed
from setblock.structure.kinds import WRITTEN, Grammar

_NAME, _KEY, _VALUE = "name_of_a_tool", "key_of_it", "value_of_it"
_ARGUMENTS = {"type": "object", "properties": {_KEY: {"type": "string"}}, "required": [_KEY]}
_TOOL = {"type": "function", "function": {"name": _NAME, "description": "-", "parameters": _ARGUMENTS}}


@dataclass(frozen=True)
class CallForm:
    """Describe how calls are written: `before` NAME `between` ARGUMENTS `after`, and between two calls a `separator`."""

    before: str
    between: str
    after: str
    separator: str | None  # None where the template has no place for two
    special: Mapping[str, int]  # the ids of special tokens in these, which the text of an answer leaves out

    def grammar(self, parameters: Mapping[str, Any], *, required: bool, parallel: bool) -> Grammar:
        """Return the grammar of answers that call, or may call, tools: JSON schemas of their arguments by the tools' names."""
        calls = " | ".join(f"call_{number}" for number in range(len(parameters)))
        many = self.separator is not None and parallel
        if required:
            again = f" ({self._terms(self.separator or '')} call)*" if many else ""
            lines = [f"start: call{again}", f"call: {calls}"]
            begin, before = "", self.before
        else:
            trigger = self.trigger
            lazy, said = ("", self._terms(trigger)) if trigger in self.special else ("[lazy]", _quoted(trigger))
            lines = [f"start: ({calls}){'*' if many else '?'} TEXT", "TEXT: /(.|\\n)*/", f"begin{lazy}: TEXT {said}"]
            begin, before = "begin ", self.before[self.before.index(trigger) + len(trigger) :]
        for number, (name, schema) in enumerate(parameters.items()):
            head = begin + self._terms(f"{before}{name}{self.between}")
            arguments = json.dumps({**schema, "x-guidance": WRITTEN}, ensure_ascii=False)
            lines.append(f"call_{number}: {head} arguments_{number} {self._terms(self.after)}")
            lines.append(f"arguments_{number}: %json {arguments}")
        return Grammar("\n".join(lines))

    @property
    def trigger(self) -> str:
        """Return the beginning of a call, which distinguishes it from text: a special token, or text without one."""
        first = next((each for each in self._pieces(self.before) if each.strip()), self.before)
        return first if first in self.special else first.partition("{")[0].rstrip() or first

    def seen(self, text: str) -> str:
        """Return what the text of an answer shows of `text`."""
        for token in self.special:
            text = text.replace(token, "")
        return text

    def _terms(self, text: str) -> str:
        """Return a text in Lark's notation."""
        pieces = self._pieces(text)
        return " ".join(f"<[{self.special[each]}]>" if each in self.special else _quoted(each) for each in pieces)

    def _pieces(self, text: str) -> list[str]:
        """Return the special tokens of a text, and what is between them."""
        pieces = re.split(f"({'|'.join(map(re.escape, self.special))})", text) if self.special else [text]
        return [each for each in pieces if each]


def call_form(tokenizer: PreTrainedTokenizerBase) -> CallForm:
    """Return how the chat template of a tokenizer writes calls, or raise `SetBlockError` if it has no place for tools, or
    for calls, or writes them in a way that is not one JSON object."""
    asked, without = _rendered(tokenizer, 0, tools=[_TOOL]), _rendered(tokenizer, 0, tools=None)
    one = _rendered(tokenizer, 1, tools=[_TOOL])
    if asked == without:
        raise SetBlockError(
            "the model's chat template has no place for tools: leave tools out, or use a model that calls tools"
        )
    shared = next((place for place, (a, b) in enumerate(zip(asked, one, strict=False)) if a != b), len(asked))
    written = one[shared:]
    object_of = rf'\{{\s*"{_KEY}"\s*:\s*"{_VALUE}"\s*\}}'
    found = re.fullmatch(rf"(.*?){_NAME}(.*?){object_of}(.*)", written, re.DOTALL)
    if asked[shared:].strip() or found is None:
        raise SetBlockError("the model's chat template does not write calls of tools as a name and a JSON object")
    before, between, rest = found.groups()
    special = {each.content: token_id for token_id, each in tokenizer.added_tokens_decoder.items() if each.special}
    ends = [rest.find(each) for each in special if each in rest and each not in before]
    after = rest[: min(ends)] if ends else rest.rstrip()
    used = {each: special[each] for each in special if each in f"{before}{between}{after}"}
    return CallForm(before, between, after, _separator(tokenizer, before, after, object_of), used)


def _separator(tokenizer: PreTrainedTokenizerBase, before: str, after: str, object_of: str) -> str | None:
    try:
        two = _rendered(tokenizer, 2, tools=[_TOOL])
    except SetBlockError:
        return None
    found = re.search(rf"{object_of}{re.escape(after)}(.*?){re.escape(before)}{_NAME}", two, re.DOTALL)
    return found[1] if found else None


def _rendered(tokenizer: PreTrainedTokenizerBase, calls: int, *, tools: Sequence[Mapping[str, Any]] | None) -> str:
    messages: list[dict[str, Any]] = [{"role": "user", "content": "?"}]
    if calls:
        function = {"name": _NAME, "arguments": {_KEY: _VALUE}}
        called = [{"type": "function", "id": "000000000", "function": function}] * calls
        messages.append({"role": "assistant", "content": "", "tool_calls": called})
    with prefixed("the model's chat template has no place for tools", (TemplateError, ValueError, TypeError, KeyError)):
        text = tokenizer.apply_chat_template(messages, tools=tools, tokenize=False, add_generation_prompt=not calls)
    assert isinstance(text, str)
    return text


def _quoted(text: str) -> str:
    return json.dumps(text, ensure_ascii=False)


@dataclass(frozen=True)
class Piece:
    """Hold a piece of an answer: of its `text`, or of a call, numbered from 0, with its `name` or its next `arguments`."""

    kind: Literal["text", "name", "arguments"]
    text: str
    call: int = 0


class CallReader:
    """Separate calls from text, as an answer comes."""

    def __init__(self, form: CallForm) -> None:
        self.calls = 0  # how many have begun
        self._form, self._held, self._is_final = form, "", False
        self._pieces = self._separated()

    def read(self, text: str, *, final: bool = False) -> list[Piece]:
        """Return the pieces that became certain. `final`: nothing more will come."""
        self._held, self._is_final = self._held + text, final
        return [piece for piece in iter(lambda: next(self._pieces), None) if piece.text]

    def _separated(self) -> Iterator[Piece | None]:
        """Yield pieces, and None where more has to come first."""
        before, between, after = map(self._form.seen, (self._form.before, self._form.between, self._form.after))
        while True:
            while (place := self._held.find(before)) < 0:
                begun = (n for n in range(1, len(before)) if self._held.endswith(before[:n]))
                yield self._text(len(self._held) - (0 if self._is_final else max(begun, default=0)))
                yield None
            yield self._text(place)
            self._taken(len(before))
            while between not in self._held:
                yield None
            self.calls += 1
            yield Piece("name", self._taken(self._held.index(between)), self.calls - 1)
            self._taken(len(between))
            depth, in_string, is_escaped, is_over = 0, False, False, False
            while not is_over:
                end = 0
                while end < len(self._held) and not is_over:
                    each, end = self._held[end], end + 1
                    if in_string:
                        in_string, is_escaped = is_escaped or each != '"', each == "\\" and not is_escaped
                    else:
                        in_string, depth = each == '"', depth + (each in "{[") - (each in "}]")
                        is_over = depth == 0 and not in_string
                yield Piece("arguments", self._taken(end), self.calls - 1)
                if not is_over:
                    yield None
            while len(self._held) < len(after):
                yield None
            self._held = self._held.removeprefix(after)

    def _text(self, length: int) -> Piece:
        text = self._taken(length)
        return Piece("text", "" if self.calls and not text.strip() else text)  # what separates calls is none

    def _taken(self, length: int) -> str:
        taken, self._held = self._held[:length], self._held[length:]
        return taken
