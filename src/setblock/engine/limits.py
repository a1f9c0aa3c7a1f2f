"""Define the limits of an engine's memory and work."""

from dataclasses import dataclass

from setblock.errors import check_at_least


@dataclass(frozen=True)
class EngineLimits:
    """Limit an engine. None of them changes an answer.

    Attributes:
        max_num_seqs: Maximum number of requests decoded at once.
        kv_tokens: Number of tokens in the key-value cache, for all requests together. Rounded up to whole pages.
        max_num_batched_tokens: Maximum number of tokens in one forward pass. A single larger block is fed nevertheless.
        max_waiting: Maximum number of requests that wait. Further requests are refused, by the server with status 429.
        page_tokens: Number of tokens in a page, the unit in which requests allocate and share the cache.
    """

    max_num_seqs: int = 32
    kv_tokens: int = 16384
    max_num_batched_tokens: int = 1024
    max_waiting: int = 1024
    page_tokens: int = 16

    def __post_init__(self) -> None:
        check_at_least(1, **vars(self))
