"""Samplers: one rule a file."""

from setblock.decoding.samplers.entropy_bounded import EntropyBounded
from setblock.decoding.samplers.protocol import BlockView, Memory, Sampler, Selection, at_least_one

__all__ = ["BlockView", "EntropyBounded", "Memory", "Sampler", "Selection", "at_least_one"]
