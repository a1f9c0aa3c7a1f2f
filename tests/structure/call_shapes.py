"""Tools, and calls of them as the templates of `templates.py` write them: their texts, tokens, and what is read of both."""

import re
from collections.abc import Sequence
from typing import Any

from transformers import PreTrainedTokenizerBase

from setblock.decoding.answer.generation import FinishReason
from setblock.decoding.answer.tool_calls import AnswerReader
from setblock.structure.call_form import CallForm, call_form
from setblock.structure.call_grammar import Calls
from setblock.structure.compiled import grammars_of

TOOLS: dict[str, Any] = {
    "weather": {
        "type": "object",
        "properties": {"city": {"type": "string", "maxLength": 3}, "days": {"type": "integer", "maximum": 9, "minimum": 1}},
        "required": ["city", "days"],
        "additionalProperties": False,
    },
    "weather_now": {
        "type": "object",
        "properties": {"city": {"enum": ["}{", '"', "<tool_call>"]}},
        "additionalProperties": False,
    },
    "stop": {"type": "object", "properties": {}, "additionalProperties": False},
}  # fmt: skip  # fmt: skip


WEATHER = '{"city": "a", "days": 1}'


Read = tuple[str, list[tuple[str, str]]]


def form_of(tokenizer: PreTrainedTokenizerBase, **kwargs: Any) -> CallForm:
    return call_form(tokenizer, grammars_of(tokenizer).special, **kwargs)


def calls_of(tokenizer: PreTrainedTokenizerBase, *, required: bool = False, parallel: bool = True) -> Calls:
    return Calls(form_of(tokenizer), TOOLS, required=required, parallel=parallel)


class Shape:
    """A tokenizer with a template, and what it makes of calls."""

    def __init__(self, tokenizer: PreTrainedTokenizerBase) -> None:
        self.tokenizer, self.form = tokenizer, form_of(tokenizer)

    def written(self, calls: Sequence[tuple[str, str]]) -> str:
        """Naively, from the form's words."""
        form, text = self.form, ""
        for number, (name, arguments) in enumerate(calls):
            text += f"{form.again if number else form.before}{name}{form.between}{arguments}"
        return text + form.after if calls else ""

    def written_ids(self, calls: Sequence[tuple[str, str]]) -> list[int]:
        """The same as tokens; a special token that is named in arguments is spelled out."""
        parts = re.split("(\0)", self.written([(name, "\0") for name, _ in calls]))
        arguments = iter(arguments for _, arguments in calls)
        return [each for part in parts for each in (self.spelled(next(arguments)) if part == "\0" else self.ids(part))]

    def ids(self, text: str) -> list[int]:
        return list(self.tokenizer(text, add_special_tokens=False).input_ids)

    def spelled(self, text: str) -> list[int]:
        """The same text without its special tokens."""
        return [each for character in text for each in self.ids(character)]

    def takes(self, token_ids: Sequence[int], calls: Calls) -> tuple[int, bool]:
        """How many of the tokens the grammar takes, and whether the answer may end behind them."""
        matcher = grammars_of(self.tokenizer).matcher(calls.grammar())
        return matcher.try_consume_tokens(list(token_ids)), matcher.is_accepting()

    def read(
        self,
        token_ids: Sequence[int],
        calls: Calls,
        *,
        steps: Sequence[int] = (1000,),
        reason: FinishReason = "stop",
        stop: Sequence[str] = (),
    ) -> Read:
        reader, text, found, at = AnswerReader(calls, self.tokenizer, stop=stop), "", [], 0
        pieces = []
        while at < len(token_ids):
            step = steps[at % len(steps)]
            pieces += reader.read(token_ids[at : at + step])
            at += step
        for piece in [*pieces, *reader.read([], finish_reason=reason)]:
            if piece.kind == "text":
                text += piece.text
            elif piece.kind == "name":
                found.append((piece.text, ""))
            else:
                found[piece.call] = (found[piece.call][0], found[piece.call][1] + piece.text)
        self.has_called = reader.has_called
        return text, found
