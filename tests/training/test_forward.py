"""Long rows: documents are attended one by one, a dense attention mask that is too large is refused before it is made, and
FlexAttention is never given one."""

import pytest
import torch
from torch import Tensor
from torch.nn import functional
from torch.nn.attention.flex_attention import BlockMask
from transformers import PreTrainedModel

from families import CONTEXT, FAMILIES, tiny_model
from setblock.data.documents import Document
from setblock.data.packing import PADDING, RowCollator, RowDataset, pack
from setblock.errors import SetBlockError
from setblock.masks import CLEAN, train_mask
from setblock.model.attention import attention_mask
from setblock.model.forward import logits_at
from setblock.training import forward
from setblock.training.forward import training_logits
from setblock.training.inputs import Targets, TrainingInputs, doubled_inputs, ntp_inputs
from setblock.training.noising import Noising


def row_of(length: int, batch: int = 1) -> TrainingInputs:
    """Clean rows without a target."""
    positions = torch.arange(length).expand(batch, length)
    none = Targets(torch.zeros(0, dtype=torch.long), torch.zeros(0, dtype=torch.long))
    same = torch.zeros((batch, length), dtype=torch.long)
    return TrainingInputs(same + 2, positions, same, same + CLEAN, positions + 1, none, none, positions[0, :0])


def model_of(family: str, attention: str = "sdpa") -> PreTrainedModel:
    model = tiny_model(family, vocab_size=60, max_position_embeddings=1 << 20)
    model.set_attn_implementation(attention)
    return model


@pytest.mark.parametrize(
    ("family", "attention", "batch", "length", "needed"),
    [
        ("llama", "sdpa", 1, 32_769, "1 x 32,769 tokens would take 1.0 GiB"),
        ("llama", "sdpa", 2, 65_536, "2 x 65,536 tokens would take 8.0 GiB"),
        ("llama", "eager", 1, 65_536, "1 x 65,536 tokens would take 16.0 GiB"),
        ("gemma3_text", "sdpa", 1, 65_536, "1 x 65,536 tokens would take 8.0 GiB"),  # a mask for each kind of layer
    ],
)
def test_a_mask_too_large_is_refused_before_it_is_made(
    family: str, attention: str, batch: int, length: int, needed: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(forward, "attention_mask", _never)
    monkeypatch.setattr(forward, "document_masks", _never)
    with pytest.raises(SetBlockError, match=needed) as refusal:
        training_logits(model_of(family, attention), row_of(length, batch), torch.zeros(0, dtype=torch.long))
    message = str(refusal.value)
    assert "\n" not in message
    assert "more than the 1 GiB allowed: set model.attn_implementation to flex_attention" in message


def test_the_limit_is_where_it_is_said_to_be(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(forward, "LARGEST_DENSE_MASK", 100 * 100)
    none = torch.zeros(0, dtype=torch.long)
    training_logits(model_of("llama"), row_of(100), none)
    with pytest.raises(SetBlockError, match="1 x 101 tokens"):
        training_logits(model_of("llama"), row_of(101), none)


@pytest.mark.parametrize("family", sorted(FAMILIES.keys() - {"gemma2"}))  # whose soft-capping SDPA has not
@pytest.mark.parametrize("is_ntp", [False, True])
def test_documents_one_by_one_are_one_mask_over_the_row(family: str, is_ntp: bool) -> None:
    """Logits and gradients, with documents in several places of a row (two noisy copies) and padding in both halves."""
    generator = torch.Generator().manual_seed(0)
    documents = [
        Document(torch.randint(2, 60, (n,), generator=generator).tolist(), [i >= 3 for i in range(n)])
        for n in (13, 9, 24, 3)
    ]
    rows = RowDataset(pack(documents, row_length=30, pad_token_id=0))
    batch = RowCollator(pad_token_id=0)([rows[0], rows[1]])
    inputs = (
        ntp_inputs(batch)
        if is_ntp
        else doubled_inputs(
            batch,
            block_size=4,
            noising=Noising(noisy_copies=2, random_offsets=0.5),
            logit_shift=False,
            mask_token_id=1,
            end_of_text_id=0,
            context_length=CONTEXT,
            seed=(0, 0),
        )
    )
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
    mask = attention_mask(
        model.config,
        lambda window: train_mask(**where, window=window),
        batch=batch,
        queries=length,
        keys=length,
        device=model.device,
        dtype=model.dtype,
    )
    return logits_at(model, index, input_ids=inputs.input_ids, position_ids=inputs.position_ids, attention_mask=mask)


def test_nothing_is_computed_between_documents(monkeypatch: pytest.MonkeyPatch) -> None:
    attended = []
    attend = functional.scaled_dot_product_attention
    monkeypatch.setattr(
        functional,
        "scaled_dot_product_attention",
        lambda q, k, v, **how: attended.append((q.shape[2], k.shape[2])) or attend(q, k, v, **how),
    )
    inputs = row_of(40)
    inputs.document_ids[0, :] = torch.tensor([0] * 10 + [1] * 20 + [0] * 5 + [PADDING] * 5)
    model = model_of("llama")
    training_logits(model, inputs, torch.zeros(0, dtype=torch.long))
    assert attended == [(15, 15), (20, 20)] * model.config.num_hidden_layers


def test_a_model_that_hands_nothing_on_is_told_so(monkeypatch: pytest.MonkeyPatch) -> None:
    model = model_of("llama")
    forward_of = model.model.forward
    monkeypatch.setattr(model.model, "forward", lambda document_rows, **given: forward_of(**given))
    with pytest.raises(SetBlockError, match=r"set model\.attn_implementation to eager or flex_attention"):
        training_logits(model, row_of(40), torch.zeros(0, dtype=torch.long))


def test_flex_attention_is_given_no_dense_mask(monkeypatch: pytest.MonkeyPatch) -> None:
    """Rows beyond the dense limit run, and each layer gets a `BlockMask` that no dense mask went into."""
    monkeypatch.setattr(forward, "LARGEST_DENSE_MASK", 100)
    monkeypatch.setattr("setblock.model.attention.to_dense", _never)
    model, seen = model_of("llama", "flex_attention"), []

    def keep(module: object, args: object, kwargs: dict[str, object]) -> None:
        seen.append(kwargs["attention_mask"])
        raise StopIteration  # FlexAttention itself compiles for long, and has tests of its own

    model.model.layers[0].register_forward_pre_hook(keep, with_kwargs=True)
    with pytest.raises(StopIteration):
        training_logits(model, row_of(300), torch.zeros(0, dtype=torch.long))
    assert [type(mask) for mask in seen] == [BlockMask]


def _never(*args: object, **kwargs: object) -> Tensor:
    raise AssertionError("a dense mask is made")
