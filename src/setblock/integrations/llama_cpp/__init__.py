"""GGUF files in llama.cpp, by llama-cpp-python (docs/local-models.md)."""

from typing import TYPE_CHECKING

from setblock.lazy import lazily

if TYPE_CHECKING:
    from setblock.integrations.llama_cpp.model import LlamaModel, load
    from setblock.integrations.llama_cpp.options import LlamaOptions

__all__ = ["LlamaModel", "LlamaOptions", "load"]

__getattr__, __dir__ = lazily(__name__, {"model": "LlamaModel load", "options": "LlamaOptions"})
