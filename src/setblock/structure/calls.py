"""Find how a model's chat template writes calls of tools, write their grammar, and read calls from a growing answer.

No family of models is named here: a template is shown calls,
and what it makes of them is how its model was taught to call.

The grammar and the reader see an answer as the same symbols: characters, and tokens that no text is made of, such as
`<tool_call>` where the tokenizer has it as a token. So what the grammar holds as a call is read as one, and nothing else is.
"""

import json
import re
from collections.abc import Generator, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import takewhile
from typing import Any, Literal

from jinja2 import TemplateError
from transformers import PreTrainedTokenizerBase

from setblock.errors import SetBlockError, prefixed
from setblock.structure.kinds import WRITTEN, Grammar

_NAME, _SECOND, _KEY, _VALUE = "name_of_a_tool", "second_name", "key_of_it", "value_of_it"
_CONTENT, _REASONING = "\u00a7content\u00a7", "\u00a7reasoning\u00a7"
_ARGUMENTS = {"type": "object", "properties": {_KEY: {"type": "string"}}, "required": [_KEY]}
_TOOLS = [
    {"type": "function", "function": {"name": name, "description": "-", "parameters": _ARGUMENTS}}
    for name in (_NAME, _SECOND)
]
_OBJECT = re.compile(rf'\{{\s*"{_KEY}"\s*:\s*"{_VALUE}"\s*\}}')

OTHER = "\udfff"
"""What a special token that is no part of a call's form is in marked text. Like all marks it is half a surrogate pair, which no
decoded text has."""
_FIRST_MARK = 0xD800
_IS_MARK = "\ud800-\udfff"
_SPACE = " \t\r\n"


@dataclass(frozen=True)
class CallForm:
    """Describe how calls are written: `before` NAME `between` ARGUMENTS, further calls as `again` NAME `between` ARGUMENTS, and
    at the end `after`."""

    before: str
    between: str
    after: str
    again: str | None  # None where the template has no place for two
    reasoning_end: str | None  # what ends the reasoning before a call, such as `</think>`; None where there is none
    special: Mapping[str, int]  # the grammar's special tokens in these texts, with their ids
    others: tuple[int, ...]  # the ids of all other special tokens that an answer may have
    hidden: frozenset[str]  # those of `special` that the text of an answer leaves out

    @cached_property
    def marks(self) -> dict[int, str]:
        """Return what special tokens are in marked text, by their ids."""
        found = {token_id: chr(_FIRST_MARK + place) for place, token_id in enumerate(self.special.values())}
        return found | dict.fromkeys(self.others, OTHER)

    @cached_property
    def mark(self) -> str | None:
        """Return the part of `before` with which a call begins wherever it stands: a special token, or a tag such as `<call>`.
        None where a call begins with text that any answer may have."""
        for piece in self._pieces(self.before):
            if piece in self.special:
                return piece
        text = self.before.partition("{")[0].strip()
        return text if re.match(r"[<\[][^\s\w]*\w", text) else None

    def marked(self, text: str) -> str:
        """Return one of these texts with marks in place of special tokens."""
        return "".join(self.marks[self.special[each]] if each in self.special else each for each in self._pieces(text))

    def shown(self, marked: str) -> str:
        """Return what the text of an answer shows of marked text."""
        for token, token_id in self.special.items():
            marked = marked.replace(self.marks[token_id], "" if token in self.hidden else token)
        return marked.replace(OTHER, "")

    def terms(self, text: str) -> str:
        """Return one of these texts in Lark's notation."""
        pieces = self._pieces(text)
        return " ".join(_tokens([self.special[each]]) if each in self.special else _quoted(each) for each in pieces)

    def _pieces(self, text: str) -> list[str]:
        """Return the special tokens of a text, and what is between them."""
        pieces = re.split(f"({'|'.join(map(re.escape, self.special))})", text) if self.special else [text]
        return [each for each in pieces if each]


@dataclass(frozen=True)
class Calls:
    """Which calls an answer may have, or must have if they are `required`: JSON schemas of their arguments by the names of
    tools, and whether there may be several in `parallel`."""

    form: CallForm
    parameters: Mapping[str, Any]
    required: bool
    parallel: bool

    @property
    def again(self) -> str | None:
        """Return what stands between two calls, or None if there may be only one."""
        return self.form.again if self.parallel else None

    def grammar(self) -> Grammar:
        """Return the grammar of the answers. An answer without a call is any text. A call begins with the form's mark; without
        a mark, only at the beginning of the answer or after its reasoning, and with all that stands before its arguments."""
        form, names = self.form, list(self.parameters)
        tails = [form.terms(form.after) or '""', *(f"{form.terms(each)} call tail" for each in (self.again,) if each)]
        lines = [f"call: {' | '.join(f'call_{number}' for number in range(len(names)))}", f"tail: {' | '.join(tails)}"]
        for number, (name, schema) in enumerate(self.parameters.items()):
            arguments = json.dumps({**schema, "x-guidance": WRITTEN}, ensure_ascii=False)
            lines.append(f"call_{number}: {form.terms(name + form.between)} arguments_{number}")
            lines.append(f"arguments_{number}: %json {arguments}")
        if self.required:
            return Grammar("\n".join([f"start: {form.terms(form.before)} call tail", *lines]))
        return Grammar("\n".join([*(self._after_a_mark() if form.mark else self._at_the_beginning()), *lines]))

    def _after_a_mark(self) -> list[str]:
        form, mark = self.form, self.form.mark
        assert mark is not None
        rest = form.terms(form.before.partition(mark)[2])
        if mark not in form.special:
            # Of a lazy terminal the shortest match counts: so no other text has the mark
            begin = [f"start: text | runs begin {rest} call tail", f"begin[lazy]: TEXT? {_quoted(mark)}"]
            return [*begin, *_text([*form.special.values(), *form.others])]
        others = [*(each for token, each in form.special.items() if token != mark), *form.others]
        return [f"start: text | text {form.terms(mark)} {rest} call tail", *_text(others)]

    def _at_the_beginning(self) -> list[str]:
        form, end = self.form, self.form.reasoning_end
        others = [*(each for token, each in form.special.items() if token != end), *form.others]
        begun = " | ".join(f"begin_{number} arguments_{number}" for number in range(len(self.parameters)))
        skipped = "SPACE?"
        if end is not None and end in form.special:
            end_of_reasoning = form.terms(end)
            start = f"start: text ({end_of_reasoning} text)* | (text {end_of_reasoning})* first tail"
        else:
            start = "start: text | first tail"
            skipped = f"(TEXT? {_quoted(end)})? SPACE?" if end else skipped
        lines = [start, f"first: {begun}", "SPACE: /[ \\t\\r\\n]+/", *_text(others)]
        for number, name in enumerate(self.parameters):
            lines.append(f"begin_{number}[lazy]: {skipped} {_quoted(form.before + name + form.between)}")
        return lines


def _text(others: Sequence[int]) -> list[str]:
    """Return the rules of text that is no call, with these special tokens in it: `runs` end with one of them."""
    runs = f"(TEXT? {_tokens(others)})*" if others else '""'
    return ["text: runs TEXT?", f"runs: {runs}", "TEXT: /(.|\\n)+/"]


def _tokens(token_ids: Sequence[int]) -> str:
    """Return one of several tokens in Lark's notation, as ranges."""
    ranges: list[list[int]] = []
    for each in sorted(token_ids):
        if ranges and each == ranges[-1][1] + 1:
            ranges[-1][1] = each
        else:
            ranges.append([each, each])
    return f"<[{','.join(f'{low}' if low == high else f'{low}-{high}' for low, high in ranges)}]>"


def _quoted(text: str) -> str:
    return json.dumps(text, ensure_ascii=False)


def call_form(
    tokenizer: PreTrainedTokenizerBase,
    special: Mapping[str, int],
    *,
    ends: Sequence[int] = (),
    chat_template_kwargs: Mapping[str, Any] | None = None,
) -> CallForm:
    """Return how the chat template of a tokenizer writes calls, or raise `SetBlockError` if it has no place for tools, or
    for calls, or writes them in a way that is not a name and one JSON object.

    Args:
        special: the grammar's special tokens, with their ids.
        ends: the ids of tokens that end an answer, in addition to the tokenizer's own.
        chat_template_kwargs: what else the template is rendered with.
    """
    template = _Template(tokenizer, dict(chat_template_kwargs or {}))
    user = [{"role": "user", "content": "?"}]
    if template.rendered(user, tools=True) == template.rendered(user, tools=False):
        raise SetBlockError(
            "the model's chat template has no place for tools: leave tools out, or use a model that calls tools"
        )
    # Templates take arguments as a mapping, or as a text, as OpenAI's clients have them
    samples = template.samples({_KEY: _VALUE}) or template.samples(json.dumps({_KEY: _VALUE}))
    if not samples:
        template.rendered([*user, _assistant(calls=[_NAME], arguments={_KEY: _VALUE})], tools=True)
        raise SetBlockError("the model's chat template does not write calls of tools as a name and a JSON object")
    # 1. What all renderings share belongs to a call: not an empty think block before it, nor what separates it from text
    before = "".join(reversed(_shared([template.symbols(each.before)[::-1] for each in samples])))
    between = samples[0].between
    ends_of_answers = [tokenizer.convert_ids_to_tokens(each) for each in {*ends, tokenizer.eos_token_id} - {None}]
    after = "".join(_shared([template.symbols(each.after) for each in samples if each.after is not None]))
    after = after[: min((after.find(each) for each in ends_of_answers if each in after), default=len(after))]
    # 2. Between two calls, and between reasoning and a call
    again = template.between_calls(between, after, arguments=samples[0].arguments)
    behind_reasoning = [each.behind_reasoning for each in samples if each.behind_reasoning is not None]
    reasoning_end = behind_reasoning[0].removesuffix(before).strip() or None if behind_reasoning else None
    # 3. Special tokens in all of it, and others, which may stand in text
    texts = (before, between, after, again or "", reasoning_end or "")
    used = {token: token_id for token, token_id in special.items() if any(token in each for each in texts)}
    hidden = {token for token in used if not tokenizer.decode([used[token]], skip_special_tokens=True)}
    outside = {*used.values(), *ends, tokenizer.eos_token_id}
    others = tuple(sorted({*special.values()} - outside))
    form = CallForm(before, between, after, again, reasoning_end, used, others, frozenset(hidden))
    if form.mark is None and (not between or any(token in before + between for token in used)):
        raise SetBlockError(
            "the model's chat template writes calls of tools with nothing that distinguishes them from text"
        )
    return form


@dataclass(frozen=True)
class _Sample:
    """A rendering of a call: what stands before its name, and so on."""

    before: str
    between: str
    after: str | None  # up to the end of the turn; None where other turns follow
    behind_reasoning: str | None  # what stands between reasoning and the name; None without reasoning
    arguments: Any  # as the template took them


class _Template:
    """Render conversations with calls."""

    def __init__(self, tokenizer: PreTrainedTokenizerBase, kwargs: dict[str, Any]) -> None:
        self._tokenizer, self._kwargs = tokenizer, kwargs
        added = sorted((each.content for each in tokenizer.added_tokens_decoder.values()), key=len, reverse=True)
        self._symbol = re.compile("|".join([*map(re.escape, filter(None, added)), r"</?[^<>\s]+>", "."]), re.DOTALL)

    def symbols(self, text: str) -> list[str]:
        """Return tokens and tags, each as a whole, and the characters between them: so `<think>` and `<tool_call>` begin with
        nothing that they share."""
        return self._symbol.findall(text)

    def rendered(self, messages: Sequence[Mapping[str, Any]], *, tools: bool) -> str:
        """Return a conversation as a text; behind the user's turn, with the beginning of the assistant's."""
        asks = messages[-1]["role"] == "user"
        with prefixed(
            "the model's chat template has no place for tools", (TemplateError, ValueError, TypeError, KeyError)
        ):
            text = self._tokenizer.apply_chat_template(
                list(messages),
                tools=_TOOLS if tools else None,
                tokenize=False,
                add_generation_prompt=asks,
                **self._kwargs,
            )
        assert isinstance(text, str)
        return text

    def samples(self, arguments: Any) -> list[_Sample]:
        """Return renderings of one call, alone, behind text, behind reasoning and in an earlier turn: those that the template
        makes, and that write the call in the same way."""
        kinds = [("", None, False), ("", None, True), (_CONTENT, None, False), ("", _REASONING, False)]
        found = [each for kind in kinds if (each := self._sample(arguments, *kind)) is not None]
        return [each for each in found if each.between == found[0].between]

    def _sample(self, arguments: Any, content: str, reasoning: str | None, is_earlier: bool) -> _Sample | None:
        user = {"role": "user", "content": "?"}
        later = [{"role": "tool", "name": _NAME, "tool_call_id": _ID, "content": "-"}] if is_earlier else []
        called = _assistant(content, reasoning, calls=[_NAME], arguments=arguments)
        try:
            text = self.rendered([user, called, *later], tools=True)
            plain = self.rendered([user, _assistant(_CONTENT, reasoning), *([user] if is_earlier else [])], tools=True)
        except SetBlockError:
            return None
        start = len("".join(_shared([self.symbols(text), self.symbols(plain)])))
        start = max(start, text.find(_CONTENT) + len(_CONTENT)) if _CONTENT in text else start
        found = re.compile(rf"(.*?){_NAME}(.*?){_OBJECT.pattern}", re.DOTALL).match(text, start)
        if found is None or _CONTENT not in plain:
            return None
        end_of_turn = self.symbols(plain.rpartition(_CONTENT)[2])
        rest = self.symbols(text[found.end() :])
        shared = len(_shared([rest[::-1], end_of_turn[::-1]]))
        after = None if is_earlier else "".join(rest[: len(rest) - shared])
        _, thought, behind = text[: found.end(1)].rpartition(_REASONING)
        return _Sample(found[1], found[2], after, behind if thought else None, arguments)

    def between_calls(self, between: str, after: str, *, arguments: Any) -> str | None:
        """Return what the template writes between the arguments of a call and the name of the next one, or None if it has no
        place for a second call."""
        two = _assistant(calls=[_NAME, _SECOND], arguments=arguments)
        try:
            text = self.rendered([{"role": "user", "content": "?"}, two], tools=True)
        except SetBlockError:
            return None
        second = f"{_SECOND}{re.escape(between)}{_OBJECT.pattern}{re.escape(after)}"
        found = re.search(rf"{_OBJECT.pattern}(.*?){second}", text, re.DOTALL)
        return found[1] if found else None


def _shared(texts: Sequence[Sequence[str]]) -> list[str]:
    """Return the symbols with which all of these begin."""
    return [each for each, *_ in takewhile(lambda column: len({*column}) == 1, zip(*texts, strict=False))]


_ID = "000000000"


def _assistant(
    content: str = "", reasoning: str | None = None, *, calls: Sequence[str] = (), arguments: Any = None
) -> dict[str, Any]:
    made = [{"type": "function", "id": _ID, "function": {"name": name, "arguments": arguments}} for name in calls]
    thoughts = {} if reasoning is None else {"reasoning_content": reasoning, "reasoning": reasoning}
    return {"role": "assistant", "content": content, **thoughts, **({"tool_calls": made} if made else {})}


@dataclass(frozen=True)
class Piece:
    """A piece of an answer: of its `text`, or of a call, numbered from 0, with its `name` or its next `arguments`."""

    kind: Literal["text", "name", "arguments"]
    text: str
    call: int = 0


class CallReader:
    """Separate calls from text, as marked text comes."""

    def __init__(self, calls: Calls, *, whole: bool = False) -> None:
        """`whole`: return the pieces of a call once it is complete, and not as they come."""
        self.complete = 0  # how many calls are
        self.is_cut = False  # whether the answer ended within a call
        self._calls, self._form, self._is_whole = calls, calls.form, whole
        self._held = ""  # what is not certain yet
        self._spaces: str | None = ""  # with which the answer began, as long as it has nothing else
        self._is_final = self._is_stopped = False
        self._pieces = self._separated()

    def read(self, marked: str, *, final: bool = False, is_stopped: bool = False) -> list[Piece]:
        """Return the pieces that became certain.

        Args:
            marked: text with marks, as `CallForm.marked` has it.
            final: whether nothing more will come.
            is_stopped: whether the end is a stop text. A call that is not complete there is text; where the answer was cut at
                its limit, it is the beginning of a call.
        """
        self._held, self._is_final, self._is_stopped = self._held + marked, final, is_stopped
        pieces = [*iter(lambda: next(self._pieces), None)]
        if final:
            pieces.append(Piece("text", self._spaces or ""))
        return [piece for piece in pieces if piece.text]

    def _separated(self) -> Iterator[Piece | None]:
        """Yield pieces, and None where more has to come first."""
        raw, before = yield from self._to_mark() if self._form.mark else self._to_head()
        tail, tails = (
            None,
            [self._form.marked(each) for each in (self._form.after, self._calls.again) if each is not None],
        )
        while tail is None or tail != tails[0]:
            tail = yield from self._call(raw, before, tails)
            if tail is None:
                break
            raw, before = tail, ""
        while True:
            yield self._text(len(self._held))
            yield None

    def _call(self, raw: str, before: str, tails: list[str]) -> Generator[Piece | None, None, str | None]:
        """Read a call of which `raw` was read already, and `before` comes before its name. Return which of `tails` follows, or
        None if it is not complete."""
        heads = {f"{before}{name}{self._form.marked(self._form.between)}": name for name in self._calls.parameters}
        head = yield from self._one_of(list(heads))
        pieces = [] if head is None else [Piece("name", heads[head], self.complete)]
        raw, is_over, end_of_object = raw + (head or ""), head is None, _EndOfObject()
        while not is_over:
            end, is_over = end_of_object.find(self._held)
            pieces.append(Piece("arguments", self._taken(end), self.complete))
            raw += pieces[-1].text
            if not self._is_whole:
                yield from self._said(pieces)
                pieces = []
            if not is_over:
                if self._is_final:
                    break
                yield None
        tail = (yield from self._one_of(tails)) if head is not None and is_over else None
        if tail is None:
            self.is_cut = True
        if head is None or (tail is None and self._is_whole and self._is_stopped):
            self._held, pieces = raw + self._held, []
        elif tail is None:
            self._held = ""  # the beginning of what follows arguments
        else:
            self.complete += 1
        yield from self._said(pieces)
        return tail

    def _to_mark(self) -> Generator[Piece | None, None, tuple[str, str]]:
        """Read up to the mark. Return it, and what comes between it and the name."""
        mark, before = self._form.marked(self._form.mark or ""), self._form.marked(self._form.before)
        lead, _, rest = before.partition(mark)
        while (place := self._held.find(mark)) < 0:
            yield self._text(len(self._held) - self._begun(lead + mark, mark))
            yield None
        if self._held[:place].endswith(lead):
            place -= len(lead)
        yield self._text(place)
        return self._taken(self._held.index(mark) + len(mark)), rest

    def _to_head(self) -> Generator[Piece | None, None, tuple[str, str]]:
        """Read up to a call at the beginning of the answer or behind its reasoning. Return what was read of it, and what comes
        before the name."""
        form, end = self._form, self._form.marked(self._form.reasoning_end or "")
        heads = [form.before + name + form.between for name in self._calls.parameters]
        may_begin = may_continue = True
        while True:
            if may_begin:
                spaces = len(self._held) - len(self._held.lstrip(_SPACE))
                rest = self._held[spaces:]
                if any(map(rest.startswith, heads)):
                    yield self._text(spaces)
                    return "", form.before
                if not self._is_final and any(head.startswith(rest) for head in heads):
                    yield None
                    continue
            place = self._held.find(end) if end and may_continue else -1
            may_begin = place >= 0
            length = place + len(end) if may_begin else len(self._held) - self._begun(end)
            if end not in self._form.marks.values() and re.search(f"[{_IS_MARK}]", self._held[:length]):
                may_begin = may_continue = False  # the grammar has no special token before an end that is text
            yield self._text(length)
            if not may_begin:
                yield None

    def _one_of(self, texts: Sequence[str]) -> Generator[Piece | None, None, str | None]:
        """Read one of these texts, the longest that comes. Return it, or None if none comes."""
        while True:
            found = [each for each in texts if self._held.startswith(each)]
            may_come = not self._is_final and any(each.startswith(self._held) for each in texts if each not in found)
            if not may_come:
                longest = max(found, key=len, default=None)
                self._taken(len(longest or ""))
                return longest
            yield None

    def _begun(self, *texts: str) -> int:
        """Return how much of what is held may be the beginning of one of these texts."""
        begun = (n for each in texts for n in range(1, len(each)) if self._held.endswith(each[:n]))
        return 0 if self._is_final else max(begun, default=0)

    def _said(self, pieces: list[Piece]) -> list[Piece]:
        """Return the pieces of a call. White space alone before it is no text."""
        self._spaces = None if pieces else self._spaces
        return pieces

    def _text(self, length: int) -> Piece:
        """Return a piece of text. White space waits for other text."""
        text = self._form.shown(self._taken(length))
        if self._spaces is None:
            return Piece("text", text)
        text = self._spaces + text
        self._spaces = None if text.strip() else text
        return Piece("text", text if self._spaces is None else "")

    def _taken(self, length: int) -> str:
        taken, self._held = self._held[:length], self._held[length:]
        return taken


class _EndOfObject:
    """Find where a JSON object ends, as its text comes."""

    def __init__(self) -> None:
        self._depth, self._in_string, self._is_escaped = 0, False, False

    def find(self, text: str) -> tuple[int, bool]:
        """Return how much of the next text belongs to the object, and whether that is all of it."""
        for place, each in enumerate(text):
            if self._in_string:
                self._in_string, self._is_escaped = (
                    self._is_escaped or each != '"',
                    each == "\\" and not self._is_escaped,
                )
                continue
            self._in_string, self._depth = each == '"', self._depth + (each in "{[") - (each in "}]")
            if self._depth == 0:
                return place + 1, True
        return len(text), False
