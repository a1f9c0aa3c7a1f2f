"""An adapter as decoding runs it: what PEFT computes, in few products, compiled and prepacked, and for the block alone."""

import sys
from pathlib import Path

import pytest
import torch
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode

from families import save_with_random_adapter, tiny_sbd
from setblock.decoding.samplers import EntropyBounded
from setblock.decoding.settings.table import DecodingSettings
from setblock.engine.generate import generate_batch
from setblock.model.adapter.adapted import Update
from setblock.model.adapter.adapter import block_only
from setblock.model.loading.loading import load
from setblock.model.weights import PrepackedLinear, is_supported

pytestmark = pytest.mark.usefixtures("longest_drafts")

pytest.importorskip("peft")

IN_BLOCK = torch.tensor([[False] * 4 + [True] * 3])
TOKENS = torch.tensor([[5, 6, 7, 8, 9, 10, 11]])


def saved(folder: Path, tokenizer, family="llama", **shape):
    """A checkpoint with an adapter of random weights; and the model as PEFT runs it, with its gate."""
    sbd = tiny_sbd(family, tokenizer, mode="shifted", **shape)
    sbd.prepare_for_training(block_sizes=[4, 8], logit_shift=True, noisy_adapter=True)
    save_with_random_adapter(sbd, folder)
    return folder, sbd.model.eval()


@pytest.fixture
def checkpoint(tmp_path, tokenizer):
    return saved(tmp_path, tokenizer)


@pytest.fixture
def of_one_layer(tmp_path, tokenizer):
    """To be compiled, which takes long for each layer."""
    return saved(tmp_path, tokenizer, num_hidden_layers=1)[0]


@pytest.mark.parametrize("family", ["llama", "gemma3_text", "gpt2", "phi3"])
def test_computes_what_peft_does(tmp_path, tokenizer, family):
    folder, by_peft = saved(tmp_path, tokenizer, family)
    ours = load(folder).model
    mask = load(folder).sbd_config.mask_token_id
    tokens = TOKENS.clone()
    tokens[0, -1] = mask
    with torch.inference_mode():
        for model in (by_peft, ours):
            assert model._setblock_gate.is_open is False
        plain = by_peft(tokens).logits
        assert torch.equal(ours(tokens).logits, plain)
        drafted = []
        for model in (by_peft, ours):
            with block_only(model, IN_BLOCK, is_fixed=True):
                drafted.append(model(tokens).logits)
        assert torch.equal(ours(tokens).logits, plain), "the gate stayed open"
    torch.testing.assert_close(drafted[1], drafted[0], atol=1e-3, rtol=1e-3)
    assert torch.equal(drafted[1][:, :4], plain[:, :4])
    assert not torch.isclose(drafted[1][:, 4:], plain[:, 4:]).any(dim=-1).all()


def test_peft_is_not_needed(checkpoint, monkeypatch):
    monkeypatch.setitem(sys.modules, "peft", None)
    model = load(checkpoint[0]).model
    assert not [name for name, each in model.named_modules() if type(each).__module__.startswith("peft")]
    updates = [each for each in model.modules() if isinstance(each, Update)]
    layers = model.config.num_hidden_layers
    assert (sum(len(each.layers) for each in updates), len(updates)) == (7 * layers, 4 * layers)


class Products(TorchDispatchMode):
    """Counts products of matrices, and their multiply-adds."""

    def __init__(self):
        super().__init__()
        self.count = self.multiply_adds = 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        if func.overloadpacket in (torch.ops.aten.linear, torch.ops.aten.addmm_):
            weight = args[1].t() if func.overloadpacket is torch.ops.aten.linear else args[2]
            self.count += 1
            self.multiply_adds += args[0].shape[:-1].numel() * weight.numel()
        return func(*args, **(kwargs or {}))


def test_a_row_of_the_block_costs_its_update_and_others_nothing(checkpoint):
    """r (in + out) multiply-adds for each layer; one product with A for each input, and one with B for each layer."""
    sbd, counts = load(checkpoint[0]), []
    for rows in (torch.zeros(1, 7).bool(), IN_BLOCK):
        with torch.inference_mode(), block_only(sbd.model, rows), Products() as products:
            sbd.model(TOKENS)
        counts.append((products.multiply_adds, products.count))
    adapted = [layer for each in sbd.model.modules() if isinstance(each, Update) for layer in each.layers]
    update = sum(4 * (layer.in_features + layer.out_features) for layer in adapted)
    (plain, products), (drafting, more) = counts
    assert plain >= TOKENS.numel() * sum(layer.weight.numel() for layer in adapted)
    assert drafting - plain == int(IN_BLOCK.sum()) * update
    assert more - products == (4 + 7) * sbd.model.config.num_hidden_layers


class Operations(TorchDispatchMode):
    """Counts the operators that compute or copy something, which views do not."""

    def __init__(self):
        super().__init__()
        self.count = 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        self.count += not func.is_view
        return func(*args, **(kwargs or {}))


def operations(model, in_block):
    with torch.inference_mode(), block_only(model, in_block), Operations() as counted:
        model(TOKENS)
    return counted.count


def test_a_prepacked_pass_has_few_operations_more_for_each_input(tmp_path, tokenizer):
    """Two products and a sum, and one product fewer for each that siblings share: q, k and v; gate and up. Those of the mask
    token's row, and of asking where the block is, are there once."""
    folder, _ = saved(tmp_path, tokenizer)
    base, sbd = tiny_sbd("llama", tokenizer, mode="shifted"), load(folder)
    if is_supported(torch.float32):
        for each in (base, sbd):
            each.prepack()
        plain, drafting = operations(base.model, IN_BLOCK), operations(sbd.model, IN_BLOCK)
        assert drafting - plain <= sbd.model.config.num_hidden_layers * (3 * 4 - 3) + 8


@pytest.mark.parametrize("prepacked", [False, True])
@pytest.mark.parametrize("in_block", [[0, 0, 0, 0, 1, 1, 1], [0, 1, 0, 0, 1, 0, 1], [1] * 7], ids=str)
def test_only_rows_of_the_block_change(checkpoint, prepacked, in_block):
    """Wherever they are, and whichever way the gate gets them."""
    sbd = load(checkpoint[0])
    if prepacked and is_supported(torch.float32):
        sbd.prepack()
    rows, where = torch.tensor([in_block]).bool(), {}
    with torch.inference_mode():
        plain = sbd.model(TOKENS, output_hidden_states=True).hidden_states
        for fixed in (False, True):
            with block_only(sbd.model, rows, is_fixed=fixed):
                where[fixed] = sbd.model(TOKENS, output_hidden_states=True).hidden_states
    torch.testing.assert_close(where[False], where[True], atol=1e-3, rtol=1e-3)
    first = min(i for i, inside in enumerate(in_block) if inside)
    for layer, (before, after) in enumerate(zip(plain, where[False], strict=True)):
        assert torch.equal(before[0, :first], after[0, :first])
        if layer:
            assert not torch.isclose(before[0, rows[0]], after[0, rows[0]]).all(dim=-1).any()


def test_layers_that_see_a_part_of_the_tokens_are_refused(checkpoint):
    sbd = load(checkpoint[0])
    sbd.model._setblock_gate.set(torch.ones(1, 5).bool())
    with pytest.raises(Exception, match="layers that see every token of a pass"):
        sbd.model(TOKENS)


def answers(sbd, prompts, *, k=8):
    settings = [
        DecodingSettings(method=method, block_size=k, max_new_tokens=30, sampler=sampler)
        for method, sampler in (("exact", None), ("sbd", EntropyBounded(gamma=1.0)), ("ntp", None))
        for _ in prompts
    ]
    found = generate_batch(sbd, [*prompts] * 3, settings=settings)
    return [each.token_ids for each in found], [each.passes for each in found]


@pytest.mark.parametrize("compiled", [False, True])
def test_prepacked_and_compiled_it_decodes_the_same(of_one_layer, prompts, compiled, monkeypatch):
    expected = answers(load(of_one_layer), prompts)
    assert expected[0][: len(prompts)] == expected[0][2 * len(prompts) :], "exact is not plain"
    sbd = load(of_one_layer)
    if is_supported(torch.float32):
        sbd.prepack()
        assert not [each for each in sbd.model.modules() if isinstance(each, Update) or type(each) is nn.Linear]
        packed = [each for each in sbd.model.modules() if isinstance(each, PrepackedLinear)]
        assert len(packed) == 12 * sbd.model.config.num_hidden_layers + 1, "three for each input, and the head"
    if compiled:
        sbd.compile(backend="eager")
    assert answers(sbd, prompts) == expected


def test_a_pass_without_a_block_compiles_nothing_anew(of_one_layer, prompts, monkeypatch):
    """An answer may end with one, which the adapter has no part in. The text is plain decoding's without compiling."""
    graphs = []

    def backend(graph, inputs):
        if any("linear" in str(node.target) for node in graph.graph.nodes):  # the model's
            graphs.append(graph)
        return graph.forward

    sbd, plain = load(of_one_layer), load(of_one_layer)
    sbd.compile(backend=backend)
    for prompt in prompts[:2]:
        longest = DecodingSettings(method="ntp", max_new_tokens=11)
        (expected,) = generate_batch(plain, [prompt], settings=longest)
        for tokens in range(3, 12, 2):
            settings = DecodingSettings(method="exact", block_size=4, max_new_tokens=tokens)
            (found,) = generate_batch(sbd, [prompt], settings=settings)
            assert found.token_ids == expected.token_ids[:tokens]
        generate_batch(sbd, [prompt], settings=DecodingSettings(method="ntp", max_new_tokens=3))
    assert len(graphs) <= 5, "four sizes of exact mode, and of plain decoding"


@pytest.mark.skipif(not is_supported(torch.bfloat16), reason="this processor has no products of bfloat16")
def test_exact_is_plain_to_the_bit_in_half_precision(tmp_path, tokenizer, prompts):
    sizes = {"hidden_size": 256, "intermediate_size": 512, "num_attention_heads": 4, "num_key_value_heads": 2}
    folder, _ = saved(tmp_path, tokenizer, initializer_range=0.06, **sizes)
    for prepacked in (False, True):
        sbd = load(folder, dtype=torch.bfloat16)
        sbd.end_of_text_ids = ()
        if prepacked:
            sbd.prepack()
        found = [
            [each.token_ids for each in generate_batch(sbd, prompts, settings=settings)]
            for settings in (
                DecodingSettings(method="ntp", max_new_tokens=40),
                DecodingSettings(method="exact", block_size=8, max_new_tokens=40),
            )
        ]
        assert found[0] == found[1]
