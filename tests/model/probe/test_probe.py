"""The probe finds a way to call a model's attention that is right, or says what is wrong with all of them."""

from pathlib import Path
from typing import Any

import pytest
import torch
from torch.nn import functional
from transformers import AutoConfig, AutoModelForCausalLM, PreTrainedTokenizerBase

from answers import answers
from families import RECURRENT, tiny_model
from setblock import DecodingSettings, SetBlockError, load
from setblock.errors import SetBlockWarning
from setblock.model.attention.attention import AttentionPlan
from setblock.model.attention.grouped import GROUPED_SDPA
from setblock.model.loading.loading import NotTrainedForBlocks
from setblock.model.probe import probe
from setblock.model.probe.probe import plan_attention
from setblock.model.protocol.runtime import RowSchedule
from setblock.model.runners.state_runner import StateRow
from setblock.model.sbd_model import SBDModel

GPT_NEO = {
    "hidden_size": 32,
    "num_layers": 2,
    "num_heads": 4,
    "attention_types": [[["global", "local"], 1]],
    "max_position_embeddings": 64,
    "window_size": 8,
}
SHAPE = {"hidden_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4, "max_position_embeddings": 256}
LONGROPE = SHAPE | {
    "intermediate_size": 96,
    "num_key_value_heads": 2,
    "pad_token_id": None,
    "rope_parameters": {
        "rope_type": "longrope",
        "rope_theta": 10000.0,
        "short_factor": [1.0] * 8,
        "long_factor": [2.0 + i for i in range(8)],
        "original_max_position_embeddings": 40,
    },
    "original_max_position_embeddings": 40,
}


def made(model_type: str, tokenizer: PreTrainedTokenizerBase, **config: Any) -> SBDModel:
    torch.manual_seed(0)
    model = AutoModelForCausalLM.from_config(
        AutoConfig.for_model(model_type, vocab_size=len(tokenizer), initializer_range=0.6, **config)
    )
    return SBDModel(model.eval(), tokenizer)


def test_a_model_with_a_causal_mask_of_its_own_is_refused_when_loaded(
    tmp_path: Path, tokenizer: PreTrainedTokenizerBase
) -> None:
    made("gpt_neo", tokenizer, **GPT_NEO).save(tmp_path)
    with pytest.raises(SetBlockError, match="gpt_neo can't be decoded in blocks: it ignores a mask"):
        load(tmp_path)


def test_a_model_that_takes_no_4d_mask_is_refused(tokenizer: PreTrainedTokenizerBase) -> None:
    with pytest.raises(SetBlockError, match="bloom can't be decoded in blocks: it takes no 4D mask"):
        plan_attention(made("bloom", tokenizer, hidden_size=32, n_layer=2, n_head=4).model)


def test_a_model_that_looks_at_what_follows_is_refused(tokenizer: PreTrainedTokenizerBase) -> None:
    with pytest.raises(
        SetBlockError, match="electra can't be decoded in blocks: the logits of a token change with the"
    ):
        plan_attention(made("electra", tokenizer, hidden_size=64, num_hidden_layers=2, is_decoder=False).model)


def test_attention_that_reads_its_own_name_keeps_it(tokenizer: PreTrainedTokenizerBase) -> None:
    plan = plan_attention(made("falcon", tokenizer, **SHAPE).model)
    assert plan.implementation == "sdpa"
    assert (plan.grouped, plan.by_document, plan.untrainable) == (False, False, None)
    assert plan.unpackable is not None


@pytest.mark.parametrize(("family", "by_document"), [("llama", True), ("stablelm", False), ("nemotron", False)])
def test_a_model_that_hands_nothing_on_is_trained_by_whole_rows(
    family: str, by_document: bool, tokenizer: PreTrainedTokenizerBase
) -> None:
    plan = plan_attention(made(family, tokenizer, num_key_value_heads=2, intermediate_size=96, **SHAPE).model)
    assert plan == AttentionPlan("sdpa", grouped=True, by_document=by_document)


def test_rotary_tables_that_change_with_the_longest_position_limit_the_context(
    tmp_path: Path, tokenizer: PreTrainedTokenizerBase
) -> None:
    made("phi3", tokenizer, **LONGROPE).save(tmp_path)
    message = r"right for 40 tokens at most.*past original_max_position_embeddings 40"
    with pytest.warns(NotTrainedForBlocks), pytest.warns(SetBlockWarning, match=message):
        sbd = load(tmp_path)
    assert sbd.context_length == 40
    with pytest.raises(SetBlockError, match=r"max_new_tokens must be at most 10 after a prompt of 30 tokens"):
        answers(sbd, [[5] * 30], [DecodingSettings(method="ntp", max_new_tokens=11)])


def test_eager_attention_is_taken_where_sdpa_is_wrong(
    tokenizer: PreTrainedTokenizerBase, monkeypatch: pytest.MonkeyPatch
) -> None:
    attend = functional.scaled_dot_product_attention

    def without_masks(query: Any, key: Any, value: Any, attn_mask: Any = None, **how: Any) -> Any:
        if attn_mask is not None and attn_mask.dtype is torch.bool:
            attn_mask = attn_mask.float()  # added, as Falcon's eager attention does
        return attend(query, key, value, attn_mask=attn_mask, **how)

    monkeypatch.setattr(functional, "scaled_dot_product_attention", without_masks)
    monkeypatch.setattr(probe, "_FOUND", {})
    model = made("llama", tokenizer, intermediate_size=96, **SHAPE).model
    with pytest.raises(SetBlockError, match="llama can't be decoded in blocks: it gives other logits with a 4D mask"):
        plan_attention(model)
    assert plan_attention(model, alternatives=["eager"]).implementation == "eager"
    assert model.config._attn_implementation == "eager"


def test_a_fault_of_grouped_attention_alone_is_found(
    tokenizer: PreTrainedTokenizerBase, monkeypatch: pytest.MonkeyPatch
) -> None:
    functions = probe.PaddedRunner.__init__.__globals__["GroupedAttention"].__init__.__globals__[
        "ALL_ATTENTION_FUNCTIONS"
    ]
    sdpa = functions["sdpa"]
    monkeypatch.setitem(
        functions, GROUPED_SDPA, lambda module, q, k, v, mask, **how: sdpa(module, q, k, v, None, **how)
    )
    monkeypatch.setattr(probe, "_FOUND", {})
    plan = plan_attention(made("llama", tokenizer, intermediate_size=96, **SHAPE).model)
    assert (plan.implementation, plan.grouped, plan.by_document) == ("sdpa", False, True)


def test_the_random_state_is_left_alone(tokenizer: PreTrainedTokenizerBase, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(probe, "_FOUND", {})
    model = made("llama", tokenizer, intermediate_size=96, **SHAPE).model
    state = torch.get_rng_state()
    plan_attention(model)
    assert torch.equal(torch.get_rng_state(), state)


MAMBA = {"hidden_size": 64, "num_hidden_layers": 2, "vocab_size": 64, "state_size": 8}
JAMBA = SHAPE | {
    "intermediate_size": 96,
    "num_key_value_heads": 2,
    "attn_layer_period": 2,
    "attn_layer_offset": 1,
    "num_experts": 2,
    "vocab_size": 64,
}


@pytest.mark.parametrize(("family", "fields"), [("mamba", MAMBA), ("jamba", JAMBA)])
def test_a_state_that_several_tokens_ignore(family: str, fields: dict[str, Any]) -> None:
    """By Transformers' code, a pass over several tokens begins without the state."""
    model = AutoModelForCausalLM.from_config(AutoConfig.for_model(family, **fields))
    with pytest.raises(SetBlockError, match=f"{family} .* other logits in a pass over several tokens from a state"):
        plan_attention(model)


@pytest.mark.parametrize("family", RECURRENT)
def test_states_that_are_put_back(family: str) -> None:
    plan = plan_attention(tiny_model(family, vocab_size=64))
    assert plan.keeps_state
    assert plan.together


def test_a_state_that_is_not_put_back(monkeypatch: pytest.MonkeyPatch) -> None:
    """The probe sees it if the state after a wrong draft is kept."""
    monkeypatch.setattr(RowSchedule, "in_block", property(lambda scheduled: 0))
    monkeypatch.setattr(StateRow, "go_to", _go_on)
    monkeypatch.setattr(probe, "_FOUND", {})
    with pytest.raises(SetBlockError, match="after its state was put back"):
        plan_attention(tiny_model("lfm2", vocab_size=64))


def _go_on(row: StateRow, start: int) -> None:
    """Keep the last state, wherever the row continues."""
    if row.after >= 0:
        row.place, row.spare, row.settled = row.spare, row.place, min(start, row.after)
    row.tail, row.after = row.tail[: max(0, start - row.settled)], -1
