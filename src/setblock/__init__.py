"""Set Block Decoding: several tokens per forward pass from any Hugging Face causal LM."""

from typing import TYPE_CHECKING

from setblock.lazy import lazily

if TYPE_CHECKING:
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

__getattr__, __dir__ = lazily(
    __name__,
    {
        "decoding.generate": "Generation StreamChunk generate generate_batch stream",
        "decoding.samplers": "EntropyBounded",
        "decoding.settings": "DecodingSettings",
        "errors": "SetBlockError",
        "model.loading": "load",
        "model.sbd_model": "SBDModel",
    },
)
