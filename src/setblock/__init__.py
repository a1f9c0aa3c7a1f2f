"""Set Block Decoding: several tokens per forward pass from any Hugging Face causal LM."""

from setblock.decoding.generate import Generation, StreamChunk, generate, generate_batch, stream
from setblock.decoding.samplers import EntropyBounded
from setblock.decoding.settings import DecodingSettings
from setblock.errors import SetBlockError
from setblock.model.loading import load
from setblock.model.sbd_model import SBDModel

__all__ = [
    "DecodingSettings",
    "EntropyBounded",
    "Generation",
    "SBDModel",
    "SetBlockError",
    "StreamChunk",
    "generate",
    "generate_batch",
    "load",
    "stream",
]
