"""The model families that can be exported, and the translation of their configs and weights to GGUF's names.

A family is added by a row of `FAMILIES`. Configs with features that llama.cpp computes differently are refused.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import gguf
import torch
from torch import Tensor
from transformers import PreTrainedModel

from setblock.errors import SetBlockError


@dataclass(frozen=True)
class Family:
    """How llama.cpp computes a family of models."""

    architecture: str  # its name in llama.cpp
    pairs_neighbours: bool = False  # it rotates neighbouring dimensions of a head; Transformers those half a head apart
    adds_one: bool = False  # norms multiply by 1 + weight in Transformers; GGUF stores the sum
    # The period of layers without a window: the last of so many has none. 0 where llama.cpp gives no layer a window, and so
    # computes texts longer than the window differently
    pattern: int = 0


FAMILIES: dict[str, Family] = {
    "llama": Family("llama", pairs_neighbours=True),  # SmolLM and SmolLM2 too
    "mistral": Family("llama", pairs_neighbours=True),
    "qwen2": Family("qwen2"),
    "qwen3": Family("qwen3"),
    "gemma2": Family("gemma2", adds_one=True, pattern=2),
    "gemma3_text": Family("gemma3", adds_one=True, pattern=6),
    "phi3": Family("phi3"),
}
"""The families by the `model_type` of the config."""


def family_of(model: PreTrainedModel) -> Family:
    """Return the family of a model. Raise `SetBlockError` if it is not supported, or if llama.cpp computes it differently."""
    config = model.config
    family = FAMILIES.get(config.model_type)
    if family is None:
        raise SetBlockError(
            f"models of type {config.model_type} can't be exported, only {', '.join(FAMILIES)}; llama.cpp's own "
            "convert_hf_to_gguf.py knows more"
        )
    scalar, head_dim = getattr(config, "query_pre_attn_scalar", None), _head_dim(config)
    if scalar is not None and scalar != head_dim:
        raise SetBlockError(
            f"query_pre_attn_scalar {scalar} can't be exported: it must be the size of a head, {head_dim}"
        )
    window = [kind == "sliding_attention" for kind in getattr(config, "layer_types", None) or ()]
    if family.pattern and window != [(layer + 1) % family.pattern > 0 for layer in range(len(window))]:
        raise SetBlockError(
            f"layer_types of this {config.model_type} can't be exported: llama.cpp expects a window in every layer "
            f"except every Nth, N = {family.pattern}"
        )
    for kind, rope in _ropes(config).items():
        if rope["rope_type"] not in ("default", "linear", "llama3"):
            raise SetBlockError(
                f"rope_type {rope['rope_type']} of {kind} can't be exported: only default, linear and llama3"
            )
    return family


def write_config(writer: gguf.GGUFWriter, model: PreTrainedModel, family: Family) -> None:
    """Write the model's config as GGUF metadata."""
    config = model.config
    window = getattr(config, "sliding_window", None) if getattr(config, "use_sliding_window", True) else None
    context = config.max_position_embeddings
    writer.add_context_length(context if family.pattern or window is None else min(context, window))
    writer.add_embedding_length(config.hidden_size)
    writer.add_block_count(config.num_hidden_layers)
    writer.add_feed_forward_length(config.intermediate_size)
    writer.add_head_count(config.num_attention_heads)
    writer.add_head_count_kv(config.num_key_value_heads)
    writer.add_key_length(_head_dim(config))
    writer.add_value_length(_head_dim(config))
    writer.add_layer_norm_rms_eps(config.rms_norm_eps)
    writer.add_vocab_size(config.vocab_size)
    ropes = _ropes(config)
    rope = ropes.get("full_attention") or ropes["all layers"]
    writer.add_rope_dimension_count(int(_head_dim(config) * rope.get("partial_rotary_factor", 1.0)))
    writer.add_rope_freq_base(rope["rope_theta"])
    if rope["rope_type"] == "linear":
        writer.add_rope_scaling_type(gguf.RopeScalingType.LINEAR)
        writer.add_rope_scaling_factor(rope["factor"])
    if "sliding_attention" in ropes:
        writer.add_rope_freq_base_swa(ropes["sliding_attention"]["rope_theta"])
    if family.pattern and window is not None:
        writer.add_sliding_window(window)
    if getattr(config, "attn_logit_softcapping", None):
        writer.add_attn_logit_softcapping(config.attn_logit_softcapping)
    if getattr(config, "final_logit_softcapping", None):
        writer.add_final_logit_softcapping(config.final_logit_softcapping)


def tensors_of(model: PreTrainedModel, family: Family) -> Iterator[tuple[str, Tensor]]:
    """Yield the weights by GGUF's names, in llama.cpp's layout. Raise `SetBlockError` if GGUF has no name for one."""
    config = model.config
    architecture = next(key for key, name in gguf.MODEL_ARCH_NAMES.items() if name == family.architecture)
    names = gguf.get_tensor_name_map(architecture, config.num_hidden_layers)
    for name, weight in model.state_dict().items():
        if name == "lm_head.weight" and config.tie_word_embeddings:
            continue
        found = names.get_name(name, try_suffixes=(".weight", ".bias"))
        if found is None:
            raise SetBlockError(f"weight {name} can't be exported: GGUF has no name for it in {family.architecture}")
        if family.pairs_neighbours and (".q_proj." in name or ".k_proj." in name):
            heads = weight.shape[0] // _head_dim(config)  # each head's halves are interleaved, in a matrix or a bias
            weight = weight.reshape(heads, 2, _head_dim(config) // 2, -1).transpose(1, 2).reshape(weight.shape)
        if family.adds_one and name.endswith("norm.weight"):
            weight = weight + 1
        yield found, weight
    if (rope := _ropes(config).get("all layers", {})).get("rope_type") == "llama3":
        turns = torch.arange(0, _head_dim(config), 2, dtype=torch.float32) / _head_dim(config)
        yield "rope_freqs.weight", rope["rope_theta"] ** -turns / model.model.rotary_emb.inv_freq.float()


def _ropes(config: Any) -> dict[str, dict[str, Any]]:
    """Return the rotary settings of a config, by the kind of layer."""
    rope: dict[str, Any] = config.rope_parameters
    return {"all layers": rope} if "rope_type" in rope else rope


def _head_dim(config: Any) -> int:
    return int(getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads)
