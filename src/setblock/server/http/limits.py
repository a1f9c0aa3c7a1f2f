"""The limits of requests to the server.

Imports no PyTorch, so that the command line can list the limits without it.
"""

from dataclasses import dataclass, fields

from setblock.decoding.settings.table import available
from setblock.errors import ParameterError

AVAILABLE = available(
    # The engine's scheduler has a limit of its own; the others have OpenAI's words
    but_not=("prefill_chunk", "structure", "logprobs"),
    names={"max_new_tokens": "max_tokens", "min_new_tokens": "min_tokens"},
)
MOST = {"block_size": 64, "prompt_lookup": 64}  # of settings that have no limit in the library
MOST_LISTED = {"stop_token_ids": 16, "banned_tokens": 1024, "logit_bias": 1024}
MAX_MESSAGES = 1024
MAX_PROMPTS = 64
MAX_STOP_CHARACTERS = 256


@dataclass(frozen=True)
class ServerLimits:
    """The limits of a server.

    Attributes:
        max_requests: Maximum number of requests in progress, waiting ones included. Further requests get status 429. As many
            more may be arriving; if there are more, the slowest gets status 408.
        max_body_bytes: Maximum size of a request body. A larger one gets status 413.
        max_answers: Maximum number of answers of one request: its prompts times `n`.
        body_seconds: Time limit for receiving the head of a request, and for its body, in seconds.
        request_seconds: Time limit for an answer, until the client has read it, in seconds.
        drain_seconds: Time limit for running requests after SIGTERM, in seconds.
    """

    max_requests: int = 256
    max_body_bytes: int = 1 << 20
    max_answers: int = 64
    body_seconds: float = 30.0
    request_seconds: float = 600.0
    drain_seconds: float = 60.0

    def __post_init__(self) -> None:
        for field in fields(self):
            value, whole = getattr(self, field.name), isinstance(field.default, int)
            if not (value >= 1 if whole else value > 0):
                raise ParameterError(f"{field.name} must be {'at least 1' if whole else 'above 0'}, not {value}")
