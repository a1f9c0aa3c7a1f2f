"""Samplers: one rule a file."""

from setblock.decoding.samplers.entropy_bounded import EntropyBounded
from setblock.decoding.samplers.protocol import Sampler, Selection

__all__ = ["EntropyBounded", "Sampler", "Selection"]
