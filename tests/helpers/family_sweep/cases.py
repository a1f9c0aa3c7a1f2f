"""Cases: every decoder-only family of the installed Transformers, and the fields of its config that make a model of it.

The families come from Transformers' own registry, so that a new version brings its new ones."""

from typing import Any

from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING_NAMES

REPRESENTATIVE = (
    "llama", "qwen3", "mistral", "gemma2", "gemma3", "gpt2", "phi3 (longrope)", "falcon", "stablelm", "mixtral",
    "deepseek_v3", "doge (window of 16)", "electra (encoder)", "qwen2_vl", "bart (more decoder layers)", "bert (untied)",
    "gemma4_text",
)  # fmt: skip
"""The cases that are in `make test`, but for those of `SLOW`."""

SLOW = ("qwen2_vl", "gemma4_text", "gemma3", "deepseek_v3")
"""Cases that take five seconds or more."""

REFUSED = ("electra (encoder)", "bart (more decoder layers)", "doge (window of 16)")
"""Those of them that are refused."""

IMAGES = (
    "llava", "llava_next", "mistral3", "qwen2_vl", "qwen2_5_vl", "qwen3_vl", "idefics3", "smolvlm", "paligemma", "internvl",
)  # fmt: skip
"""Families that take images too, and are given text alone. Transformers has more."""

CONTEXT = 128

_ROPE = {"rope_theta": 10000.0}

_LONG = {"rope_type": "longrope", "short_factor": [1.0] * 8, "long_factor": [2.0 + i for i in range(8)]}

_SMALL_SHAPE = {
    "hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 2,
}  # fmt: skip

# Where the defaults of Transformers' own config make no model, or no decoder.
NEEDED: dict[str, dict[str, Any]] = {
    **{
        name: {"is_decoder": True}
        for name in (
            "bert", "bert-generation", "big_bird", "camembert", "data2vec-text", "electra", "ernie", "megatron-bert",
            "rembert", "roberta", "roberta-prelayernorm", "roc_bert", "roformer", "xlm-roberta", "xlm-roberta-xl",
        )
    },
    **{
        name: {"text_config": {"rope_parameters": _ROPE | {"rope_type": "default", "mrope_section": [16, 24, 24]}}}
        for name in ("qwen2_vl", "qwen2_5_vl")
    },
    "qwen3_vl": {"text_config": {"rope_parameters": _ROPE | {"rope_type": "default", "mrope_section": [24, 20, 20]}}},
    **{
        name: {"is_encoder_decoder": False, "is_decoder": True}
        for name in (
            "bart", "bigbird_pegasus", "blenderbot", "blenderbot-small", "marian", "mbart", "mvp", "pegasus", "plbart",
            "prophetnet", "whisper",
        )
    },
    "dbrx": {"attn_config": {"kv_n_heads": 8, "rope_theta": 10000.0}},
    "xmod": {"is_decoder": True, "default_language": "en_XX"},
    "reformer": {"is_decoder": True},
    "nemotron": {"num_key_value_heads": 8},
    "hunyuan_v1_dense": {"head_dim": 128},
    "hunyuan_v1_moe": {"head_dim": 128, "num_experts": 4, "moe_topk": 2},
    "ministral": {"head_dim": 128},
    "deepseek_v2": {"moe_intermediate_size": 1408, "num_experts_per_tok": 6, "n_group": 1, "topk_group": 1},
    "dots1": {"n_routed_experts": 8, "n_shared_experts": 1, "num_experts_per_tok": 2},
    "gemma4_text": {"num_hidden_layers": 6},
    "gemma4_unified_text": {"num_hidden_layers": 6},
    **{name: {"text_config": {"num_hidden_layers": 6}} for name in ("gemma4", "gemma4_unified")},
    "bamba": {"attn_layer_indices": [1]},
    "falcon_h1": {"mamba_n_heads": 16, "mamba_d_head": 64, "mamba_d_ssm": 1024},
    "granitemoehybrid": {"layer_types": ["mamba", "attention"] * 16, "num_hidden_layers": 32},
    "jamba": {"attn_layer_period": 2, "attn_layer_offset": 1},
    "lfm2_moe": {"layer_types": ["full_attention"] * 2, "num_hidden_layers": 2},
}  # fmt: skip

# Beside the defaults of each family: what is known to differ.
VARIANTS: dict[str, tuple[str, dict[str, Any]]] = {
    "falcon (one key head)": ("falcon", {"new_decoder_architecture": False, "multi_query": True}),
    "falcon (new architecture)": (
        "falcon",
        {"new_decoder_architecture": True, "num_kv_heads": 8, "num_attention_heads": 16, "hidden_size": 1024},
    ),
    "falcon (sequential)": (
        "falcon",
        {"parallel_attn": False, "multi_query": False, "num_attention_heads": 16, "hidden_size": 1024},
    ),
    "falcon (ALiBi)": ("falcon", {"alibi": True}),
    "phi3 (longrope)": (
        "phi3",
        _SMALL_SHAPE
        | {
            "rope_parameters": _ROPE | _LONG | {"original_max_position_embeddings": 40},
            "original_max_position_embeddings": 40,
            "max_position_embeddings": CONTEXT,
        },
    ),
    "llama (dynamic NTK)": (
        "llama",
        _SMALL_SHAPE
        | {"rope_parameters": _ROPE | {"rope_type": "dynamic", "factor": 2.0}, "max_position_embeddings": CONTEXT},
    ),
    "llama (YaRN)": (
        "llama",
        _SMALL_SHAPE
        | {
            "rope_parameters": _ROPE | {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 32},
            "max_position_embeddings": CONTEXT,
        },
    ),
    "doge (window of 16)": ("doge", {"keep_window_size": 16}),
    "electra (encoder)": ("electra", {"is_decoder": False}),
    "bart (more decoder layers)": (
        "bart",
        {"is_encoder_decoder": False, "is_decoder": True, "encoder_layers": 1, "decoder_layers": 3},
    ),
    "bert (untied)": ("bert", {"is_decoder": True, "tie_word_embeddings": False}),
    "lfm2 (convolutions)": ("lfm2", {"layer_types": ["conv", "full_attention"] * 2, "num_hidden_layers": 4}),
    "lfm2_moe (convolutions)": ("lfm2_moe", {"layer_types": ["conv", "full_attention"] * 2, "num_hidden_layers": 4}),
    "qwen2 (sliding)": ("qwen2", {"use_sliding_window": True, "sliding_window": 64, "max_window_layers": 1}),
}

UNSHRINKABLE: dict[str, str] = {
    "gemma3n": "its image tower needs the package timm",
}
"""Families that no tiny model can be made of here, with why."""


def cases() -> dict[str, tuple[str, dict[str, Any]]]:
    """Of each case, the model type and the fields of its config that are not the defaults."""
    families = [*MODEL_FOR_CAUSAL_LM_MAPPING_NAMES, *IMAGES]
    return {name: (name, NEEDED.get(name, {})) for name in sorted(set(families))} | VARIANTS
