"""Layers that read one input are found, and the product that they share gives each of them its own part."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

from families import tiny_model
from setblock.model.adapter.adapted import SharedProduct, sharing_input


@pytest.mark.parametrize(
    ("family", "of_layer"),
    [
        ("llama", [{"q_proj", "k_proj", "v_proj"}, {"o_proj"}, {"gate_proj", "up_proj"}, {"down_proj"}]),
        ("gemma2", [{"q_proj", "k_proj", "v_proj"}, {"o_proj"}, {"gate_proj", "up_proj"}, {"down_proj"}]),
        ("phi3", [{"qkv_proj"}, {"o_proj"}, {"gate_up_proj"}, {"down_proj"}]),
    ],
)
def test_finds_them(family, of_layer):
    model = tiny_model(family, vocab_size=40)
    layers = {name: each for name, each in model.named_modules() if isinstance(each, nn.Linear)}
    groups = sharing_input(model, layers)
    assert sorted(name for group in groups for name in group) == sorted(layers)
    found = [{name.rpartition(".")[2] for name in group} for group in groups]
    assert found == of_layer * model.config.num_hidden_layers + [{"lm_head"}]
    assert all(len({name.rpartition(".")[0] for name in group}) == 1 for group in groups), "of two layers"
    assert not any(layer._forward_pre_hooks for layer in layers.values())


def test_layers_that_are_called_twice_or_never_are_alone():
    model = tiny_model("llama", vocab_size=40)
    first = model.model.layers[0]
    first.self_attn.k_proj = first.self_attn.v_proj
    unused = nn.Linear(4, 4)
    layers = {"q": first.self_attn.q_proj, "v": first.self_attn.v_proj, "unused": unused}
    assert sorted(sharing_input(model, layers)) == [["q"], ["unused"], ["v"]]


@given(calls=st.lists(st.tuples(st.integers(0, 2), st.integers(0, 1)), max_size=12))
def test_each_gets_its_own_part_in_any_order(calls):
    weight = torch.randn(6, 4)
    inputs = [torch.randn(2, 4) for _ in range(2)]
    shared, sizes = SharedProduct(), [slice(0, 1), slice(1, 3), slice(3, 6)]
    for index, number in calls:
        part = shared.part(index, inputs[number], lambda hidden: torch.split(hidden @ weight.T, [1, 2, 3], dim=-1))
        assert torch.equal(part, (inputs[number] @ weight.T)[:, sizes[index]])
        part.zero_()  # what a layer does with its part is its own business


def test_one_product_serves_all_and_nothing_is_kept():
    computed = []
    shared, hidden = SharedProduct(), torch.randn(3, 4)
    for _ in range(2):
        for index in (0, 1):
            shared.part(index, hidden, lambda hidden: computed.append(hidden) or hidden.split(2, dim=-1))
    assert len(computed) == 2
    assert shared._input is None
    assert not shared._parts
