"""From a body to `DecodingSettings`: the same parameters under the library's names, with what is bounded on a server only."""

import secrets
from typing import Any

from setblock.decoding.asked import settings_asked
from setblock.decoding.settings import DecodingSettings, Method, offered_by
from setblock.errors import SetBlockError
from setblock.server.errors import ApiError, bad_request, from_settings
from setblock.server.limits import MOST
from setblock.server.protocol import ChatBody, CompletionBody, DecodingBody


def settings_of(body: DecodingBody, *, default_method: Method) -> DecodingSettings:
    """The settings that a body asks for, with a seed and `n` as given there.

    Raises:
        ApiError: a parameter is out of its range.
    """
    asked: dict[str, Any] = {row.name: getattr(body, called) for called, row in offered_by("server").items()}
    asked["method"] = asked["method"] or default_method
    asked["max_new_tokens"] = _most_tokens(body)
    asked["seed"] = secrets.randbits(63) if asked["seed"] is None else asked["seed"]
    asked["logprobs"] = _num_logprobs(body)
    for name, most in MOST.items():
        if asked[name] is not None and asked[name] > most:
            raise bad_request(f"{name} must be between 1 and {most}, not {asked[name]}", param=name)
    try:
        return settings_asked({**asked, "sampler_options": body.sampler_options, "gamma": body.gamma})
    except SetBlockError as error:
        raise told(error, body) from error


def told(error: SetBlockError, body: DecodingBody) -> ApiError:
    """What the library says of a request, in the words of its body."""
    message = str(error)
    for name, row in offered_by("server").items():
        if name == "max_tokens" and getattr(body, "max_completion_tokens", None) is not None:
            name = "max_completion_tokens"
        message = message.replace(row.name, name)
    found = from_settings(SetBlockError(message), type(body).model_fields)
    if found.code == "context_length_exceeded":
        found.param = "messages" if isinstance(body, ChatBody) else "prompt"
    return found


def _most_tokens(body: DecodingBody) -> int | None:
    most: int | None = body.max_tokens
    if not isinstance(body, ChatBody) or body.max_completion_tokens is None:
        return most
    if most not in (None, body.max_completion_tokens):
        raise bad_request(
            "max_tokens and max_completion_tokens are the same limit: give one of them", param="max_completion_tokens"
        )
    return body.max_completion_tokens


def _num_logprobs(body: DecodingBody) -> int | None:
    if isinstance(body, CompletionBody):
        return body.logprobs
    assert isinstance(body, ChatBody)
    if body.top_logprobs is not None and not body.logprobs:
        raise bad_request("top_logprobs needs logprobs to be true", param="top_logprobs")
    return (body.top_logprobs or 0) if body.logprobs else None
