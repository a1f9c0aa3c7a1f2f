"""The settings, the form of the answer and the tool calls that a request's body specifies."""

import json
import re
import secrets
from typing import Any

from setblock.decoding.settings.resolve import requested_settings
from setblock.decoding.settings.table import DecodingSettings
from setblock.errors import ParameterError, SetBlockError
from setblock.server.api.protocol import ChatBody, DecodingBody, NamedTool
from setblock.server.http.errors import ApiError, bad_request
from setblock.server.http.limits import AVAILABLE, MOST
from setblock.structure.call_form import CallForm
from setblock.structure.call_grammar import Calls
from setblock.structure.kinds import WORDS, JsonSchema, Structure, close, structure_of


def settings_of(body: DecodingBody, *, default: DecodingSettings, grammar: Structure | None = None) -> DecodingSettings:
    """Return the settings of a body; those that it does not set are from `default`, except a random seed. `grammar`: that of
    its tools' calls. Raise `ApiError` if a parameter is out of its range."""
    if body.method not in (None, default.method):  # the default operating point is of its own method only
        default = DecodingSettings()
    requested: dict[str, Any] = {row.name: getattr(body, called) for called, row in AVAILABLE.items()}
    requested |= {"max_new_tokens": _limit(body)[1], "logprobs": body.logprobs, "sampler_options": body.sampler_options}
    if isinstance(body, ChatBody):
        if body.top_logprobs is not None and not body.logprobs:
            raise bad_request("top_logprobs needs logprobs to be true", param="top_logprobs")
        requested["logprobs"] = (body.top_logprobs or 0) if body.logprobs else None
    requested["seed"] = secrets.randbits(63) if requested["seed"] is None else requested["seed"]
    structure = requested_structure(body)
    if structure is not None and grammar is not None:
        raise bad_request("response_format can't go together with tools that may be called", param="response_format")
    requested["structure"] = structure or grammar
    for name, most in MOST.items():
        if requested[name] is not None and requested[name] > most:
            raise bad_request(f"{name} must be between 1 and {most}, not {requested[name]}", param=name)
    try:
        return requested_settings(requested, base=default)
    except SetBlockError as error:
        raise request_error(error, body) from error


def _limit(body: DecodingBody) -> tuple[str, int | None]:
    """Return the name of the parameter that limits the tokens of an answer, and its value."""
    newer = body.max_completion_tokens if isinstance(body, ChatBody) else None
    if newer is None:
        return "max_tokens", body.max_tokens
    if body.max_tokens not in (None, newer):
        message = "max_tokens and max_completion_tokens are the same limit: give one of them"
        raise bad_request(message, param="max_completion_tokens")
    return "max_completion_tokens", newer


def requested_structure(body: DecodingBody) -> Structure | None:
    """Return the form of the answer that a body requests, or None. Raise `ApiError` if it is not valid, or there are two."""
    both = {"structured_outputs": body.structured_outputs, "response_format": _of_openai(body.response_format)}
    given = [(name, requested) for name, requested in both.items() if requested is not None]
    if not given:
        return None
    (name, requested), *more = given
    if more:
        raise bad_request("response_format and structured_outputs exclude each other: give one", param=name)
    words = {key: value for key, value in requested.items() if value is not None}
    if len(words) != 1 or next(iter(words)) not in WORDS:
        raise bad_request(f"{name} must have one of {', '.join(WORDS)}, not {', '.join(words) or 'none'}", param=name)
    try:
        return structure_of(words)
    except SetBlockError as error:
        raise bad_request(f"{name}: {error}", param=name) from error


def _of_openai(requested: dict[str, Any] | None) -> dict[str, Any] | None:
    """Return a `response_format` in the words of `structured_outputs`."""
    if requested is None or requested == {"type": "text"}:
        return None
    if requested == {"type": "json_object"}:
        return {"json_object": True}
    match requested:
        case {"type": "json_schema", "json_schema": {"schema": dict() | bool() as schema}}:
            return {"json": schema}
    valid = "text, json_object, or json_schema with json_schema.schema"
    raise bad_request(f"response_format must be of type {valid}", param="response_format")


def calls_asked(form: CallForm, body: ChatBody) -> Calls:
    """Return the calls that an answer may make. Raise `ApiError` if a schema is not valid or a name is wrong."""
    choice, parallel = body.tool_choice, body.parallel_tool_calls is not False
    parameters: dict[str, Any] = {}
    for number, tool in enumerate(body.tools or ()):
        name, schema = tool.function.name, tool.function.parameters
        if name in parameters:
            raise bad_request(f"tools must have different names, and {name!r} occurs twice", param="tools")
        try:
            parameters[name] = json.loads(JsonSchema(schema or {"type": "object", "properties": {}}).schema)
            kinds = parameters[name].get("type", "object")
            if "object" not in (kinds if isinstance(kinds, list) else [kinds]):
                raise ParameterError(f"arguments are an object, so type must be 'object', not {kinds!r}")
            parameters[name]["type"] = "object"
            close(parameters[name])
        except SetBlockError as error:
            raise bad_request(f"tools.{number}.function.parameters: {error}", param="tools") from error
    allowed = parameters
    if isinstance(choice, NamedTool):
        wanted = choice.function.name
        if wanted not in parameters:
            names = ", ".join(parameters)
            raise bad_request(f"tool_choice must name one of {names}, not {wanted!r}", param="tool_choice")
        allowed, parallel = {wanted: parameters[wanted]}, False
    return Calls(form, allowed, required=choice not in (None, "auto"), parallel=parallel)


def request_error(error: SetBlockError, body: DecodingBody) -> ApiError:
    """Return the error of a request from the library's message, which begins with the name of a setting. The names of settings
    become those of the body's parameters."""
    message = str(error)
    if message.startswith("prompt has "):
        param = "messages" if isinstance(body, ChatBody) else "prompt"
        return bad_request(message, param=param, code="context_length_exceeded")
    for name, row in AVAILABLE.items():
        message = message.replace(row.name, _limit(body)[0] if name == "max_tokens" else name)
    param = re.sub(r"^token ids of (the )?", "", message).partition(" ")[0].rstrip(":,")
    return bad_request(message, param=param if param in type(body).model_fields else None)
