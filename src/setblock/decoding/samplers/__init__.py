"""Samplers: one rule a file."""

from typing import Any

from setblock.decoding.samplers.confidence_threshold import ConfidenceThreshold
from setblock.decoding.samplers.confident_prefix import ConfidentPrefix
from setblock.decoding.samplers.entropy_bounded import EntropyBounded
from setblock.decoding.samplers.entropy_threshold import EntropyThreshold
from setblock.decoding.samplers.factor import Factor
from setblock.decoding.samplers.fixed_count import FixedCount
from setblock.decoding.samplers.left_to_right import LeftToRight
from setblock.decoding.samplers.protocol import BlockView, Memory, Sampler, Selection, at_least_one

__all__ = [
    "SAMPLERS",
    "BlockView",
    "ConfidenceThreshold",
    "ConfidentPrefix",
    "EntropyBounded",
    "EntropyThreshold",
    "Factor",
    "FixedCount",
    "LeftToRight",
    "Memory",
    "Sampler",
    "Selection",
    "at_least_one",
]

# By the names of the command line. One's own is added as to any dictionary: SAMPLERS["mine"] = Mine
SAMPLERS: dict[str, type[Any]] = {
    "entropy-bounded": EntropyBounded,
    "entropy-threshold": EntropyThreshold,
    "confidence-threshold": ConfidenceThreshold,
    "factor": Factor,
    "fixed-count": FixedCount,
    "left-to-right": LeftToRight,
    "confident-prefix": ConfidentPrefix,
}
