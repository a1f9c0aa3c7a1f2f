"""The limits of an engine's memory and work, and the figures that it reports."""

from dataclasses import dataclass

from setblock.errors import check_at_least


@dataclass(frozen=True)
class EngineLimits:
    """The limits of an engine. None of them changes an answer.

    Attributes:
        max_num_seqs: Maximum number of requests decoded at once.
        kv_tokens: Number of tokens in the key-value cache, for all requests together. Rounded up to whole pages.
        max_num_batched_tokens: Maximum number of tokens in one forward pass. A single larger block is fed nevertheless.
        max_model_len: Maximum number of tokens of a prompt and its answer. Longer requests are refused. Default: the model's
            context, or the cache if it is smaller.
        max_waiting: Maximum number of requests that wait. Further requests are refused, by the server with status 429.
        page_tokens: Number of tokens in a page, the unit in which requests allocate and share the cache.
    """

    max_num_seqs: int = 32
    kv_tokens: int = 16384
    max_num_batched_tokens: int = 1024
    max_model_len: int | None = None
    max_waiting: int = 1024
    page_tokens: int = 16

    def __post_init__(self) -> None:
        check_at_least(1, **vars(self))


@dataclass(frozen=True)
class EngineFigures:
    """A snapshot of an engine. Its counters start with the engine."""

    waiting: int = 0  # requests in the queue
    running: int = 0  # requests that are being decoded
    kv_tokens_used: int = 0  # positions of the cache that running requests hold
    # Positions that no running request holds, kept for prompts with the same prefix, and evicted when needed
    kv_tokens_cached: int = 0
    kv_tokens_total: int = 0  # positions of the whole cache
    prefix_hit_tokens: int = 0  # positions that were not fed because the cache held them already
    passes: int = 0  # forward passes of the model
    prefill_tokens: int = 0  # tokens fed as parts of prompts
    block_tokens: int = 0  # tokens fed as parts of blocks (in method `ntp`, one a pass)
    commit_tokens: int = 0  # tokens fed once more to commit them
    drafted_tokens: int = 0  # drafted tokens that were checked
    accepted_tokens: int = 0  # drafted tokens that were right
    # Measured: how many tokens a pass has, and its seconds; empty at first
    pass_seconds: tuple[tuple[int, float], ...] = ()
    preemptions: int = 0  # times that a request released its part of the cache for an older one
