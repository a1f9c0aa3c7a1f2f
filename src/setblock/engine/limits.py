"""The limits of an engine's memory and work."""

from dataclasses import dataclass, fields

from setblock.errors import ParameterError


@dataclass(frozen=True)
class EngineLimits:
    """Limits of an engine. None of them changes an answer.

    Attributes:
        max_running: the most requests decoded at once.
        kv_tokens: the positions in the key-value cache of all requests together, rounded up to whole pages.
        tokens_per_pass: the most tokens in one pass. A single larger block is fed nevertheless.
        max_waiting: the most waiting requests. Further requests are refused.
        page_tokens: the positions in a page, the unit in which requests allocate and share the cache.
    """

    max_running: int = 32
    kv_tokens: int = 16384
    tokens_per_pass: int = 1024
    max_waiting: int = 1024
    page_tokens: int = 16

    def __post_init__(self) -> None:
        for field in fields(self):
            value = getattr(self, field.name)
            if value < 1:
                raise ParameterError(f"{field.name} must be at least 1, not {value}")
