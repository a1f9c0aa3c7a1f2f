"""Tiny random models, one for each family the library is verified on, and the three ways a checkpoint may be decoded."""

from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import torch
from transformers import (
    AutoConfig,
    AutoModelForCausalLM,
    LlamaConfig,
    LlamaForCausalLM,
    PreTrainedModel,
    PreTrainedTokenizerBase,
)

from setblock.model.protocol.sbd_config import SBDModelConfig
from setblock.model.sbd_model import SBDModel

CONTEXT = 128
WINDOW = 12  # smaller than the texts the tests use, so that sliding windows slide

_SHAPE = {
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": CONTEXT,
}
_HEAD = {"head_dim": 8}

SMALLEST_LLAMA: dict[str, Any] = {
    "model_type": "llama",
    "hidden_size": 16,
    "num_hidden_layers": 1,
    "intermediate_size": 16,
    "num_attention_heads": 2,
    "max_position_embeddings": 512,
}
"""As a recipe's `model.config`."""

FAMILIES: dict[str, dict[str, Any]] = {
    "llama": _SHAPE,
    "qwen2": _SHAPE,
    "qwen3": _SHAPE | _HEAD,
    "mistral": _SHAPE | {"sliding_window": WINDOW},
    "gemma2": _SHAPE
    | _HEAD
    | {
        "sliding_window": WINDOW,
        "attn_logit_softcapping": 5.0,
        "final_logit_softcapping": 9.0,
        "query_pre_attn_scalar": 8,
    },
    "gemma3_text": _SHAPE
    | _HEAD
    | {
        "sliding_window": WINDOW,
        "query_pre_attn_scalar": 8,
        "layer_types": ["sliding_attention", "full_attention"],
    },
    "gpt2": {"n_embd": 32, "n_layer": 2, "n_head": 4, "n_positions": CONTEXT},
    "phi3": _SHAPE | {"sliding_window": None},
    "olmo2": _SHAPE,
    "mixtral": _SHAPE | {"num_local_experts": 4, "num_experts_per_tok": 2, "sliding_window": None},
    "qwen3_moe": _SHAPE | _HEAD | {"moe_intermediate_size": 24, "num_experts": 4, "num_experts_per_tok": 2},
}

GPT_OSS = (
    _SHAPE
    | _HEAD
    | {
        "num_local_experts": 4,
        "num_experts_per_tok": 2,
        "sliding_window": WINDOW,
        "layer_types": ["sliding_attention", "full_attention"],
        "rope_parameters": {"rope_type": "default", "rope_theta": 10_000.0},
    }
)
"""A family with sinks."""

_HYBRID = _SHAPE | {"num_hidden_layers": 4}
_LINEAR = {f"linear_{name}": size for name, size in (("num_key_heads", 2), ("num_value_heads", 4))} | {
    "linear_key_head_dim": 8,
    "linear_value_head_dim": 8,
}
_MAMBA = {"mamba_n_heads": 8, "mamba_d_head": 8, "mamba_d_state": 8, "mamba_n_groups": 1, "mamba_chunk_size": 16}

RECURRENT: dict[str, dict[str, Any]] = {
    "qwen3_next": _HYBRID
    | _HEAD
    | _LINEAR
    | {
        "moe_intermediate_size": 16,
        "shared_expert_intermediate_size": 16,
        "num_experts": 4,
        "num_experts_per_tok": 2,
    },
    "qwen3_5_text": _HYBRID | _HEAD | _LINEAR,
    "lfm2": _HYBRID | {"layer_types": ["conv", "full_attention"] * 2},
    "granitemoehybrid": _HYBRID
    | _MAMBA
    | {"shared_intermediate_size": 48, "num_local_experts": 0, "layer_types": ["mamba", "attention"] * 2},
    "falcon_h1": _SHAPE | _HEAD | _MAMBA | {"mamba_d_ssm": 64},
}
"""Families whose cache has a recurrent state."""

UNPACKABLE: dict[str, dict[str, Any]] = {
    "falcon": {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4, "max_position_embeddings": CONTEXT},
    "gptj": {"n_embd": 32, "n_layer": 2, "n_head": 4, "n_positions": CONTEXT, "rotary_dim": 4},
    "gpt_neox_japanese": {
        "hidden_size": 32,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "intermediate_multiple_size": 2,
        "max_position_embeddings": CONTEXT,
    },
}
"""Families that go round Transformers' attention interface, so that requests can't be packed in one row."""

MODES: dict[str, dict[str, bool]] = {
    "unshifted": {"logit_shift": False, "first_token_from_causal": False},
    "unshifted, first token causal": {"logit_shift": False, "first_token_from_causal": True},
    "shifted": {"logit_shift": True, "first_token_from_causal": True},
}


def tiny_model(
    family: str, *, vocab_size: int, dtype: torch.dtype = torch.float32, seed: int = 0, **overrides: Any
) -> PreTrainedModel:
    """A random model of a family, with weights large enough that its distributions are far from flat."""
    special = {"eos_token_id": 0, "bos_token_id": None, "pad_token_id": None, "initializer_range": 0.6}
    config = AutoConfig.for_model(
        family,
        **({"vocab_size": vocab_size} | special | (FAMILIES | RECURRENT | UNPACKABLE).get(family, {}) | overrides),
    )
    # SDPA has neither soft-capping nor sinks, and two families have no SDPA.
    eager = getattr(config, "attn_logit_softcapping", None) or family in ("gpt_oss", "gptj", "gpt_neox_japanese")
    attention = "eager" if eager else "sdpa"
    torch.manual_seed(seed)
    return AutoModelForCausalLM.from_config(config, dtype=dtype, attn_implementation=attention).eval()


def small_llama(vocab_size: int) -> LlamaForCausalLM:
    """A random Llama of a shape that llama.cpp takes."""
    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=vocab_size,
        hidden_size=32,
        intermediate_size=64,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        max_position_embeddings=256,
    )
    return LlamaForCausalLM(config).eval()


def with_mask_token(model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase, *, mask_token_id: int = 1) -> SBDModel:
    """A model for tests of training that never look at text: one of its own ids serves as its mask token."""
    return SBDModel(model, tokenizer, sbd_config=SBDModelConfig(mask_token_id=mask_token_id))


def tiny_sbd(family: str, tokenizer: PreTrainedTokenizerBase, *, mode: str = "unshifted", **overrides: Any) -> SBDModel:
    """A random model of a family, prepared for set block decoding."""
    sbd = SBDModel(tiny_model(family, vocab_size=len(tokenizer), **overrides), tokenizer)
    sbd.prepare_for_training(block_sizes=range(2, 17), **MODES[mode])
    return sbd


def save_with_random_adapter(sbd: SBDModel, folder: Path, *, std: float = 0.3, **section: Any) -> None:
    """Save a model that was prepared for training, with an adapter of random weights on its future block, which it gets."""
    from setblock.training.adapter import AdapterSection, add_adapter

    state = {name: weight.clone() for name, weight in sbd.model.state_dict().items()}
    wrapped: Any = add_adapter(sbd, AdapterSection(r=4, only_noisy=True, **section))
    generator = torch.Generator().manual_seed(1)
    for name, parameter in wrapped.named_parameters():
        if "lora_" in name or "trainable_tokens" in name:
            parameter.data.normal_(std=std, generator=generator)
    with TemporaryDirectory() as trained:
        wrapped.save_pretrained(trained)
        sbd.save(folder, state=state, adapter=Path(trained))
