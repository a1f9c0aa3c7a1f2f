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
        preemptions: times that a request had to give its part of the cache to an older one.
    """

    waiting: int
    running: int
    kv_tokens_used: int
    kv_tokens_cached: int
    kv_tokens_total: int
    prefix_hit_tokens: int
    passes: int
    prefill_tokens: int
    block_tokens: int
    commit_tokens: int
    preemptions: int
