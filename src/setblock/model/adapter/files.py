"""Read PEFT's two files of an adapter. Knows nothing of models, and does not need PEFT."""

import json
from pathlib import Path
from typing import Any

from safetensors import SafetensorError
from safetensors.torch import load_file
from torch import Tensor

from setblock.errors import SetBlockError

WEIGHTS_NAME, CONFIG_NAME = "adapter_model.safetensors", "adapter_config.json"
"""PEFT's names for the files of an adapter."""

INNER, OUTER, ROW = ".lora_A.weight", ".lora_B.weight", ".token_adapter.trainable_tokens_delta"
"""How names of weights end: a layer's A [r, in_features] and B [out_features, r]; and an embedding's trained row [1, D]."""

# More than A and B of each layer, or another factor than alpha / r
_MORE = ("use_dora", "use_rslora", "rank_pattern", "alpha_pattern", "modules_to_save")


def read_lora(folder: Path, *, row: bool = False) -> tuple[dict[str, Any], dict[str, Tensor]]:
    """Return the config and the weights of a LoRA adapter of PEFT.

    Args:
        row: whether it may have a trained row of the embedding, too.

    Raises:
        SetBlockError: it is not there, is broken, or is more than that.
    """
    try:
        config = json.loads((folder / CONFIG_NAME).read_text(encoding="utf-8"))
        weights = load_file(folder / WEIGHTS_NAME)
    except (OSError, ValueError, SafetensorError) as error:
        raise SetBlockError(f"{folder} must hold an adapter, {CONFIG_NAME} and {WEIGHTS_NAME}: {error}") from error
    kind = config.get("peft_type") if isinstance(config, dict) else None
    if kind != "LORA":
        raise SetBlockError(f"{folder}: the adapter must be LORA, not {kind}")
    names = [*_MORE, *([] if row else ["trainable_token_indices"])]
    more = next(
        (name for name in names if config.get(name)), "bias" if config.get("bias") not in (None, "none") else None
    )
    ends = (INNER, OUTER, ROW) if row else (INNER, OUTER)
    if more is None and not all(name.endswith(ends) for name in weights):
        more = "other weights"
    inner, outer = ({name.removesuffix(end) for name in weights if name.endswith(end)} for end in (INNER, OUTER))
    if more is None and inner != outer:
        more = f"only one of A and B of {min(inner ^ outer)}"
    if more is not None:
        raise SetBlockError(f"{folder}: the adapter must be plain LoRA, and has {more}")
    return config, weights
