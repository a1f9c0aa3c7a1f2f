"""Samplers: one rule a file."""

from typing import Any

from setblock.decoding.samplers.adaptive_confidence import AdaptiveConfidence
from setblock.decoding.samplers.confidence_threshold import ConfidenceThreshold
from setblock.decoding.samplers.confident_prefix import ConfidentPrefix
from setblock.decoding.samplers.credit_decoding import CreditDecoding
from setblock.decoding.samplers.dilated import Dilated
from setblock.decoding.samplers.distance_penalty import DistancePenalty
from setblock.decoding.samplers.entropy_bounded import EntropyBounded
from setblock.decoding.samplers.entropy_threshold import EntropyThreshold
from setblock.decoding.samplers.factor import Factor
from setblock.decoding.samplers.fixed_count import FixedCount
from setblock.decoding.samplers.klass import Klass
from setblock.decoding.samplers.left_to_right import LeftToRight
from setblock.decoding.samplers.protocol import BlockView, Memory, Sampler, Selection, at_least_one
from setblock.decoding.samplers.spaced import Spaced

__all__ = [
    "SAMPLERS",
    "AdaptiveConfidence",
    "BlockView",
    "ConfidenceThreshold",
    "ConfidentPrefix",
    "CreditDecoding",
    "Dilated",
    "DistancePenalty",
    "EntropyBounded",
    "EntropyThreshold",
    "Factor",
    "FixedCount",
    "Klass",
    "LeftToRight",
    "Memory",
    "Sampler",
    "Selection",
    "Spaced",
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
    "adaptive-confidence": AdaptiveConfidence,
    "distance-penalty": DistancePenalty,
    "spaced": Spaced,
    "dilated": Dilated,
    "klass": Klass,
    "credit-decoding": CreditDecoding,
}
