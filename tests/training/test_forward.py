"""Long rows: documents are attended one by one, a dense attention mask that is too large is refused before it is made, and
FlexAttention is never given one."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn import functional
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves
from transformers import PreTrainedModel

from families import FAMILIES, tiny_model
from setblock.data.packing import PADDING, Document, RowDataset, pack
from setblock.errors import SetBlockError
from setblock.masks import CLEAN, train_mask
from setblock.model.attention.attention import mask_form
from setblock.model.attention.document_attention import RowRuns, Run
from setblock.model.runners.forward import logits_at
from setblock.training.inputs import doubled as inputs_module
from setblock.training.inputs.doubled import Targets, TrainingInputs, ntp_inputs
from setblock.training.inputs.noising import Noising
from setblock.training.loss import forward
from setblock.training.loss.forward import training_logits
from training.doubling import batch_of, doubled, packed_rows


def row_of(length: int, batch: int = 1) -> TrainingInputs:
    """Clean rows without a target."""
    positions = torch.arange(length).expand(batch, length)
    none = Targets(torch.zeros(0, dtype=torch.long), torch.zeros(0, dtype=torch.long))
    same = torch.zeros((batch, length), dtype=torch.long)
    runs = (RowRuns((Run(length, 0),)),) * batch
    return TrainingInputs(
        same + 2, positions, same, same + CLEAN, positions + 1, none, none, *[positions[0, :0]] * 2, runs
    )


def doubled_row_of(length: int, batch: int = 1) -> TrainingInputs:
    """`row_of`, with the same tokens as one noisy block behind each row, so that its mask has 2 L² pairs."""
    clean = row_of(length, batch)
    columns = {
        name: torch.cat([getattr(clean, name)] * 2, dim=1) for name in ("input_ids", "position_ids", "document_ids")
    }
    columns["block_ids"] = torch.cat([clean.block_ids, clean.block_ids + 1], dim=1)
    columns["limits"] = torch.cat([clean.limits, torch.zeros_like(clean.limits)], dim=1)
    runs = (RowRuns((Run(length, 0),), (Run(length, 0, length),)),) * batch
    return TrainingInputs(**(vars(clean) | columns | {"rows": runs}))


def model_of(family: str, attention: str = "sdpa") -> PreTrainedModel:
    model = tiny_model(family, vocab_size=60, max_position_embeddings=1 << 20)
    model.set_attn_implementation(attention)
    return model


@pytest.mark.parametrize(
    ("family", "attention", "batch", "length", "needed"),
    [
        ("llama", "sdpa", 1, 23_171, "1 x 46,342 tokens would take 1.0 GiB"),
        ("llama", "sdpa", 2, 46_341, "2 x 92,682 tokens would take 8.0 GiB"),
        ("llama", "eager", 1, 32_768, "1 x 65,536 tokens would take 16.0 GiB"),
        # For each kind of layer a mask, and one of the clean tokens, since some of their layers have a window
        ("gemma3_text", "sdpa", 1, 26_755, "1 x 53,510 tokens would take 4.0 GiB"),
    ],
)
def test_a_mask_too_large_is_refused_before_it_is_made(
    family: str, attention: str, batch: int, length: int, needed: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(forward, "mask_form", _never)
    monkeypatch.setattr(forward, "document_masks", _never)
    with pytest.raises(SetBlockError, match=needed) as refusal:
        training_logits(model_of(family, attention), doubled_row_of(length, batch), torch.zeros(0, dtype=torch.long))
    message = str(refusal.value)
    assert "\n" not in message
    assert "more than the 1 GiB allowed: set model.attn_implementation to flex_attention" in message


def test_the_limit_is_where_it_is_said_to_be(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(forward, "LARGEST_DENSE_MASK", 2 * 100 * 100)
    none = torch.zeros(0, dtype=torch.long)
    training_logits(model_of("llama"), doubled_row_of(100), none)
    with pytest.raises(SetBlockError, match="1 x 202 tokens"):
        training_logits(model_of("llama"), doubled_row_of(101), none)
    training_logits(model_of("llama"), row_of(1000), none)  # plainly causal: no mask at all


@pytest.mark.in_turn
@pytest.mark.parametrize("family", sorted(FAMILIES.keys() - {"gemma2"}))  # whose soft-capping SDPA has not
@pytest.mark.parametrize("is_ntp", [False, True])
def test_documents_one_by_one_are_one_mask_over_the_row(family: str, is_ntp: bool) -> None:
    """Logits and gradients, with documents in several places of a row (two noisy copies) and padding in both halves."""
    batch = packed_rows((13, 9, 24, 3))
    noising = Noising(noisy_copies=2, random_offsets=0.5)
    inputs = ntp_inputs(batch) if is_ntp else doubled(batch, block_size=4, noising=noising)
    index = torch.cat([inputs.ntp.index, inputs.matp.index])
    found = []
    for logits_of in (training_logits, over_whole_rows):
        model = tiny_model(family, vocab_size=60, dtype=torch.float64)
        if "moe" in family or family == "mixtral":
            model.set_experts_implementation("eager")  # the others have no kernel for float64
        logits = logits_of(model, inputs, index)
        torch.autograd.backward(logits.square().sum())
        assert model.config._attn_implementation == "sdpa"
        found.append([logits, *(p.grad for p in model.parameters() if p.grad is not None)])
    assert len(found[0]) == len(found[1])
    torch.testing.assert_close(*found)


def over_whole_rows(model: PreTrainedModel, inputs: TrainingInputs, index: Tensor) -> Tensor:
    """`training_logits`, by one dense mask."""
    batch, length = inputs.input_ids.shape
    where = {name: getattr(inputs, name) for name in ("position_ids", "document_ids", "block_ids", "limits")}
    form = mask_form(model, most=max(batch, length), device=model.device)
    mask = form.mask(lambda window: train_mask(**where, window=window), batch=batch, queries=length, keys=length)
    return logits_at(model, index, input_ids=inputs.input_ids, position_ids=inputs.position_ids, attention_mask=mask)


def test_takes_a_result_with_heads_innermost(lay_heads_innermost: Callable[[], None]) -> None:
    model, inputs = model_of("llama"), doubled(packed_rows())
    expected = training_logits(model, inputs, inputs.matp.index)
    lay_heads_innermost()
    assert torch.equal(training_logits(model, inputs, inputs.matp.index), expected)


def test_nothing_is_computed_between_documents(monkeypatch: pytest.MonkeyPatch) -> None:
    attended = []
    attend = functional.scaled_dot_product_attention
    monkeypatch.setattr(
        functional,
        "scaled_dot_product_attention",
        lambda q, k, v, **how: attended.append((q.shape[2], k.shape[2])) or attend(q, k, v, **how),
    )
    inputs = row_of(40)
    inputs.document_ids[0, :] = torch.tensor([0] * 15 + [1] * 20 + [PADDING] * 5)
    inputs = replace(inputs, rows=(RowRuns((Run(15, 0), Run(20, 1), Run(5, None))),))
    model = model_of("llama")
    training_logits(model, inputs, torch.zeros(0, dtype=torch.long))
    assert attended == [(15, 15), (20, 20)] * model.config.num_hidden_layers


def test_noisy_blocks_see_no_keys_behind_them(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of two copies of a document of 40 tokens in runs of two blocks of 5 each: the clean tokens before, and themselves."""
    monkeypatch.setattr(inputs_module, "RUN_LENGTH", 16)
    attended = []
    attend = functional.scaled_dot_product_attention
    monkeypatch.setattr(
        functional,
        "scaled_dot_product_attention",
        lambda q, k, v, **how: attended.append((q.shape[2], k.shape[2])) or attend(q, k, v, **how),
    )
    rows = RowDataset(pack([Document(list(range(2, 42)), [True] * 40)], row_length=40, pad_token_id=0))
    inputs = doubled(batch_of(rows), noising=Noising(noisy_copies=2))
    model = model_of("llama")
    training_logits(model, inputs, torch.zeros(0, dtype=torch.long))
    heads = (
        model.config.num_attention_heads // model.config.num_key_value_heads
    )  # those that share keys go side by side
    of_layer = [(40, 40), *((heads * 20, earlier + 20) for earlier in (5, 15, 25, 35))]
    assert attended == of_layer * model.config.num_hidden_layers


def test_a_model_that_hands_nothing_on_is_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    model = model_of("llama")
    forward_of = model.model.forward
    monkeypatch.setattr(model.model, "forward", lambda layout, **given: forward_of(**given))
    with pytest.raises(SetBlockError, match=r"set model\.attn_implementation to eager or flex_attention"):
        training_logits(model, row_of(40), torch.zeros(0, dtype=torch.long))


class _Largest(TorchDispatchMode):  # type: ignore[no-untyped-call]  # its hook has no types
    """The most elements that a tensor has which is made while this is active."""

    elements = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        made = func(*args, **kwargs or {})
        self.elements = max([self.elements, *(each.numel() for each in tree_leaves(made) if isinstance(each, Tensor))])
        return made


def test_no_dense_mask_is_made_for_flex_attention(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing as large as half of one is, up to the first layer, in a row beyond the limit of dense masks."""
    monkeypatch.setattr(forward, "LARGEST_DENSE_MASK", 100)
    monkeypatch.setattr("setblock.masks._PAIRS_AT_ONCE", 1)  # a row of tiles at a time
    model = model_of("llama", "flex_attention")

    def stop(*_: object) -> None:
        raise StopIteration  # FlexAttention itself compiles for long, and has tests of its own

    model.model.layers[0].register_forward_pre_hook(stop)
    row = row_of(900)
    with pytest.raises(StopIteration), _Largest() as largest:  # type: ignore[no-untyped-call]
        training_logits(model, row, torch.zeros(0, dtype=torch.long))
    assert largest.elements < 900**2 / 2


def _never(*args: object, **kwargs: object) -> Tensor:
    raise AssertionError("a dense mask is made")
