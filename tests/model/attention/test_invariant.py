"""In half precision on a CPU, a token gets the same bits whatever else shares its pass. Kernels depend on the machine, so these
tests hold on the machine that runs them."""

import itertools
from dataclasses import replace
from types import SimpleNamespace

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from torch.nn.functional import scaled_dot_product_attention
from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS

from families import tiny_model, tiny_sbd
from measuring.static_batch import static_batch
from setblock.decoding.settings.table import DecodingSettings
from setblock.engine import Engine, EngineLimits, Request
from setblock.engine.generate import generate_batch
from setblock.engine.offline import answered
from setblock.model.attention import invariant
from setblock.model.attention.grouped import GroupedAttention
from setblock.model.attention.invariant import _KEEPS_BITS, invariant_attention, sdpa_keeps_bits
from setblock.model.weights import is_supported, make_batch_invariant, prepack

SIZES = {
    "hidden_size": 256,
    "intermediate_size": 512,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 64,
    "num_hidden_layers": 2,
    "initializer_range": 0.06,
}
HALVES = (torch.bfloat16, torch.float16)
SIZES_OF_HEADS = (16, 32, 64, 80, 96, 112, 128, 256)


def inputs(dtype, *, batch, heads, rows, keys, size, first):
    torch.manual_seed(7)
    query = torch.randn(batch, heads, rows, size).to(dtype)
    key, value = torch.randn(2, batch, heads, keys, size).to(dtype)
    mask = torch.arange(keys) <= first + torch.arange(rows)[:, None]
    return query, key, value, mask.expand(batch, 1, -1, -1)


@pytest.fixture(params=["as it is found", "in order"])
def kernel(request):
    """Which kernel attends: PyTorch's where it keeps bits on this machine, or ours, as on other machines."""
    before = dict(_KEEPS_BITS)
    for dtype, size in itertools.product(HALVES, SIZES_OF_HEADS):
        _KEEPS_BITS[dtype, size] = request.param != "in order" and sdpa_keeps_bits(dtype, size)
    yield
    _KEEPS_BITS.clear()
    _KEEPS_BITS.update(before)


@pytest.mark.parametrize("dtype", HALVES)
@pytest.mark.parametrize("is_additive", [False, True])
def test_is_attention(kernel, dtype, is_additive):
    query, key, value, mask = inputs(dtype, batch=2, heads=3, rows=17, keys=150, size=32, first=133)
    given_mask = torch.zeros((), dtype=dtype).where(mask, torch.finfo(dtype).min) if is_additive else mask
    found = invariant_attention(query, key, value, given_mask, scale=0.2)
    wanted = scaled_dot_product_attention(*(each.double() for each in (query, key, value)), attn_mask=mask, scale=0.2)
    assert found.dtype == dtype
    torch.testing.assert_close(found.double(), wanted, rtol=0.02, atol=0.01)


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    dtype=st.sampled_from(HALVES),
    size=st.sampled_from(SIZES_OF_HEADS),
    first=st.integers(0, 700),
    row=st.integers(0, 20),
    count=st.integers(1, 12),
    unseen=st.integers(0, 200),
    row_of_batch=st.integers(0, 1),
)
def test_bits_do_not_depend_on_what_shares_the_pass(kernel, dtype, size, first, row, count, unseen, row_of_batch):
    """Of a pass over 32 queries of two rows, some queries of one row alone; keys that they may not see come or go."""
    query, key, value, mask = inputs(dtype, batch=2, heads=3, rows=32, keys=first + 32 + unseen, size=size, first=first)
    together = invariant_attention(query, key, value, mask, scale=size**-0.5)
    of_row, rows, seen = slice(row_of_batch, row_of_batch + 1), slice(row, row + count), first + row + count
    alone = invariant_attention(
        query[of_row, :, rows],
        key[of_row, :, :seen],
        value[of_row, :, :seen],
        mask[of_row, :, rows, :seen],
        scale=size**-0.5,
    )
    assert torch.equal(alone, together[of_row, :, rows])


def test_a_kernel_whose_sums_depend_on_the_call_is_found(monkeypatch):
    """One that sums values from the last key on, where a call has many queries; the result differs by less than a rounding."""

    def attend(query, key, value, mask):
        backwards = (key.flip(2), value.flip(2), mask.flip(3)) if query.shape[2] > 32 else (key, value, mask)
        query, key, value, mask = (each.float() for each in (query, *backwards))
        weights = (query @ key.transpose(2, 3) / 8 + mask).softmax(-1)
        sums = (weights.bfloat16().float()[..., None] * value[:, :, None]).cumsum(3)[:, :, :, -1]
        return sums.bfloat16()

    monkeypatch.delitem(_KEEPS_BITS, (torch.bfloat16, 64), raising=False)
    monkeypatch.setattr(invariant, "scaled_dot_product_attention", attend)
    assert not sdpa_keeps_bits(torch.bfloat16, 64)
    monkeypatch.undo()
    _KEEPS_BITS.pop((torch.bfloat16, 64), None)


@pytest.mark.parametrize("of_group", [1, 2, 4])
@pytest.mark.parametrize("queries", [1, 9, 600])
def test_a_mask_made_once_for_a_pass_is_the_one_made_in_each_layer(of_group, queries):
    """Also for layers with other groups than the config says, and with more queries than a group is made of."""
    model = tiny_model("llama", vocab_size=40, dtype=torch.bfloat16)  # 2 heads of a group, of size 8
    groups, size, keys = 2, 8, 64
    query = torch.randn(1, queries, groups * of_group, size).transpose(1, 2).bfloat16()
    key, value = torch.randn(2, 1, groups, keys, size).bfloat16()
    mask = (torch.rand(1, 1, queries, keys) < 0.5).index_fill(3, torch.tensor([0]), True)
    attention = GroupedAttention(model)
    made = attention.mask(mask, queries=queries)
    assert made.shape[2] == {1: 16, 9: 32, 600: 600}[queries]
    module = SimpleNamespace(num_key_value_groups=of_group, is_causal=True)
    found, wanted = (
        ALL_ATTENTION_FUNCTIONS[attention.name](module, query, key, value, each)[0] for each in (made, mask)
    )
    assert torch.equal(found, wanted)


@pytest.mark.in_turn
@pytest.mark.parametrize("dtype", HALVES)
@pytest.mark.parametrize("family", ["llama", "qwen3", "gpt_neox"])
def test_exact_mode_is_plain_decoding_to_the_bit(dtype, family, trained_tokenizer, prompts):
    """Alone and in a batch; a random model's logits are close to each other, so that a last bit decides tokens. Products much
    smaller than a real model's have kernels that depend on the number of rows."""
    model = tiny_sbd(family, trained_tokenizer, mode="shifted", dtype=dtype, **SIZES)
    model.end_of_text_ids = ()
    settings = [DecodingSettings(method=method, block_size=8, max_new_tokens=40) for method in ("ntp", "exact")]
    plain, exact = (generate_batch(model, prompts, settings=each) for each in settings)
    alone = [generate_batch(model, [prompt], settings=settings[1])[0] for prompt in prompts]
    assert [each.token_ids for each in exact] == [each.token_ids for each in plain]
    assert [each.token_ids for each in alone] == [each.token_ids for each in exact]


def test_the_engine_runs_products_of_few_numbers_of_rows(trained_tokenizer, prompts):
    """Each new number of rows is prepared anew, so passes and outputs are filled up; answers are those of each prompt alone."""
    model = tiny_sbd("llama", trained_tokenizer, mode="shifted", dtype=torch.bfloat16, **SIZES)
    model.end_of_text_ids = ()
    settings = DecodingSettings(method="exact", drafts="fixed", block_size=5, max_new_tokens=40)
    alone = [decoded(model, [prompt], settings)[0] for prompt in prompts]
    engine, tokens, outputs = Engine(model), set(), set()
    layer, head = model.model.model.layers[0].mlp.up_proj, model.model.get_output_embeddings()
    layer.register_forward_pre_hook(lambda _, given: tokens.add(given[0].shape[1]))
    head.register_forward_hook(lambda _, given, found: outputs.add(found.shape[1]))
    requests = [Request(str(number), prompt, settings) for number, prompt in enumerate(prompts)]
    found = {name: answer.token_ids for name, answer in answered(engine, requests)}
    assert [found[request.id] for request in requests] == alone
    assert max(tokens) > 8 < max(outputs)
    assert all(count <= 8 or count % 8 == 0 for count in tokens | outputs)


@pytest.mark.parametrize("dtype", HALVES)
def test_a_long_prompt_gets_the_same_bits_alone_and_in_a_batch(dtype, trained_tokenizer):
    """Parts of prompts of all lengths beside each other: of the size of a part, just below and above, and of several parts."""
    model = tiny_sbd("llama", trained_tokenizer, mode="shifted", dtype=dtype, max_position_embeddings=2048, **SIZES)
    model.end_of_text_ids = ()
    prompts = [[2 + (7 * row + place * place) % 200 for place in range(length)] for row, length in enumerate(LONG)]
    settings = [DecodingSettings(method=method, block_size=8, max_new_tokens=24) for method in ("ntp", "exact")]
    alone = [decoded(model, [prompt], settings[0])[0] for prompt in prompts]
    assert [decoded(model, prompts, each) for each in settings] == [alone, alone]
    assert len({tuple(each) for each in alone}) > 1


@pytest.mark.parametrize("dtype", HALVES)
def test_a_prompt_gets_the_same_bits_in_parts_of_all_sizes(kernel, dtype, trained_tokenizer):
    """Fed by `generate` in parts, and by engines as their budget and their prefix cache have it. An entropy shows each bit of
    the logits."""
    model = tiny_sbd("llama", trained_tokenizer, mode="shifted", dtype=dtype, max_position_embeddings=1024, **SIZES)
    model.end_of_text_ids = ()
    prompt = [2 + place * place % 200 for place in range(700)]
    settings = DecodingSettings(method="ntp", max_new_tokens=8)
    found = {
        f"in parts of {size}": generate_batch(model, [prompt], settings=replace(settings, prefill_chunk=size))[0]
        for size in (40, 300, 511, 512, 700)
    }
    for budget in (90, 640, 1024):
        limits = EngineLimits(max_num_batched_tokens=budget, kv_tokens=2048)
        for earlier in ([], prompt[:16], prompt[:333], prompt[:650]):  # what the cache holds of it already
            engine = Engine(model, limits)
            for name, tokens in (("earlier", earlier), ("prompt", prompt)):
                if tokens:
                    answer = dict(answered(engine, [Request(name, tokens, settings)]))[name]
            assert engine.figures.prefix_hit_tokens == len(earlier) // 16 * 16
            found[f"{budget} tokens in a pass, {len(earlier)} there"] = answer
    kinds = {(tuple(each.token_ids), tuple(each.entropy)) for each in found.values()}
    assert len(kinds) == 1, {name: each.entropy[:2] for name, each in found.items()}


LONG = (20, 400, 511, 512, 513, 1100)


def decoded(model, prompts, settings):
    batch = static_batch(model, prompts, [settings] * len(prompts))
    batch.run()
    return [batch.generation(row).token_ids for row in range(len(prompts))]


@pytest.mark.parametrize("is_prepacked", [False, True])
@pytest.mark.parametrize("dtype", HALVES)
def test_a_token_gets_the_same_bits_in_layers_of_few_tokens_and_of_many(dtype, is_prepacked):
    """Of a real model's size: for more than 32 tokens AMX has kernels that sum in another order. Small sums don't show it."""
    model = tiny_model("llama", vocab_size=3000, dtype=dtype, **SIZES | {"hidden_size": 576, "intermediate_size": 1536})
    if is_prepacked and is_supported(dtype):
        prepack(model)
    make_batch_invariant(model)
    layer = model.model.layers[0].mlp
    torch.manual_seed(3)
    hidden = torch.randn(1, 200, 576).to(dtype)
    with torch.inference_mode():
        pairs = torch.cat([layer(hidden[:, start : start + 2]) for start in range(0, 200, 2)], dim=1)
        for count in (3, 31, 32, 33, 48, 64, 65, 97, 130, 200):
            assert torch.equal(layer(hidden[:, :count]), pairs[:, :count])
