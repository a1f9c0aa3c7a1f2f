"""The gate of an adapter on the future block: for which tokens it opens, in which families, and what can't have one."""

from typing import Any

import pytest
import torch
from transformers import PreTrainedTokenizerBase

from families import tiny_sbd
from setblock.errors import SetBlockError
from setblock.model.adapter.adapter import Gate, block_only
from setblock.model.sbd_model import SBDModel
from setblock.training.adapter import AdapterSection, add_adapter

pytest.importorskip("peft")


def trainable(tokenizer: PreTrainedTokenizerBase, family: str = "llama", **adapter: Any) -> tuple[SBDModel, Any]:
    """An SBD model and its wrapper, the adapter's second matrices random so that it does something."""
    sbd = tiny_sbd(family, tokenizer)
    wrapped = add_adapter(sbd, AdapterSection(r=2, **adapter))
    generator = torch.Generator().manual_seed(0)
    for name, parameter in wrapped.named_parameters():
        if "lora_B" in name:
            parameter.data.normal_(generator=generator)
    return sbd, wrapped.eval()


def test_only_the_adapter_and_the_mask_tokens_embedding_are_trained(tokenizer: PreTrainedTokenizerBase) -> None:
    sbd, wrapped = trainable(tokenizer)
    assert sbd.sbd_config is not None
    trained = {name for name, p in wrapped.named_parameters() if p.requires_grad}
    assert all("lora_" in name or "trainable_tokens" in name for name in trained)
    (row,) = (p for name, p in wrapped.named_parameters() if "trainable_tokens" in name)
    assert len(row) == 1
    assert not any("lm_head" in name and "lora_" in name for name in trained)


def test_the_gate_opens_for_the_tokens_it_is_given(tokenizer: PreTrainedTokenizerBase) -> None:
    """Closed it is the base model; open everywhere, LoRA as PEFT has it; between, causal tokens before it see nothing."""
    plain = tiny_sbd("llama", tokenizer).model
    _, ungated = trainable(tokenizer)
    sbd, _ = trainable(tokenizer, only_noisy=True)
    assert isinstance(sbd.model._setblock_gate, Gate)
    tokens = torch.tensor([[5, 6, 7, 8, 9, 10]])
    with torch.inference_mode():
        of_base, of_lora = plain(tokens).logits, ungated(input_ids=tokens).logits
        assert not torch.equal(of_base, of_lora)
        assert torch.equal(sbd.model(tokens).logits, of_base)
        with block_only(sbd.model, torch.ones_like(tokens).bool(), is_fixed=True):
            assert torch.equal(sbd.model(tokens).logits, of_lora)
        with block_only(sbd.model, torch.tensor([[False] * 4 + [True] * 2]), is_fixed=True):
            part = sbd.model(tokens).logits
        assert torch.equal(part[:, :4], of_base[:, :4])
        assert not torch.isclose(part[:, 4:], of_base[:, 4:]).any(dim=-1).all()
        assert torch.equal(sbd.model(tokens).logits, of_base), "the gate stayed open"


def test_a_layer_that_sees_a_part_of_the_tokens_is_refused(tokenizer: PreTrainedTokenizerBase) -> None:
    sbd, _ = trainable(tokenizer, only_noisy=True)
    sbd.model._setblock_gate.set(torch.ones(1, 5).bool())
    with pytest.raises(SetBlockError, match="layers that see every token of a pass"):
        sbd.model(torch.tensor([[5, 6, 7, 8]]))


@pytest.mark.parametrize("family", ["qwen3", "gemma3_text", "phi3", "mixtral", "qwen3_moe"])
def test_the_gate_in_other_families(tokenizer: PreTrainedTokenizerBase, family: str) -> None:
    plain = tiny_sbd(family, tokenizer).model
    # Experts hold their weights in one tensor, which PEFT changes as a whole.
    layers = ["q_proj", "v_proj"] if family in ("mixtral", "qwen3_moe") else "all-linear"
    sbd, _ = trainable(tokenizer, family, only_noisy=True, target_modules=layers)
    tokens = torch.tensor([[5, 6, 7, 8, 9, 10]])
    with torch.inference_mode():
        assert torch.equal(sbd.model(tokens).logits, plain(tokens).logits)
        with block_only(sbd.model, torch.tensor([[False] * 4 + [True] * 2]), is_fixed=True):
            part = sbd.model(tokens).logits
    # To the rounding of experts, which take their tokens together.
    torch.testing.assert_close(part[:, :4], plain(tokens).logits[:, :4], atol=1e-3, rtol=1e-3)
    assert not torch.equal(part[:, 4:], plain(tokens).logits[:, 4:])


def test_experts_are_refused(tokenizer: PreTrainedTokenizerBase) -> None:
    """A gate that some layer does not heed would be none."""
    with pytest.raises(SetBlockError, match=r"only_noisy does not work with .*mlp.* name other layers"):
        trainable(tokenizer, "mixtral", only_noisy=True)
