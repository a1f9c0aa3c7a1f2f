"""Captured passes may be replayed as long as a model's state is the same: where its weights are, and what its layers do."""

import copy
from collections.abc import Callable

import pytest
import torch
from peft import LoraConfig, inject_adapter_in_model
from torch import nn
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from families import tiny_sbd
from setblock.model.runners.static_passes import state_of
from setblock.model.weights import quantize


@pytest.fixture
def model(tokenizer: PreTrainedTokenizerBase) -> PreTrainedModel:
    return tiny_sbd("llama", tokenizer).model


def moved(model: nn.Module) -> None:
    """As `model.to` does it: the parameters stay, and their data go elsewhere."""
    for each in model.parameters():
        each.data = each.data.clone()


CHANGES: dict[str, Callable[[nn.Module], object]] = {
    "moved": moved,
    "type": lambda model: model.half(),
    "training": lambda model: model.train(),
    "training of one layer": lambda model: model.model.layers[0].train(),
}


@pytest.mark.parametrize("change", CHANGES)
def test_the_state_changes_with_the_model(change: str, model: PreTrainedModel) -> None:
    before = state_of(model)
    CHANGES[change](model)
    assert state_of(model) != before


def test_new_values_at_the_same_addresses_are_the_same_state(model: PreTrainedModel) -> None:
    before = state_of(model)
    with torch.no_grad():
        for each in model.parameters():
            each.mul_(2)
    assert state_of(model) == before


def test_quantised_weights_have_addresses_too(model: PreTrainedModel) -> None:
    quantize(model)
    before = state_of(model)
    assert state_of(model) == before
    layer = model.model.layers[0].mlp
    layer.up_proj.weight = nn.Parameter(copy.deepcopy(layer.up_proj.weight), requires_grad=False)
    assert state_of(model) != before


def test_an_adapter_that_is_switched(model: PreTrainedModel) -> None:
    adapted = inject_adapter_in_model(LoraConfig(target_modules=["q_proj"], r=2), model)
    layer = adapted.model.layers[0].self_attn.q_proj
    states = [state_of(adapted)]
    layer.enable_adapters(False)
    states.append(state_of(adapted))
    layer.enable_adapters(True)
    assert state_of(adapted) == states[0]
    layer.merge()
    states.append(state_of(adapted))
    layer.unmerge()
    layer.update_layer("other", r=2, lora_alpha=1, config=LoraConfig(r=2))
    states.append(state_of(adapted))
    layer.set_adapter("other")
    states.append(state_of(adapted))
    assert len({*states}) == len(states)
