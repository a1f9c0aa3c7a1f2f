"""The grammar of answers that may call tools, in the form that the model's chat template writes."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from setblock.structure.call_form import CallForm
from setblock.structure.kinds import WRITTEN, Grammar


@dataclass(frozen=True)
class Calls:
    """The calls that an answer may make."""

    form: CallForm
    parameters: Mapping[str, Any]  # JSON schemas of the arguments, by the names of the tools
    required: bool  # whether the answer must make a call
    parallel: bool  # whether it may make several

    @property
    def again(self) -> str | None:
        """The text between two calls, or None if there may be only one."""
        return self.form.again if self.parallel else None

    def grammar(self) -> Grammar:
        """Return the grammar of the answers. An answer without a call is any text. A call begins with the form's mark. If the
        form has no mark, a call is only at the beginning of the answer or after its reasoning, and begins with all that stands
        before its arguments."""
        form, names = self.form, list(self.parameters)
        tails = [
            _terms(form, form.after) or '""',
            *(f"{_terms(form, each)} call tail" for each in (self.again,) if each),
        ]
        lines = [f"call: {' | '.join(f'call_{number}' for number in range(len(names)))}", f"tail: {' | '.join(tails)}"]
        for number, (name, schema) in enumerate(self.parameters.items()):
            arguments = json.dumps({**schema, "x-guidance": WRITTEN}, ensure_ascii=False)
            lines.append(f"call_{number}: {_terms(form, name + form.between)} arguments_{number}")
            lines.append(f"arguments_{number}: %json {arguments}")
        if self.required:
            return Grammar("\n".join([f"start: {_terms(form, form.before)} call tail", *lines]))
        return Grammar("\n".join([*(self._after_a_mark() if form.mark else self._at_the_beginning()), *lines]))

    def _after_a_mark(self) -> list[str]:
        form, mark = self.form, self.form.mark
        assert mark is not None
        rest = _terms(form, form.before.partition(mark)[2])
        if mark not in form.special:
            # A lazy terminal takes its shortest match, so other text never has the mark
            begin = [f"start: text | runs begin {rest} call tail", f"begin[lazy]: TEXT? {_quoted(mark)}"]
            return [*begin, *_text([*form.special.values(), *form.others])]
        others = [*(each for token, each in form.special.items() if token != mark), *form.others]
        return [f"start: text | text {_terms(form, mark)} {rest} call tail", *_text(others)]

    def _at_the_beginning(self) -> list[str]:
        form, end = self.form, self.form.reasoning_end
        others = [*(each for token, each in form.special.items() if token != end), *form.others]
        begun = " | ".join(f"begin_{number} arguments_{number}" for number in range(len(self.parameters)))
        skipped = "SPACE?"
        if end is not None and end in form.special:
            end_of_reasoning = _terms(form, end)
            start = f"start: text ({end_of_reasoning} text)* | (text {end_of_reasoning})* first tail"
        else:
            start = "start: text | first tail"
            skipped = f"(TEXT? {_quoted(end)})? SPACE?" if end else skipped
        lines = [start, f"first: {begun}", "SPACE: /[ \\t\\r\\n]+/", *_text(others)]
        for number, name in enumerate(self.parameters):
            lines.append(f"begin_{number}[lazy]: {skipped} {_quoted(form.before + name + form.between)}")
        return lines


def _terms(form: CallForm, text: str) -> str:
    """Return a text of a form in Lark's notation."""
    pieces = form.pieces(text)
    return " ".join(_tokens([form.special[each]]) if each in form.special else _quoted(each) for each in pieces)


def _text(others: Sequence[int]) -> list[str]:
    """Return the rules of text outside calls, which may have the special tokens `others`: `runs` end with one of them."""
    runs = f"(TEXT? {_tokens(others)})*" if others else '""'
    return ["text: runs TEXT?", f"runs: {runs}", "TEXT: /(.|\\n)+/"]


def _tokens(token_ids: Sequence[int]) -> str:
    """Return in Lark's notation, as ranges of ids, that any one of these tokens comes."""
    ranges: list[list[int]] = []
    for each in sorted(token_ids):
        if ranges and each == ranges[-1][1] + 1:
            ranges[-1][1] = each
        else:
            ranges.append([each, each])
    return f"<[{','.join(f'{low}' if low == high else f'{low}-{high}' for low, high in ranges)}]>"


def _quoted(text: str) -> str:
    return json.dumps(text, ensure_ascii=False)
