"""Write messages as a chat template does, and mark what the assistant says.

Knows templates and text. Knows nothing of token ids: where a text is cut, `setblock.data.texts.encoding` sees to its tokens.
"""

import re
from pathlib import Path
from typing import Any

import jinja2
from transformers import PreTrainedTokenizerBase
from transformers.utils.chat_template_utils import render_jinja_template

from setblock.errors import SetBlockError, one_line
from setblock.files import read_text

Piece = tuple[str, bool]
"""A stretch of a document's text, and whether it carries loss."""

_MARKS = re.compile(r"\{%[-+]?\s*(end)?generation\s*[-+]?%\}")  # of Transformers, unknown to Jinja


def chat_pieces(
    tokenizer: PreTrainedTokenizerBase, messages: Any, *, tools: Any = None, loss_on_all: bool = False
) -> list[Piece]:
    """Return the text of a conversation, cut where the assistant begins and ends. Each of the `messages` is a mapping with
    `role`, `content` and whatever else the template knows. The template gets `tools` as such, if there are any. Raise
    `SetBlockError` if there is no template, it refuses the messages, or it does not let answers be identified exactly.

    A template with `{% generation %}` marks says itself what the assistant writes. Of any other one, an answer is what
    follows the generation prompt, up to the end-of-text token if the template closes a turn with it, else to the end of the
    turn. That is only so where the text before an answer does not depend on what comes after it, which is checked.
    """
    _check_messages(messages)
    if tokenizer.chat_template is None:
        raise SetBlockError(
            "messages need a chat template, and the tokenizer has none: name a Jinja file as data.chat_template, "
            "or give prompts and completions"
        )
    text = _render(tokenizer, messages, tools)
    if loss_on_all:
        return [(text, True)]
    template = tokenizer.get_chat_template(tools=tools)
    if not _MARKS.search(template):
        return _cut(text, _answer_spans(tokenizer, messages, tools, text))
    # As `apply_chat_template(return_assistant_tokens_mask=True)` reads the marks
    _, spans = render_jinja_template(
        conversations=[messages],
        tools=tools,
        chat_template=template,
        return_assistant_tokens_mask=True,
        **tokenizer.special_tokens_map,
    )
    return _cut(text, [(start, end) for start, end in spans[0] if start < end])


def use_chat_template(path: str | None, tokenizer: PreTrainedTokenizerBase) -> None:
    """Give the tokenizer the template of a Jinja file, if one is named, so that it is saved with the model. Raise
    `SetBlockError` if the file can't be read, or is no template."""
    if path is None:
        return
    template = read_text(Path(path), what="data.chat_template")
    try:
        jinja2.Environment(extensions=["jinja2.ext.loopcontrols"]).parse(_MARKS.sub("", template))
    except jinja2.TemplateSyntaxError as error:
        raise SetBlockError(f"data.chat_template {path}, line {error.lineno}: {error.message}") from error
    tokenizer.chat_template = template


def _check_messages(messages: Any) -> None:
    if not isinstance(messages, list) or not messages:
        raise SetBlockError("messages must be a list of at least one message")
    for index, message in enumerate(messages):
        if not isinstance(message, dict) or not isinstance(message.get("role"), str):
            raise SetBlockError(f"message {index} must be an object with a role, such as user or assistant")
        if "content" not in message and "tool_calls" not in message:
            raise SetBlockError(f"message {index} has no content")


def _render(
    tokenizer: PreTrainedTokenizerBase, messages: list[dict[str, Any]], tools: Any, *, prompt: bool = False
) -> str:
    try:
        return str(tokenizer.apply_chat_template(messages, tools=tools, tokenize=False, add_generation_prompt=prompt))
    except Exception as error:  # a template is a program: it raises anything over messages that it does not expect
        what = one_line(error) or type(error).__name__
        raise SetBlockError(
            f"the chat template refuses the messages: {what}; correct them, or name another template as data.chat_template"
        ) from error


def _answer_spans(
    tokenizer: PreTrainedTokenizerBase, messages: list[dict[str, Any]], tools: Any, text: str
) -> list[tuple[int, int]]:
    """Return the spans of assistant messages, from texts that begin alike."""
    spans = []
    for index, message in enumerate(messages):
        if message["role"] != "assistant":
            continue
        before = _render(tokenizer, messages[:index], tools, prompt=True)
        through = _render(tokenizer, messages[: index + 1], tools)
        for part, what in ((before, f"what leads to message {index}"), (through, f"message {index}")):
            if not text.startswith(part) or len(through) < len(before):
                raise SetBlockError(
                    f"the chat template writes {what} differently when more messages follow, so the assistant's tokens "
                    "can't be identified: mark them in the template with {% generation %} ... {% endgeneration %}, or set "
                    "data.loss_on: all"
                )
        start, end = len(before), len(through)
        # What comes after the end-of-text token of a turn is the template's: when decoding, the answer is over by then.
        closed = text.rfind(tokenizer.eos_token, start, end)
        spans.append((start, end if closed < 0 else closed + len(tokenizer.eos_token)))
    return spans


def _cut(text: str, spans: list[tuple[int, int]]) -> list[Piece]:
    pieces, here = [], 0
    for start, end in spans:
        pieces += [(text[here:start], False), (text[start:end], True)]
        here = end
    return [(piece, carries_loss) for piece, carries_loss in [*pieces, (text[here:], False)] if piece]
