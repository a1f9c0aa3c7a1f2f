"""Weights in eight bits, by torchao.

Knows which layers are quantised. Knows nothing of decoding: a quantised model is called as any other.
"""

from typing import Literal

from transformers import PreTrainedModel

from setblock.errors import SetBlockError

Quantization = Literal["int8"]


def quantize(model: PreTrainedModel) -> None:
    """Store the weight of every linear layer, the LM head's too, as int8 with one scale for each output channel.

    Activations, embeddings and the key-value cache stay as they are. A head that was tied to the embeddings is so no longer.

    Raises:
        SetBlockError: torchao is not installed.
    """
    try:
        from torchao.quantization import Int8WeightOnlyConfig, quantize_
    except ImportError as error:
        raise SetBlockError("quantising to int8 needs torchao: pip install 'setblock[quantize]'") from error
    # Inductor's own settings are left alone: they hold for all models of a process.
    quantize_(model, Int8WeightOnlyConfig(set_inductor_config=False))
