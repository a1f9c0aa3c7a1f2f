"""The form in which a model writes calls of tools, found by rendering sample chats with its chat template.

No family of models is named here: what a template makes of the sample calls is how its model was trained to call.

The grammar and the reader of calls see an answer as the same symbols: characters, and special tokens such as `<tool_call>`,
which no text contains. So exactly what the grammar treats as a call is read as one.
"""

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import takewhile
from typing import Any

from transformers import PreTrainedTokenizerBase

from setblock.chat.messages import Chat
from setblock.chat.samples import ARGUMENTS, KEY, NAME, RESULT, SECOND_NAME, TOOLS, USER, VALUE, assistant
from setblock.chat.template import render
from setblock.errors import SetBlockError, one_line

_CONTENT, _REASONING = "\u00a7content\u00a7", "\u00a7reasoning\u00a7"
_OBJECT = re.compile(rf'\{{\s*"{KEY}"\s*:\s*"{VALUE}"\s*\}}')

OTHER = "\udfff"
"""The mark of a special token that is no part of a call's form. Like all marks it is half a surrogate pair, which no decoded
text has."""
_FIRST_MARK = 0xD800


@dataclass(frozen=True)
class CallForm:
    """The form of calls: `before` NAME `between` ARGUMENTS, further calls as `again` NAME `between` ARGUMENTS, and `after` at
    the end.

    Marked text is an answer's text in which a mark, a character that no text has, stands in place of each special token.
    """

    before: str
    between: str
    after: str
    again: str | None  # None if the template writes only one call
    reasoning_end: str | None  # what ends the reasoning before a call, such as `</think>`; None without reasoning
    special: Mapping[str, int]  # the grammar's special tokens in these texts, with their ids
    others: tuple[int, ...]  # the ids of all other special tokens that an answer may have
    hidden: frozenset[str]  # those of `special` that the decoded text of an answer leaves out

    @cached_property
    def marks(self) -> dict[int, str]:
        """The marks of special tokens in marked text, by the tokens' ids."""
        found = {token_id: chr(_FIRST_MARK + place) for place, token_id in enumerate(self.special.values())}
        return found | dict.fromkeys(self.others, OTHER)

    @cached_property
    def mark(self) -> str | None:
        """The part of `before` that begins a call anywhere in an answer: a special token, or a tag such as `<call>`. None if
        a call begins with text that any answer may have."""
        for piece in self.pieces(self.before):
            if piece in self.special:
                return piece
        text = self.before.partition("{")[0].strip()
        return text if re.match(r"[<\[][^\s\w]*\w", text) else None

    def marked(self, text: str) -> str:
        """Return a text of this form with marks in place of special tokens."""
        return "".join(self.marks[self.special[each]] if each in self.special else each for each in self.pieces(text))

    def shown(self, marked: str) -> str:
        """Return marked text as the decoded text of an answer shows it."""
        for token, token_id in self.special.items():
            marked = marked.replace(self.marks[token_id], "" if token in self.hidden else token)
        return marked.replace(OTHER, "")

    def pieces(self, text: str) -> list[str]:
        """Return a text of this form split into its special tokens and the texts between them."""
        pieces = re.split(f"({'|'.join(map(re.escape, self.special))})", text) if self.special else [text]
        return [each for each in pieces if each]


def call_form(
    tokenizer: PreTrainedTokenizerBase,
    special: Mapping[str, int],
    *,
    ends: Sequence[int] = (),
    chat_template_kwargs: Mapping[str, Any] | None = None,
) -> CallForm:
    """Return the form in which a tokenizer's chat template writes calls. Raise `SetBlockError` if the template has no place for
    tools or for calls, or does not write calls as a name and one JSON object.

    Args:
        special: the grammar's special tokens, with their ids.
        ends: the ids of tokens that end an answer, in addition to the tokenizer's own.
        chat_template_kwargs: further variables of the template.
    """
    template = _Template(tokenizer, chat_template_kwargs or {})
    if template.rendered([USER], tools=True) == template.rendered([USER], tools=False):
        raise SetBlockError(
            "the model's chat template has no place for tools: leave tools out, or use a model that calls tools"
        )
    # Templates take arguments as a mapping, or as a text, as OpenAI's clients have them
    samples = template.samples(ARGUMENTS) or template.samples(json.dumps(ARGUMENTS))
    if not samples:
        template.rendered([USER, assistant(calls=[NAME], arguments=ARGUMENTS)], tools=True)
        raise SetBlockError("the model's chat template does not write calls of tools as a name and a JSON object")
    # 1. Only what all renderings share belongs to a call, not an empty think block or a line feed that separates it from text
    before = "".join(reversed(_shared([template.symbols(each.before)[::-1] for each in samples])))
    between = samples[0].between
    ends_of_answers = [tokenizer.convert_ids_to_tokens(each) for each in {*ends, tokenizer.eos_token_id} - {None}]
    after = "".join(_shared([template.symbols(each.after) for each in samples if each.after is not None]))
    after = after[: min((after.find(each) for each in ends_of_answers if each in after), default=len(after))]
    # 2. Between two calls, and between reasoning and a call
    again = template.between_calls(between, after, arguments=samples[0].arguments)
    behind_reasoning = [each.behind_reasoning for each in samples if each.behind_reasoning is not None]
    reasoning_end = behind_reasoning[0].removesuffix(before).strip() or None if behind_reasoning else None
    # 3. The special tokens of these texts, and the others, which may stand in the text of an answer
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
    """A rendering of one call: what stands before its name, between name and arguments, and after these."""

    before: str
    between: str
    after: str | None  # up to the end of the turn; None if other turns follow
    behind_reasoning: str | None  # what stands between reasoning and the name; None without reasoning
    arguments: Any  # as the template takes them: an object, or JSON in a text


class _Template:
    """A chat template, and the sample chats that it renders."""

    def __init__(self, tokenizer: PreTrainedTokenizerBase, kwargs: Mapping[str, Any]) -> None:
        self._tokenizer, self._kwargs = tokenizer, kwargs
        added = sorted((each.content for each in tokenizer.added_tokens_decoder.values()), key=len, reverse=True)
        self._symbol = re.compile("|".join([*map(re.escape, filter(None, added)), r"</?[^<>\s]+>", "."]), re.DOTALL)

    def symbols(self, text: str) -> list[str]:
        """Split a text into tokens and tags, each as a whole, and the characters between them. So `<think>` and `<tool_call>`
        have no prefix in common."""
        return self._symbol.findall(text)

    def rendered(self, messages: list[dict[str, Any]], *, tools: bool) -> str:
        """Return a chat as a text, followed by the generation prompt if it ends in the user's turn. Raise `SetBlockError` if
        the template refuses it."""
        chat, prompt = Chat(messages, TOOLS if tools else None), messages[-1]["role"] == "user"
        try:
            return render(self._tokenizer, chat, prompt=prompt, template_kwargs=self._kwargs).text
        except SetBlockError as error:  # it advises to correct the messages, which are ours
            reason = one_line(error.__cause__ or error)
            raise SetBlockError(f"the model's chat template has no place for tools: {reason}") from error

    def samples(self, arguments: Any) -> list[_Sample]:
        """Return the renderings of one call: alone, behind text, behind reasoning and in an earlier turn. Those that the
        template refuses, or that write the call in another way than the first, are left out."""
        kinds = [("", None, False), ("", None, True), (_CONTENT, None, False), ("", _REASONING, False)]
        found = [each for kind in kinds if (each := self._sample(arguments, *kind)) is not None]
        return [each for each in found if each.between == found[0].between]

    def _sample(self, arguments: Any, content: str, reasoning: str | None, is_earlier: bool) -> _Sample | None:
        called, plain_answer = (
            assistant(content, reasoning, calls=[NAME], arguments=arguments),
            assistant(_CONTENT, reasoning),
        )
        try:
            text = self.rendered([USER, called, *([RESULT] if is_earlier else [])], tools=True)
            plain = self.rendered([USER, plain_answer, *([USER] if is_earlier else [])], tools=True)
        except SetBlockError:
            return None
        start = len("".join(_shared([self.symbols(text), self.symbols(plain)])))
        start = max(start, text.find(_CONTENT) + len(_CONTENT)) if _CONTENT in text else start
        found = re.compile(rf"(.*?){NAME}(.*?){_OBJECT.pattern}", re.DOTALL).match(text, start)
        if found is None or _CONTENT not in plain:
            return None
        end_of_turn = self.symbols(plain.rpartition(_CONTENT)[2])
        rest = self.symbols(text[found.end() :])
        shared = len(_shared([rest[::-1], end_of_turn[::-1]]))
        after = None if is_earlier else "".join(rest[: len(rest) - shared])
        _, thought, behind = text[: found.end(1)].rpartition(_REASONING)
        return _Sample(found[1], found[2], after, behind if thought else None, arguments)

    def between_calls(self, between: str, after: str, *, arguments: Any) -> str | None:
        """Return what the template writes between the arguments of a call and the name of the next call, or None if it writes
        only one call."""
        two = assistant(calls=[NAME, SECOND_NAME], arguments=arguments)
        try:
            text = self.rendered([USER, two], tools=True)
        except SetBlockError:
            return None
        second = f"{SECOND_NAME}{re.escape(between)}{_OBJECT.pattern}{re.escape(after)}"
        found = re.search(rf"{_OBJECT.pattern}(.*?){second}", text, re.DOTALL)
        return found[1] if found else None


def _shared(texts: Sequence[Sequence[str]]) -> list[str]:
    """Return the longest common prefix of these texts, given as symbols."""
    return [each for each, *_ in takewhile(lambda column: len({*column}) == 1, zip(*texts, strict=False))]
