"""Shapes read from configs have the weights that the models made from these configs have."""

import pytest
import torch
from transformers import AutoConfig, AutoModelForCausalLM

from families import FAMILIES
from setblock.errors import SetBlockError
from setblock.roofline.hardware import HARDWARE
from setblock.roofline.prediction import Precision, Prediction
from setblock.roofline.shape import PRESETS, shape_of

MORE = {
    "olmoe": FAMILIES["llama"] | {"num_experts": 8, "num_experts_per_tok": 2},
    "glm4_moe": FAMILIES["llama"]
    | {"moe_intermediate_size": 24, "n_routed_experts": 4, "num_experts_per_tok": 2, "first_k_dense_replace": 1}
    | {"n_group": 1, "topk_group": 1, "head_dim": 8},
    "starcoder2": FAMILIES["llama"],
}


def made(family, **overrides):
    config = AutoConfig.for_model(
        family, **({"vocab_size": 300, "pad_token_id": 0} | (FAMILIES | MORE)[family] | overrides)
    )
    with torch.device("meta"):
        return config, AutoModelForCausalLM.from_config(config)


def matrices(model):
    return sum(weight.numel() for weight in model.parameters() if weight.ndim > 1)


@pytest.mark.parametrize("tied", [True, False], ids=["tied", "untied"])
@pytest.mark.parametrize("family", [*FAMILIES, *MORE])
def test_counts_every_matrix(family, tied):
    config, model = made(family, tie_word_embeddings=tied)
    shape = shape_of(config)
    assert shape.parameters == matrices(model)
    assert shape_of(config.to_dict()).parameters == shape.parameters  # a config.json says as much


@pytest.mark.parametrize("family", ["llama", "gemma2", "gpt2"])
def test_one_token_goes_through_all_but_the_embeddings_of_a_dense_model(family):
    config, model = made(family, tie_word_embeddings=False)
    embeddings = sum(m.weight.numel() for m in model.modules() if isinstance(m, torch.nn.Embedding))
    assert shape_of(config).active_parameters == matrices(model) - embeddings


def test_one_token_goes_through_its_own_experts_only():
    config, model = made("mixtral")
    idle = sum(w.numel() for name, w in model.named_parameters() if "experts" in name and w.ndim > 1) // 2
    untied = model.get_input_embeddings().weight.numel()
    assert shape_of(config).active_parameters == matrices(model) - untied - idle


def test_windows_are_those_of_the_layers():
    shape = shape_of(made("gemma3_text")[0])
    assert {layer.window: layer.count for layer in shape.layers} == {12: 1, None: 1}
    assert [layer.window for layer in shape_of(made("mistral")[0]).layers] == [12]
    assert [layer.window for layer in shape_of(made("qwen2", sliding_window=12)[0]).layers] == [None]  # switched off


def test_cached_numbers_are_those_of_the_cache():
    config, _ = made("qwen3")
    model = AutoModelForCausalLM.from_config(config)
    with torch.inference_mode():
        cache = model(input_ids=torch.tensor([[1, 2, 3]]), use_cache=True).past_key_values
    numbers = sum(layer.keys.numel() + layer.values.numel() for layer in cache.layers)
    prediction = Prediction(shape=shape_of(config), hardware=HARDWARE["h100"], precision=Precision.of("float32"))
    assert prediction.kv_memory(3) == 4 * numbers


# What their model cards say, in billions.
@pytest.mark.parametrize(
    ("preset", "parameters", "active"),
    [
        ("llama-3.1-8b", 8.03, 7.50),
        ("qwen3-8b", 8.19, 7.57),
        ("qwen3-30b-a3b", 30.5, 3.0),
        ("smollm2-135m", 0.1345, 0.1345),
    ],
)
def test_presets_are_the_models_that_they_name(preset, parameters, active):
    assert PRESETS[preset].parameters / 1e9 == pytest.approx(parameters, rel=0.002)
    assert PRESETS[preset].active_parameters / 1e9 == pytest.approx(active, rel=0.02)


@pytest.mark.parametrize(
    ("config", "said"),
    [
        ({"model_type": "llama"}, "no valid hidden_size"),
        ({"hidden_size": 8, "num_attention_heads": 0}, "no valid num_attention_heads: 0"),
        (FAMILIES["llama"] | {"vocab_size": 9, "kv_lora_rank": 4, "model_type": "deepseek_v3"}, "latent attention"),
        (FAMILIES["llama"] | {"per_layer_config": {"1": {"head_dim": 4}}}, "layers of different sizes"),
        (FAMILIES["llama"] | {"vocab_size": 9, "layer_types": ["linear_attention"] * 3}, "'linear_attention'"),
    ],
)
def test_refuses_what_it_can_not_model(config, said):
    with pytest.raises(SetBlockError, match=said):
        shape_of(config)
