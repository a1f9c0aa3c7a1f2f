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

_HOMES = {
    "DecodingSettings": "setblock.decoding.settings",
    "EntropyBounded": "setblock.decoding.samplers",
    "Generation": "setblock.decoding.generate",
    "SBDModel": "setblock.model.sbd_model",
    "SetBlockError": "setblock.errors",
    "StreamChunk": "setblock.decoding.generate",
    "generate": "setblock.decoding.generate",
    "generate_batch": "setblock.decoding.generate",
    "load": "setblock.model.loading",
    "stream": "setblock.decoding.generate",
}
__getattr__, __dir__ = lazily(__name__, _HOMES)
