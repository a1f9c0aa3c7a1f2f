"""Training of a model with a recurrent state: each text is a row, and one of its blocks is a row behind the text before it."""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn.functional import cross_entropy
from transformers import PreTrainedTokenizerBase

from families import RECURRENT, tiny_model
from setblock.data.packing import Document, RowDataset, as_batch, pack
from setblock.errors import SetBlockError
from setblock.masks import CLEAN
from setblock.model.loading.loading import NotTrainedForBlocks
from setblock.model.sbd_model import SBDModel
from setblock.training.inputs.cut_rows import cut_inputs
from setblock.training.inputs.doubled import TrainingInputs, noisy_halves
from setblock.training.inputs.noising import Noising
from setblock.training.loss.forward import training_logits, training_loss

MASK, SIZE = 1, 4
LENGTHS = (19, 8, 26)


@pytest.fixture
def texts() -> list[list[int]]:
    """The token ids of three texts; the first tokens of each are a prompt."""
    generator = torch.Generator().manual_seed(2)
    return [torch.randint(2, 300, (length,), generator=generator).tolist() for length in LENGTHS]


@pytest.fixture
def batch(texts: list[list[int]]) -> dict[str, Tensor]:
    """Two packed rows."""
    documents = [Document(each, [place >= 3 for place in range(len(each))]) for each in texts]
    rows = RowDataset(pack(documents, row_length=28, pad_token_id=0))
    return as_batch([rows[number] for number in range(len(rows))], pad_token_id=0)


def inputs_of(batch: dict[str, Tensor], *, step: int = 0, shift: bool = True, copies: int = 1) -> TrainingInputs:
    noise: dict[str, Any] = {
        "block_size": SIZE,
        "noising": Noising(noisy_copies=copies),
        "noise_ids": range(MASK, MASK + 1),
        "end_of_text_id": 0,
        "context_length": 100,
        "seed": (0, step),
    }
    return cut_inputs(batch, noisy_halves(batch, **noise), copies=copies, logit_shift=shift, seed=(0, step))


def split(inputs: TrainingInputs) -> tuple[list[list[int]], list[tuple[list[int], list[int]]]]:
    """The texts; and of each other row, the tokens before its block, and those of the block."""
    whole, cut = list[list[int]](), list[tuple[list[int], list[int]]]()
    for row, (ids, blocks, documents) in enumerate(
        zip(inputs.input_ids, inputs.block_ids, inputs.document_ids, strict=True)
    ):
        is_text, in_block = documents >= 0, blocks != CLEAN
        if inputs.rows[row].clean:
            whole.append(ids[is_text].tolist())
        else:
            cut.append((ids[is_text & ~in_block].tolist(), ids[in_block].tolist()))
    return whole, cut


def texts_of(texts: Sequence[list[int]], before: list[int], block: list[int]) -> list[list[int]]:
    """The texts that a block with noise may be a part of, behind the tokens before it."""
    return [
        each
        for each in texts
        if each[: len(before)] == before
        and all(a in (MASK, b) for a, b in zip(block, each[len(before) :], strict=False))
    ]


def test_rows_are_texts_and_texts_up_to_a_block(batch: dict[str, Tensor], texts: list[list[int]]) -> None:
    starts = set[int]()
    for step in range(20):
        whole, cut = split(inputs_of(batch, step=step))
        assert sorted(whole) == sorted(texts)
        for before, block in cut:
            assert texts_of(whole, before, block)
            assert len(before) % SIZE == 0
            assert 1 <= len(block) <= SIZE
            assert MASK in block
            starts.add(len(before))
    assert len(starts) > 3  # blocks of all places are drawn


@pytest.mark.parametrize("shift", [False, True])
def test_targets_are_the_tokens_of_the_text(batch: dict[str, Tensor], shift: bool) -> None:
    inputs = inputs_of(batch, shift=shift)
    whole, cut = split(inputs)
    width = inputs.input_ids.shape[1]
    for index, token in zip(inputs.ntp.index.tolist(), inputs.ntp.token_ids.tolist(), strict=True):
        assert whole[index // width][index % width + 1] == token
    assert len(inputs.ntp.index) == sum(len(each) - 3 for each in whole)  # none of a prompt
    predicted = dict(zip(inputs.matp.index.tolist(), inputs.matp.token_ids.tolist(), strict=True))
    for index, token in predicted.items():
        before, block = cut[index // width - len(whole)]
        place = index % width + shift
        assert len(before) + shift <= place < len(before) + len(block)
        assert block[place - len(before)] == MASK
        assert token in [text[place] for text in texts_of(whole, before, block) if place < len(text)]
    # A clean output that predicts the same token
    for target, index in zip(inputs.has_teacher.tolist(), inputs.teacher_index.tolist(), strict=True):
        assert whole[index // width][index % width + 1] == int(inputs.matp.token_ids[target])


def test_blocks_count_for_all_of_their_text(batch: dict[str, Tensor]) -> None:
    """So both terms have the weights of the doubled input, on average."""
    inputs = [inputs_of(batch, step=step) for step in range(300)]
    targets = sum(len(each.matp.index) * each.matp_scale for each in inputs) / len(inputs)
    learned = sum(len(each) - 3 for each in split(inputs[0])[0])
    masked = learned * (SIZE - 1) / SIZE / 2  # a shift leaves out the first token of a block, and half are masked
    assert targets == pytest.approx(masked, rel=0.15)


def test_noise_depends_on_the_row_and_the_step(batch: dict[str, Tensor]) -> None:
    one, again, other = inputs_of(batch), inputs_of(batch), inputs_of(batch, step=1)
    assert torch.equal(one.input_ids, again.input_ids)
    assert split(one)[1] != split(other)[1]
    alone = inputs_of({name: column[1:] for name, column in batch.items()})
    assert split(alone)[1][0] in split(one)[1]


def test_copies_are_blocks(batch: dict[str, Tensor]) -> None:
    assert len(split(inputs_of(batch, copies=2))[1]) > len(split(inputs_of(batch))[1])


@pytest.mark.parametrize("family", RECURRENT)
def test_the_loss_is_that_of_causal_passes(family: str, batch: dict[str, Tensor]) -> None:
    model, inputs = tiny_model(family, vocab_size=300), inputs_of(batch)
    whole, cut = split(inputs)
    rows: Sequence[list[int]] = [*whole, *(before + block for before, block in cut)]
    width = inputs.input_ids.shape[1]
    for targets in (inputs.ntp, inputs.matp):
        logits = training_logits(model, inputs, targets.index)
        for index, found in zip(targets.index.tolist(), logits, strict=True):
            wanted = model(input_ids=torch.tensor([rows[index // width]]), use_cache=False).logits[0, index % width]
            torch.testing.assert_close(found, wanted, atol=2e-4, rtol=2e-4)
            break  # one of each is enough: a pass takes long
    loss = training_loss(model, inputs, head=None, ntp_weight=1.0, matp_weight=inputs.matp_scale)
    ntp, matp = (training_logits(model, inputs, each.index) for each in (inputs.ntp, inputs.matp))
    wanted = cross_entropy(ntp, inputs.ntp.token_ids, reduction="sum")
    wanted = wanted + inputs.matp_scale * cross_entropy(matp, inputs.matp.token_ids, reduction="sum")
    torch.testing.assert_close(loss.total, wanted)
    loss.total.backward()  # type: ignore[no-untyped-call]
    assert all(p.grad is not None and p.grad.isfinite().all() for p in model.parameters() if p.requires_grad)


@pytest.mark.parametrize("family", RECURRENT)
def test_an_adapter_on_the_block_leaves_clean_rows_their_bits(
    family: str, batch: dict[str, Tensor], trained_tokenizer: PreTrainedTokenizerBase
) -> None:
    """The base model's, in a training pass over rows with and without a block; tokens of a block get others."""
    pytest.importorskip("peft")
    from setblock.model.adapter.adapter import gate_of
    from setblock.training.adapter import AdapterSection, add_adapter

    sbd = SBDModel(tiny_model(family, vocab_size=len(trained_tokenizer)), trained_tokenizer)
    sbd.prepare_for_training(block_sizes=[SIZE], logit_shift=True, causal_block=True)
    inputs = inputs_of(batch, copies=2)
    in_block = inputs.block_ids != CLEAN
    places = torch.arange(in_block.numel())
    base = training_logits(sbd.model, inputs, places).detach()
    # Experts, and the Mamba layers that PEFT refuses, can't have one
    modules = "all-linear" if family in ("lfm2", "qwen3_5_text") else ["q_proj", "k_proj", "v_proj"]
    wrapped: Any = add_adapter(sbd, AdapterSection(r=4, only_noisy=True, target_modules=modules))
    for name, parameter in wrapped.named_parameters():
        if "lora_" in name or "trainable_tokens" in name:
            parameter.data.normal_()
    gate = gate_of(sbd.model)
    assert gate is not None
    gate.set(in_block)
    adapted = training_logits(sbd.model, inputs, places, wrapped=wrapped.train())
    gate.set(None)
    clean = (~in_block & (inputs.document_ids >= 0)).flatten()
    assert torch.equal(adapted[clean], base[clean])
    changed = (adapted != base).any(dim=1)[in_block.flatten()]
    assert changed.all()


def test_blocks_must_be_causal(trained_tokenizer: PreTrainedTokenizerBase) -> None:
    sbd = SBDModel(tiny_model("lfm2", vocab_size=len(trained_tokenizer)), trained_tokenizer)
    with pytest.raises(SetBlockError, match="lfm2 keeps a recurrent state, so that its blocks are causal"):
        sbd.prepare_for_training(block_sizes=[4], logit_shift=False)
    with pytest.raises(SetBlockError, match="lfm2 can't be compiled: it keeps a recurrent state"):
        sbd.compile()


@pytest.mark.parametrize("adapter", [None, {"r": 4}, {"r": 4, "only_noisy": True}])
def test_a_recipe_trains_and_its_model_decodes(
    adapter: dict[str, Any] | None, tokenizer: PreTrainedTokenizerBase, tmp_path: Path
) -> None:
    """All weights, an adapter that is merged, and one on the block, which leaves plain decoding what it is."""
    from setblock import generate, load
    from setblock.training.recipe import load_recipe
    from setblock.training.run.train import train

    if adapter is not None:
        pytest.importorskip("peft")
    model = tiny_model("lfm2", vocab_size=len(tokenizer), initializer_range=0.1)
    model.save_pretrained(tmp_path / "base")
    tokenizer.save_pretrained(tmp_path / "base")
    (tmp_path / "data.jsonl").write_text(json.dumps({"prompt": "Ada has 3", "completion": " She has 3 pears."}) + "\n")
    recipe = {
        "model": {"path": str(tmp_path / "base")},
        "data": {"source": str(tmp_path / "data.jsonl")},
        "training": {
            "output_dir": str(tmp_path / "run"),
            "block_attention": "causal",
            "block_sizes": [4],
            "full_mask_share": 1.0,
            "max_steps": 2,
            "learning_rate": 0.01,
            "save_strategy": "no",
            "report_to": "none",
            "use_cpu": True,
        },
    } | ({} if adapter is None else {"adapter": adapter})
    (tmp_path / "recipe.yaml").write_text(json.dumps(recipe))
    train(*load_recipe(tmp_path / "recipe.yaml"))
    trained = load(tmp_path / "run")
    with pytest.warns(NotTrainedForBlocks):
        base = load(tmp_path / "base")
    assert trained.sbd_config is not None
    assert trained.sbd_config.causal_block
    texts = [generate(trained, "Ada has", method=method, max_new_tokens=30).token_ids for method in ("ntp", "exact")]
    assert texts[0] == texts[1]
    if adapter is not None and adapter.get("only_noisy"):
        assert texts[0] == generate(base, "Ada has", method="ntp", max_new_tokens=30).token_ids
