"""Quantise weights to eight bits, by torchao, or to four, by bitsandbytes.

Knows which layers are quantised. Knows nothing of decoding: a quantised model is called as any other.
"""

import importlib.util
from typing import Literal

import torch
from transformers import BitsAndBytesConfig, PreTrainedModel

from setblock.errors import SetBlockError

Quantization = Literal["int8", "nf4"]


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


def four_bits() -> BitsAndBytesConfig:
    """Return a config for `from_pretrained`: linear layers but the head as four-bit NormalFloat, as QLoRA has them
    (arXiv 2305.14314).

    Raises:
        SetBlockError: there is no GPU, or bitsandbytes is not installed.
    """
    if not torch.cuda.is_available():
        raise SetBlockError("quantisation nf4 needs a GPU, and there is none: use int8")
    if importlib.util.find_spec("bitsandbytes") is None:
        raise SetBlockError("quantising to nf4 needs bitsandbytes: pip install bitsandbytes")
    return BitsAndBytesConfig(
        load_in_4bit=True,
        bnb_4bit_quant_type="nf4",
        bnb_4bit_use_double_quant=True,
        bnb_4bit_compute_dtype=torch.bfloat16,
    )
