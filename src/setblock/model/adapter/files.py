"""The files of an adapter on the future block: PEFT's config and weights, and the SBD config. PEFT itself is not needed.

In UNO's form (arXiv 2609.04010), plain LoRA acts on uniform noise in causal blocks; SGLang's `--uno-lora-path` reads PEFT's two
files of such an adapter.
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor

from setblock.errors import SetBlockError, prefixed
from setblock.files import FACTS_FILE, whole_folder
from setblock.model.protocol.sbd_config import SBDModelConfig, sbd_config_from_json

WEIGHTS_NAME, CONFIG_NAME = "adapter_model.safetensors", "adapter_config.json"
"""PEFT's names for the files of an adapter."""

INNER, OUTER, ROW = ".lora_A.weight", ".lora_B.weight", ".token_adapter.trainable_tokens_delta"
"""Suffixes of weight names: a layer's A [r, in_features] and B [out_features, r], and an embedding's trained row [1, D]."""

# Options of PEFT that add more than A and B of each layer, or another factor than alpha / r
_MORE = ("use_dora", "use_rslora", "rank_pattern", "alpha_pattern", "modules_to_save")


def read_lora(folder: Path, *, row: bool) -> tuple[dict[str, Any], dict[str, Tensor]]:
    """Return the config and the weights of a PEFT LoRA adapter. `row` allows a trained row of the embedding, too. Raise
    `SetBlockError` if the adapter is missing or broken, or has other parts."""
    kinds = (OSError, ValueError, SafetensorError)
    with prefixed(f"{folder} must hold an adapter, {CONFIG_NAME} and {WEIGHTS_NAME}", kinds):
        config = json.loads((folder / CONFIG_NAME).read_text(encoding="utf-8"))
        weights = load_file(folder / WEIGHTS_NAME)
    kind = config.get("peft_type") if isinstance(config, dict) else None
    if kind != "LORA":
        raise SetBlockError(f"{folder}: the adapter must be LORA, not {kind}")
    more = [name for name in (*_MORE, *([] if row else ["trainable_token_indices"])) if config.get(name)]
    if config.get("bias") not in (None, "none"):
        more.append("bias")
    if not all(name.endswith((INNER, OUTER, ROW) if row else (INNER, OUTER)) for name in weights):
        more.append("other weights")
    inner, outer = ({name.removesuffix(end) for name in weights if name.endswith(end)} for end in (INNER, OUTER))
    if inner != outer:
        more.append(f"only one of A and B of {min(inner ^ outer)}")
    if more:
        raise SetBlockError(f"{folder}: the adapter must be plain LoRA, and has {more[0]}")
    return config, weights


@dataclass(frozen=True)
class LoraWeights:
    """An adapter's weights as decoding uses them, by the names of the base model's modules."""

    # A [r, in_features] and the transposed B [r, out_features] of each layer, with LoRA's factor in B
    factors: Mapping[str, tuple[Tensor, Tensor]]
    rows: Mapping[str, tuple[int, Tensor]]  # a token id and its trained row [D] of each embedding


def lora_weights(config: Mapping[str, Any], weights: Mapping[str, Tensor], *, dtype: torch.dtype) -> LoraWeights:
    """Return the weights of an adapter, as returned by `read_lora`, in the model's `dtype`."""
    scaling = config["lora_alpha"] / config["r"]
    factors: dict[str, tuple[Tensor, Tensor]] = {}
    rows: dict[str, tuple[int, Tensor]] = {}
    for key, weight in weights.items():
        name = key.removeprefix("base_model.model.").removesuffix(INNER).removesuffix(ROW)
        if key.endswith(ROW):
            (token,) = config["trainable_token_indices"]
            rows[name] = token, weight[0].clone()
        elif key.endswith(INNER):
            outer = weights[key.removesuffix(INNER) + OUTER].float() * scaling
            factors[name] = weight.to(dtype), outer.t().to(dtype).contiguous()
    return LoraWeights(factors, rows)


_PROJECTIONS = {"q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"}


def adapter_sbd_config(folder: Path, *, vocab_size: int) -> SBDModelConfig:
    """Return the SBD config of a base model of `vocab_size` tokens with the adapter in `folder`: the one recorded there, else
    that of a UNO adapter, which records no block size. Raise `SetBlockError` if it is not valid for the model."""
    file = folder / FACTS_FILE
    if file.is_file():
        with prefixed(f"can't read {file}", (OSError, ValueError)):
            recorded = json.loads(file.read_text(encoding="utf-8"))
        return replace(sbd_config_from_json(recorded, vocab_size=vocab_size, where=str(file)), noisy_adapter=True)
    return SBDModelConfig(
        None,
        logit_shift=True,
        first_token_from_causal=True,
        noisy_adapter=True,
        noise_vocab_size=vocab_size,
        causal_block=True,
    )


def write_adapter(source: Path, sbd_config: SBDModelConfig | None, folder: Path, *, uno: bool = False) -> None:
    """Write the adapter of the checkpoint in `source`, in bfloat16 with its SBD config, to a new `folder`, which appears once
    it is complete. Raise `SetBlockError` if the checkpoint has no such adapter, if the folder exists or can't be written, or if
    `uno` is set and SGLang does not support the adapter."""
    if sbd_config is None or not sbd_config.noisy_adapter:
        raise SetBlockError("only an adapter on the future block (adapter.only_noisy) can be exported alone")
    needed = {
        "training.noise uniform": sbd_config.noise_vocab_size is not None,
        "training.block_attention causal": sbd_config.causal_block,
        "training.logit_shift true": sbd_config.logit_shift,
    }
    wrong = [name for name, holds in needed.items() if not holds]
    if uno and wrong:
        raise SetBlockError(f"the adapter was not trained in UNO's form: it needs {', '.join(wrong)}")
    config, weights = read_lora(source, row=not uno)
    layers = {name.split(".")[-3] for name in weights if not name.endswith(ROW)}
    attention = layers & {"q_proj", "k_proj", "v_proj"}
    if uno and (layers - _PROJECTIONS or (attention and not {"q_proj", "v_proj"} <= layers)):
        raise SetBlockError(
            f"SGLang takes adapters of {', '.join(sorted(_PROJECTIONS))}, q_proj with v_proj, "
            f"not of {', '.join(sorted(layers))}"
        )
    if folder.exists():
        raise SetBlockError(f"{folder} exists already: name a new folder")
    config |= {"base_model_name_or_path": None}
    if sbd_config.noise_vocab_size is not None:  # SGLang does not read patterns
        config["target_modules"] = sorted(layers)
    with whole_folder(folder) as whole:
        whole.mkdir()
        recorded = replace(sbd_config, calibrations=()).to_json()
        for name, content in ((CONFIG_NAME, config), (FACTS_FILE, recorded)):
            (whole / name).write_text(json.dumps(content, indent=2, sort_keys=True) + "\n", encoding="utf-8")
        rounded = {name: weight.to(torch.bfloat16).contiguous() for name, weight in weights.items()}
        save_file(rounded, whole / WEIGHTS_NAME, metadata={"format": "pt"})
        (whole / WEIGHTS_NAME).chmod((whole / CONFIG_NAME).stat().st_mode)
