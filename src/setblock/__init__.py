"""Set Block Decoding: several tokens per forward pass from any Hugging Face causal LM."""

from importlib import import_module
from typing import TYPE_CHECKING, Any

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

# Imported on first use: PyTorch and Transformers take seconds, and `setblock --help` needs neither.
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


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = getattr(import_module(_HOMES[name]), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
