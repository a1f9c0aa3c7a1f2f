"""The bodies of requests: OpenAI's parameters, and those of block decoding.

Types and sizes are checked here, ranges by `DecodingSettings`. A parameter of OpenAI's that this server does not support is
refused by name, never ignored.
"""

import sys
from collections.abc import Mapping
from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, ConfigDict, Field, WithJsonSchema, create_model, model_validator

from setblock.chat.messages import text_of
from setblock.decoding.settings.setting import Setting
from setblock.decoding.settings.table import MAX_LOGPROBS, MAX_STOP_STRINGS, RENAMED
from setblock.section import Section
from setblock.server.http.errors import unsupported
from setblock.server.http.limits import AVAILABLE, MAX_MESSAGES, MAX_PROMPTS, MAX_STOP_CHARACTERS, MOST, MOST_LISTED

MAX_TOOLS = 128
_NO_FUNCTIONS = "use tools"

# Parameters of OpenAI's API that are not supported: the values without an effect, and why others are refused.
REFUSED: dict[str, tuple[tuple[Any, ...], str]] = {
    "functions": ((None, []), _NO_FUNCTIONS),
    "function_call": ((None, "none"), _NO_FUNCTIONS),
    **dict.fromkeys(("presence_penalty", "frequency_penalty"), ((None, 0), "use repetition_penalty")),
    "modalities": ((None, ["text"]), "only text comes in and goes out"),
    "audio": ((None,), "only text comes in and goes out"),
    "prediction": ((None,), "method exact drafts with the model itself"),
    "web_search_options": ((None,), "the server opens no outside connections"),
    **dict.fromkeys(("reasoning_effort", "verbosity"), ((None,), "the model has no such setting")),
    "store": ((None, False), "answers are not kept"),
    "suffix": ((None, ""), "text can only be continued"),
    "echo": ((None, False), "the prompt and its log-probabilities are not returned"),
    "best_of": ((None, 1), "use n"),
}
# Parameters that are accepted and change nothing.
_IGNORED = ("user", "metadata", "safety_identifier", "service_tier", "prompt_cache_key", "prompt_cache_retention")


def _listed(stop: Any) -> Any:
    """Return stop strings as a list, also if there is only one."""
    if not isinstance(stop, str | list):
        raise ValueError("must be a text or a list of texts")
    return [stop] if isinstance(stop, str) else stop


def _prompts(value: Any) -> Any:
    """Return prompts, each a text or token ids, as a list, also if there is only one."""
    if isinstance(value, str) or (isinstance(value, list) and value and all(type(each) is int for each in value)):
        value = [value]
    if not isinstance(value, list) or not 1 <= len(value) <= MAX_PROMPTS:
        raise ValueError(f"must be a text, a list of token ids, or a list of at most {MAX_PROMPTS} of either")
    for each in value:
        if not isinstance(each, str) and not (isinstance(each, list) and all(type(one) is int for one in each)):
            raise ValueError("must hold texts, or lists of token ids")
    return value


_TEXT_PART = {
    "type": "object",
    "properties": {"type": {"const": "text"}, "text": {"type": "string"}},
    "required": ["type", "text"],
}
_CONTENT = {"anyOf": [{"type": "string"}, {"type": "array", "items": _TEXT_PART}]}
_A_PROMPT = [{"type": "string"}, {"type": "array", "items": {"type": "integer"}, "minItems": 1}]
_PROMPTS = {"anyOf": [*_A_PROMPT, {"type": "array", "items": {"anyOf": _A_PROMPT}, "maxItems": MAX_PROMPTS}]}

Content = Annotated[str, BeforeValidator(text_of), WithJsonSchema(_CONTENT)]
Prompts = Annotated[list[str | list[int]], BeforeValidator(_prompts), WithJsonSchema(_PROMPTS)]
StopText = Annotated[str, Field(max_length=MAX_STOP_CHARACTERS)]
Stop = Annotated[list[StopText], Field(max_length=MAX_STOP_STRINGS), BeforeValidator(_listed)]

# Ranges are shown in the schema, and checked by `DecodingSettings`
Limit = Annotated[int, Field(json_schema_extra={"minimum": 1})]
Logprobs = Annotated[int, Field(json_schema_extra={"minimum": 0, "maximum": MAX_LOGPROBS})]


def _field(row: Setting) -> tuple[Any, Any]:
    """Return the type of a setting in a body, and its field. Null means that the setting is not given."""
    kind = Stop if row.name == "stop" else row.type
    if row.type in (int, float):
        high = MOST.get(row.name, row.range.high)
        bounds: dict[str, Any] = {"minimum": row.range.low} | ({"maximum": high} if high < sys.float_info.max else {})
        kind = Annotated[kind, Field(json_schema_extra=bounds)]
    elif row.name in MOST_LISTED:
        kind = Annotated[kind, Field(max_length=MOST_LISTED[row.name])]
    return kind | None, Field(default=None, description=row.help)


class StreamOptions(Section, use_attribute_docstrings=True):
    """How an answer is streamed."""

    include_usage: bool | None = None
    """Send the usage in a separate chunk, the last one."""
    include_obfuscation: bool | None = None
    """Changes nothing: chunks are not padded."""


class Function(Section):
    """A function that may be called. Its arguments always follow the schema, whatever `strict` says."""

    name: Annotated[str, Field(pattern=r"^[a-zA-Z0-9_-]{1,64}$")]
    description: str | None = None
    parameters: dict[str, Any] | None = None
    strict: bool | None = None


class Tool(Section):
    """A tool that may be called."""

    type: Literal["function"]
    function: Function


class Named(Section):
    """The name of a function."""

    name: str


class NamedTool(Section):
    """The one tool that must be called."""

    type: Literal["function"]
    function: Named


class CalledFunction(Named):
    """A function with its arguments, a JSON object in a text."""

    arguments: str


class ToolCall(Section):
    """A call of a tool in an assistant's message."""

    id: str | None = None
    type: Literal["function"] = "function"
    function: CalledFunction
    index: int | None = None


ToolChoice = Literal["none", "auto", "required"] | NamedTool


class Message(Section):
    """A message of a chat."""

    role: Literal["system", "developer", "user", "assistant", "tool"]
    content: Content
    name: str | None = None
    tool_call_id: str | None = None
    tool_calls: Annotated[list[ToolCall], Field(max_length=MAX_TOOLS)] | None = None

    reasoning_content: str | None = None
    """The assistant's reasoning before its answer, for templates that write it."""

    @model_validator(mode="before")
    @classmethod
    def _without_nothing(cls, value: Any) -> Any:
        """Drop empty fields, also unknown ones: clients send messages back as they got them, from any server."""
        if isinstance(value, Mapping):
            if value.get("function_call"):
                raise unsupported("messages.function_call", _NO_FUNCTIONS)
            kept = {key: each for key, each in value.items() if key == "content" or each not in (None, [], {})}
            kept.pop("parsed", None)  # the client's own reading of the content
            return {**kept, "content": kept.get("content") or ""} if "tool_calls" in kept else kept
        return value

    def plain(self) -> dict[str, Any]:
        """Return the message as the library takes it."""
        return self.model_dump(exclude_none=True)


_fields: Any = {called: _field(row) for called, row in AVAILABLE.items()}
_Settings: Any = create_model("_Settings", __base__=Section, **_fields)


class DecodingBody(_Settings):
    """The parameters of all requests for answers: settings of decoding, and OpenAI's other parameters."""

    model_config = ConfigDict(use_attribute_docstrings=True)
    max_tokens: Limit | None = None
    """Maximum number of tokens to generate, including the end of text. Default: as many as fit in the model's context and the
    server's cache."""
    model: str
    """The id of the model, as /v1/models lists it."""
    stream: bool | None = None
    """Send the answer as server-sent events."""
    stream_options: StreamOptions | None = None
    sampler_options: dict[str, float | str] | None = Field(default=None, max_length=16)
    """Hyperparameters of the sampler."""
    structured_outputs: dict[str, Any] | None = None
    """The form of the answer, as vLLM names it: one of `json`, `json_object`, `regex`, `choice`, `grammar`."""
    response_format: dict[str, Any] | None = None
    """The form of the answer, as OpenAI names it: of type `text`, `json_object`, or `json_schema` with a JSON schema."""
    events: bool | None = None
    """Report the tokens that each forward pass revealed, with positions and entropies."""

    @model_validator(mode="before")
    @classmethod
    def _refuse(cls, value: Any) -> Any:
        if not isinstance(value, Mapping):
            return value
        for name, (neutral, reason) in REFUSED.items():
            if name in value and value[name] not in neutral:
                raise unsupported(name, reason)
        kept = {key: each for key, each in value.items() if key not in REFUSED and key not in _IGNORED}
        return {RENAMED.get(key, key): each for key, each in kept.items()}


class ChatBody(DecodingBody):
    """The body of POST /v1/chat/completions."""

    messages: Annotated[list[Message], Field(min_length=1, max_length=MAX_MESSAGES)]
    max_completion_tokens: Limit | None = None
    """The newer name of max_tokens."""
    logprobs: bool | None = None
    """Report the log-probability of each token."""
    tools: Annotated[list[Tool], Field(max_length=MAX_TOOLS)] | None = None
    """Functions that the answer may call."""
    tool_choice: ToolChoice | None = None
    """Whether the answer must call a function, and which one. Default: `auto`, if there are tools."""
    parallel_tool_calls: bool | None = None
    """Whether the answer may call several functions. Default: true."""
    chat_template_kwargs: dict[str, Any] | None = None
    """Further variables of the model's chat template, as in vLLM, such as `enable_thinking`."""
    top_logprobs: Logprobs | None = None
    """Also report this many of the most likely tokens at each place."""


class CompletionBody(DecodingBody):
    """The body of POST /v1/completions."""

    prompt: Prompts
    """One prompt or several: texts, continued without a chat template, or token ids."""
    logprobs: Logprobs | None = None
    """Report the log-probability of each token, and this many of its most likely alternatives."""
