"""Conversations rendered by a chat template, with marks for what the assistant says.

Texts are cut into pieces here; `setblock.data.texts.encoding` encodes the pieces.
"""

import re
from pathlib import Path

import jinja2
from transformers import PreTrainedTokenizerBase

from setblock.chat.guard import is_written, left_out, said
from setblock.chat.messages import Chat
from setblock.chat.special import NO_MARKS, Marks, Segment, held_apart
from setblock.chat.template import Span, adapted, closing_tokens, form_of, render
from setblock.errors import SetBlockError
from setblock.files import read_text

Piece = tuple[str, bool]
"""A piece of a document's text, and whether it carries loss."""

_MARKS = re.compile(r"\{%[-+]?\s*(end)?generation\s*[-+]?%\}")  # of Transformers, unknown to Jinja


def chat_pieces(
    tokenizer: PreTrainedTokenizerBase, chat: Chat, *, loss_on_all: bool = False, apart: bool = False
) -> list[tuple[list[Segment], bool]]:
    """Return the text of a conversation, cut where the assistant's parts begin and end: the segments of each piece, and
    whether it carries loss. With `apart`, special tokens that the chat spells are plain-text segments. Raise
    `SetBlockError` if there is no template, it refuses the messages or leaves something out, or answers can't be
    identified exactly.

    A template with `{% generation %}` marks states what the assistant writes. With any other template, an answer is
    what follows the generation prompt, up to the special token with which the template closes a turn, or else to the
    end of the turn. This requires that the text before an answer does not depend on what comes after it, which is
    checked.
    """
    if tokenizer.chat_template is None:
        raise SetBlockError(
            "messages need a chat template, and the tokenizer has none: name a Jinja file as data.chat_template, "
            "or give prompts and completions"
        )
    plain = adapted(tokenizer, chat)
    chat, marks = held_apart(tokenizer, plain) if apart else (plain, NO_MARKS)
    written = render(tokenizer, chat)
    whole = marks.removed(written.text)
    for _, _, what in left_out(plain, whole, form_of(tokenizer, plain)):
        raise SetBlockError(f"the chat template leaves out {what}: take it out, or use another chat template")
    answers = [index for index, message in enumerate(chat.messages) if message["role"] == "assistant"]
    for index in answers[-1:]:  # of earlier turns, templates leave the reasoning out on purpose
        _refuse_loss(plain, index, whole)
    spans: list[Span] | None = None
    if written.marked is not None:
        spans = written.marked
        if len(spans) == len(answers):
            spans = [
                span for span, index in zip(spans, answers, strict=True) if (index in chat.not_learned) == loss_on_all
            ]
        elif chat.not_learned:
            raise SetBlockError(
                f"the chat template marks {len(spans)} answers of {len(answers)}, so that those of weight 0 can't be found"
            )
    elif not loss_on_all or chat.not_learned:
        found = {index: _answer_span(tokenizer, chat, index, written.text, marks) for index in answers}
        for index, (start, end) in found.items():
            _refuse_loss(plain, index, marks.removed(written.text[start:end]))
        spans = [span for index, span in found.items() if (index in chat.not_learned) == loss_on_all]
    if loss_on_all and not chat.not_learned:
        spans = []
    pieces = _cut(written.text, spans or [], inside=not loss_on_all)
    return [(marks.segments(text), carries_loss) for text, carries_loss in pieces]


def use_chat_template(path: str | None, tokenizer: PreTrainedTokenizerBase) -> None:
    """Give the tokenizer the template of a Jinja file, if one is named, so that it is saved with the model. Raise
    `SetBlockError` if the file can't be read, or is not a template."""
    if path is None:
        return
    template = read_text(Path(path), what="data.chat_template")
    try:
        jinja2.Environment(extensions=["jinja2.ext.loopcontrols"]).parse(_MARKS.sub("", template))
    except jinja2.TemplateSyntaxError as error:
        raise SetBlockError(f"data.chat_template {path}, line {error.lineno}: {error.message}") from error
    tokenizer.chat_template = template


def _refuse_loss(chat: Chat, index: int, written: str) -> None:
    """Raise `SetBlockError` if a part of an answer is not in the text that a template wrote of it."""
    for what, text in said(chat.messages[index], with_reasoning=True):
        if not is_written(text, written):
            raise SetBlockError(
                f"the chat template leaves {what} of message {index + 1} out of the answer: take it out, or use another "
                "chat template"
            )


def _answer_span(tokenizer: PreTrainedTokenizerBase, chat: Chat, index: int, text: str, marks: Marks) -> Span:
    """Return the span of an assistant's message, from rendered texts with a common beginning."""
    before = render(tokenizer, chat, messages=index, prompt=True).text
    through = render(tokenizer, chat, messages=index + 1).text
    for part, what in ((before, f"what leads to message {index + 1}"), (through, f"message {index + 1}")):
        if not text.startswith(part) or len(through) < len(before):
            raise SetBlockError(
                f"the chat template writes {what} differently when more messages follow, so the assistant's tokens "
                "can't be identified: mark them in the template with {% generation %} ... {% endgeneration %}, or set "
                "data.loss_on: all"
            )
    start, end = len(before), len(through)
    # The template writes what comes after the token that closes a turn: in decoding, the answer is over by then.
    closing, text = [*closing_tokens(tokenizer), *filter(None, [tokenizer.eos_token])], marks.blanked(text)
    closed = next((place + len(each) for each in closing if (place := text.rfind(each, start, end)) >= 0), end)
    return start, closed


def _cut(text: str, spans: list[Span], *, inside: bool) -> list[Piece]:
    """Return the pieces of a text. Loss is carried either by what is `inside` the spans, or by the rest."""
    pieces, here = [], 0
    for start, end in spans:
        pieces += [(text[here:start], not inside), (text[start:end], inside)]
        here = end
    return [(piece, carries_loss) for piece, carries_loss in [*pieces, (text[here:], not inside)] if piece]
