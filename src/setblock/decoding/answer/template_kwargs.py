"""The check of `chat_template_kwargs`: further variables of a chat template, such as `enable_thinking`."""

import inspect
import json
import re
from collections.abc import Mapping, Sequence
from typing import Any

from transformers import PreTrainedTokenizerBase

from setblock.errors import ParameterError, did_you_mean

_OWN = ("messages", "raise_exception", "strftime_now")


def check_template_kwargs(
    tokenizer: PreTrainedTokenizerBase,
    kwargs: Mapping[str, Any],
    *,
    tools: Sequence[Mapping[str, Any]] | None = None,
) -> None:
    """Raise `ParameterError` if the chat template has no variable of a name, or the chat itself sets it; or if a value
    can't be written as JSON, or has the text of a special token."""
    if tokenizer.chat_template is None:
        raise ParameterError("chat_template_kwargs need a tokenizer with a chat template, and this one has none")
    template = tokenizer.get_chat_template(tools=list(tools) if tools else None)
    words = {*re.findall(r"[^\W\d]\w*", template)}
    taken = {*inspect.signature(tokenizer.apply_chat_template).parameters, *tokenizer.special_tokens_map, *_OWN}
    for name in kwargs:
        if name in taken:
            raise ParameterError(f"chat_template_kwargs must not have {name!r}, which the chat itself decides")
        if name not in words:
            hint = did_you_mean(name, words - taken)
            raise ParameterError(f"chat_template_kwargs: the model's chat template has no {name!r}{hint}")
    try:
        text = json.dumps(dict(kwargs), ensure_ascii=False)
        text.encode()
    except (TypeError, ValueError, RecursionError) as error:
        raise ParameterError("chat_template_kwargs must be made of what JSON has, in Unicode") from error
    named = next(
        (each.content for each in tokenizer.added_tokens_decoder.values() if each.special and each.content in text),
        None,
    )
    if named is not None:
        raise ParameterError(f"chat_template_kwargs must not name special tokens of the model, such as {named}")
