"""Rendering a chat by a tokenizer's chat template, and finding out what the template takes and how it closes an answer.

No family of models is named here: a template is probed by rendering short chats with it.
"""

import json
import re
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from functools import lru_cache
from itertools import takewhile
from typing import Any

from transformers import PreTrainedTokenizerBase
from transformers.utils.chat_template_utils import render_jinja_template

from setblock.chat.messages import Chat, arguments_of
from setblock.chat.samples import ARGUMENTS, NAME, RESULT, TOOLS, USER, VALUE, assistant
from setblock.chat.special import special_tokens
from setblock.errors import SetBlockError, one_line, warn

Span = tuple[int, int]

_MARKS = re.compile(r"\{%[-+]?\s*generation\s*[-+]?%\}")  # of Transformers, unknown to Jinja
_TEXT = "The answer."


@dataclass(frozen=True)
class TemplateForm:
    """The forms of messages that a chat template takes."""

    takes_developer: bool  # whether it names the role `developer`
    arguments_as_text: bool  # whether it writes arguments of calls only where they are JSON in a text
    leaves_out_calls: bool  # whether it is known to write no calls


@dataclass(frozen=True)
class Rendered:
    """The text that a template wrote, and the spans that `{% generation %}` marks give to the assistant, if it has such
    marks."""

    text: str
    marked: list[Span] | None = None


_Named = tuple[tuple[str, str], ...]
"""The tokenizer's special tokens that templates know by name, such as `eos_token`."""


def _named(tokenizer: PreTrainedTokenizerBase) -> _Named:
    return tuple(sorted((name, str(token)) for name, token in tokenizer.special_tokens_map.items()))


def template_of(tokenizer: PreTrainedTokenizerBase, chat: Chat) -> str:
    """Return the chat template that writes a chat. Raise `SetBlockError` if the tokenizer has none for it."""
    try:
        template: str = tokenizer.get_chat_template(tools=chat.tools)
    except ValueError as error:
        raise SetBlockError(f"the tokenizer has no chat template for this chat: {one_line(error)}") from error
    return template


def adapted(tokenizer: PreTrainedTokenizerBase, chat: Chat) -> Chat:
    """Return a chat in the form that the tokenizer's template takes: arguments of calls as an object, or as a text if
    it takes only that. `developer` becomes `system` where the template does not name that role, with a warning."""
    form = form_of(tokenizer, chat)
    messages = [dict(message) for message in chat.messages]
    if not form.takes_developer and any(message["role"] == "developer" for message in messages):
        _warn_of_developer(template_of(tokenizer, chat))
        messages = [m | {"role": "system"} if m["role"] == "developer" else m for m in messages]
    for message in messages:
        if "tool_calls" in message:
            message["tool_calls"] = [
                _with_arguments(call, as_text=form.arguments_as_text) for call in message["tool_calls"]
            ]
    return Chat(messages, chat.tools, chat.not_learned)


@lru_cache(maxsize=64)
def _warn_of_developer(template: str) -> None:
    """Warn of a replaced `developer` role, once for each template."""
    warn("the chat template has no role developer: messages of that role are written as those of role system")


def render(
    tokenizer: PreTrainedTokenizerBase,
    chat: Chat,
    *,
    messages: int | None = None,
    prompt: bool = False,
    template_kwargs: Mapping[str, Any] | None = None,
) -> Rendered:
    """Render a chat, or its first `messages`, followed by the generation prompt if it is a `prompt`. `template_kwargs`
    are the template's further variables. Raise `SetBlockError` if the template refuses the chat."""
    template, named, shown = template_of(tokenizer, chat), _named(tokenizer), chat.messages[:messages]
    return _written(template, named, shown, chat.tools, prompt=prompt, template_kwargs=template_kwargs)


def _written(
    template: str,
    named: _Named,
    messages: list[dict[str, Any]],
    tools: list[dict[str, Any]] | None,
    *,
    prompt: bool,
    template_kwargs: Mapping[str, Any] | None = None,
) -> Rendered:
    has_marks = not prompt and _MARKS.search(template) is not None
    try:
        (text,), spans = render_jinja_template(
            conversations=[messages],
            tools=tools,
            chat_template=template,
            return_assistant_tokens_mask=has_marks,  # the spans index this text
            add_generation_prompt=prompt,
            **{**dict(named), **(template_kwargs or {})},
        )
    except Exception as error:  # a template is a program: it raises anything over messages that it does not expect
        what = one_line(error) or type(error).__name__
        raise SetBlockError(
            f"the chat template refuses the messages: {what}; correct them, or use another chat template"
        ) from error
    return Rendered(str(text), [(a, b) for a, b in spans[0] if a < b] if has_marks else None)


def form_of(tokenizer: PreTrainedTokenizerBase, chat: Chat) -> TemplateForm:
    """Return the forms that the chat's template takes."""
    return _form_of(template_of(tokenizer, chat), _named(tokenizer))


@lru_cache(maxsize=64)
def _form_of(template: str, named: _Named) -> TemplateForm:
    written = {}
    for as_text in (False, True):
        with suppress(SetBlockError):  # the template does not take this form
            text = _written(template, named, [USER, _called(as_text=as_text)], TOOLS, prompt=False).text
            written[as_text] = NAME in text and VALUE in text and str(ARGUMENTS) not in text
    return TemplateForm(
        takes_developer=re.search(r"""["']developer["']""", template) is not None,
        arguments_as_text=not written.get(False) and written.get(True, False),
        leaves_out_calls=bool(written) and not any(written.values()),
    )


def _called(*, as_text: bool) -> dict[str, Any]:
    return assistant(calls=[NAME], arguments=json.dumps(ARGUMENTS) if as_text else ARGUMENTS)


def closing_tokens(tokenizer: PreTrainedTokenizerBase) -> list[str]:
    """Return the special tokens with which the chat template closes the assistant's turn: that of an answer, and that
    of a call if it differs. Empty if there is no template, or it closes turns with text alone."""
    if tokenizer.chat_template is None:
        return []
    templates = [template_of(tokenizer, Chat([USER], tools)) for tools in (None, TOOLS)]
    return list(_closing(*templates, _named(tokenizer), special_tokens(tokenizer)))


@lru_cache(maxsize=64)
def _closing(template: str, template_with_tools: str, named: _Named, special: re.Pattern[str]) -> tuple[str, ...]:
    call = _called(as_text=_form_of(template_with_tools, named).arguments_as_text)
    found: list[str] = []
    for messages, tools, last, of in (
        ([USER, assistant(_TEXT), USER], None, _TEXT, template),
        ([USER, call, RESULT], TOOLS, VALUE, template_with_tools),
    ):
        endings = []
        for length in (2, 3):
            with suppress(SetBlockError):  # it may refuse such a chat
                _, is_there, rest = _written(of, named, messages[:length], tools, prompt=False).text.rpartition(last)
                endings += [rest] if is_there else []
        # A token behind only the last turn closes the chat; one behind only an earlier turn begins the next turn
        shared = "".join(pair[0] for pair in takewhile(lambda pair: pair[0] == pair[-1], zip(*endings, strict=False)))
        closing = [match[0] for match in special.finditer(shared)][-1:]
        closing = closing or [match[0] for rest in endings[:1] for match in special.finditer(rest)][:1]
        if not any(each in rest for rest in endings[:1] for each in found):
            found += closing
    return tuple(found)


def closing_ids(tokenizer: PreTrainedTokenizerBase) -> list[int]:
    """Return the ids of `closing_tokens`."""
    return [int(tokenizer.convert_tokens_to_ids(each)) for each in closing_tokens(tokenizer)]


def _with_arguments(call: Mapping[str, Any], *, as_text: bool) -> dict[str, Any]:
    given = call["function"]["arguments"]
    if as_text:
        arguments: Any = given if isinstance(given, str) else json.dumps(given, ensure_ascii=False)
    else:
        arguments = arguments_of(call)
    return {**call, "function": {**call["function"], "arguments": arguments}}
