"""Define what the server answers with: OpenAI's objects, with fields for what only block decoding has.

Fields that are not set are left out, so an extension appears only where it was asked for.
"""

from typing import Any, Literal

from pydantic import BaseModel

FinishReason = Literal["stop", "length", "tool_calls"]


class Passes(BaseModel):
    """Count forward passes by kind."""

    prefill: int
    block: int
    commit: int


class Usage(BaseModel):
    """Count the tokens and passes of all answers to a request. The fields after `total_tokens` are this server's own."""

    prompt_tokens: int
    completion_tokens: int
    total_tokens: int
    num_forwards: int
    passes: Passes
    tokens_per_forward: float | None


class RevealedToken(BaseModel):
    """Describe a token that a pass revealed; `entropy` in nats."""

    index: int
    token_id: int
    text: str
    entropy: float | None


class PassReply(BaseModel):
    """Describe what one forward pass did to an answer."""

    number: int
    kind: Literal["prefill", "block", "commit"]
    revealed: list[RevealedToken]
    corrected: RevealedToken | None


class AnswerToken(BaseModel):
    """Hold a token of a finished answer, and the number of the pass that revealed it."""

    token_id: int
    text: str
    revealed_by: int
    entropy: float | None


class TopLogprob(BaseModel):
    """Hold a token and how likely it was. `bytes` is None where the token is no whole characters."""

    token: str
    bytes: list[int] | None
    logprob: float


class TokenLogprob(TopLogprob):
    """Describe how likely a token of an answer was."""

    top_logprobs: list[TopLogprob]


class ChatLogprobs(BaseModel):
    """Hold log-probabilities, as chats have them."""

    content: list[TokenLogprob]
    refusal: None = None


class CompletionLogprobs(BaseModel):
    """Hold log-probabilities, as completions have them."""

    tokens: list[str]
    token_logprobs: list[float]
    top_logprobs: list[dict[str, float]] | None
    text_offset: list[int]


class FunctionCall(BaseModel):
    """Hold a function and its arguments, JSON in a text."""

    name: str
    arguments: str


class ToolCallReply(BaseModel):
    """Hold a call of a tool."""

    id: str
    type: Literal["function"]
    function: FunctionCall


class AssistantMessage(BaseModel):
    """Hold an answer."""

    role: Literal["assistant"]
    content: str | None
    refusal: None
    tool_calls: list[ToolCallReply] | None = None


class AnyChoice(BaseModel):
    """Hold what choices of all kinds have. `pass_event` and `tokens` are there where `events` is asked for."""

    index: int
    finish_reason: FinishReason | None
    pass_event: PassReply | None = None
    tokens: list[AnswerToken] | None = None


class ChatChoice(AnyChoice):
    """Hold one of the answers to a chat."""

    message: AssistantMessage
    logprobs: ChatLogprobs | None


class CompletionChoice(AnyChoice):
    """Hold one of the answers to a prompt, or a piece of it."""

    text: str
    logprobs: CompletionLogprobs | None


class ChatCompletion(BaseModel):
    """Hold the answers to a chat."""

    id: str
    object: Literal["chat.completion"]
    created: int
    model: str
    choices: list[ChatChoice]
    usage: Usage


class Completion(BaseModel):
    """Hold the answers to prompts."""

    id: str
    object: Literal["text_completion"]
    created: int
    model: str
    choices: list[CompletionChoice]
    usage: Usage


class ModelFacts(BaseModel):
    """Describe a model beyond OpenAI's fields. `method` is that of requests that name none, `example` a prompt that it answers
    well, `notice` what users should know."""

    methods: list[str]
    method: str
    samplers: dict[str, dict[str, Any]]
    block_sizes: list[int]
    context_length: int | None
    example: str | None
    notice: str | None


class ModelCard(BaseModel):
    """Describe a model."""

    id: str
    object: Literal["model"]
    created: int
    owned_by: str
    setblock: ModelFacts


class ModelList(BaseModel):
    """List the models."""

    object: Literal["list"]
    data: list[ModelCard]


class Tokens(BaseModel):
    """Hold a prompt in tokens."""

    count: int
    max_model_len: int | None
    tokens: list[int]
    token_strs: list[str]


class Health(BaseModel):
    """Describe how the server is."""

    status: str


class ErrorDetail(BaseModel):
    """Describe what went wrong."""

    message: str
    type: str
    param: str | None
    code: str | None


class ErrorReply(BaseModel):
    """Hold OpenAI's error object."""

    error: ErrorDetail
