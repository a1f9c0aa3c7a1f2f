"""Set Block Decoding: several tokens per forward pass from any Hugging Face causal LM.

    from setblock import generate, generate_batch, load, stream

    model = load("smollm2")  # a name of `setblock fetch`, a folder, a hub id, a GGUF file, or nothing: the included model
    answer = generate(model, "What is a palindrome?", max_new_tokens=100)
    print(answer.text, answer.num_tokens, answer.num_forwards)

    for chunk in stream(model, "What is a palindrome?", method="sbd", gamma=0.1):
        print(chunk, end="")
    answers = generate_batch(model, ["One prompt.", "Another one."], temperature=0.7)

`help(DecodingSettings)` lists the settings. `setblock.training`, `setblock.engine` and `setblock.evaluation` have more.
"""

import logging
from typing import TYPE_CHECKING

from setblock.lazy import lazily

if TYPE_CHECKING:
    from setblock.decoding.answer.generation import Generation
    from setblock.decoding.samplers import EntropyBounded
    from setblock.decoding.settings.table import DecodingSettings
    from setblock.engine.generate import StreamChunk, generate, generate_batch, stream
    from setblock.errors import SetBlockError
    from setblock.evaluation.tracing import trace
    from setblock.model.loading.loading import load
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
    "trace",
]

__getattr__, __dir__ = lazily(
    __name__,
    {
        "decoding.answer.generation": "Generation",
        "engine.generate": "StreamChunk generate generate_batch stream",
        "decoding.samplers": "EntropyBounded",
        "decoding.settings.table": "DecodingSettings",
        "errors": "SetBlockError",
        "evaluation.tracing": "trace",
        "model.loading.loading": "load",
        "model.sbd_model": "SBDModel",
    },
)

# Transformers imports torchao where it is installed, which warns of GPU kernels that are missing, and of PyTorch's changes.
for _logger, _noise in (("torchao", "Failed to load "), ("torch.utils._pytree", " is an Enum subclass ")):
    logging.getLogger(_logger).addFilter(lambda record, noise=_noise: noise not in record.getMessage())  # type: ignore[misc]
