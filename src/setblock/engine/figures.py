"""Define what an engine reports of itself, for metrics."""

from dataclasses import dataclass


@dataclass(frozen=True)
class EngineFigures:
    """Hold a snapshot of an engine; counts are since it was made.

    Attributes:
        waiting: requests that wait for a place.
        running: requests that are being decoded.
        kv_tokens_used: positions of the cache that running requests hold.
        kv_tokens_cached: positions that no running request holds, kept for prompts that begin alike, and given up when needed.
        kv_tokens_total: positions there are.
        prefix_hit_tokens: positions that were not fed because the cache held them already.
        passes: forward passes of the model.
        prefill_tokens: tokens fed as parts of prompts.
        block_tokens: tokens fed as parts of blocks (in method `ntp`, one a pass).
        commit_tokens: tokens fed once more to commit them.
        drafted_tokens: drafted tokens that were checked.
        accepted_tokens: those of them that were right.
        pass_seconds: what a pass over so many tokens costs now, as it was learned; empty at first.
        preemptions: times that a request had to give its part of the cache to an older one.
    """

    waiting: int = 0
    running: int = 0
    kv_tokens_used: int = 0
    kv_tokens_cached: int = 0
    kv_tokens_total: int = 0
    prefix_hit_tokens: int = 0
    passes: int = 0
    prefill_tokens: int = 0
    block_tokens: int = 0
    commit_tokens: int = 0
    drafted_tokens: int = 0
    accepted_tokens: int = 0
    pass_seconds: tuple[tuple[int, float], ...] = ()
    preemptions: int = 0
