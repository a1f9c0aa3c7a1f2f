"""UNO's form of blocks (arXiv 2609.04010): uniform noise in place of a mask token, and causal blocks, each alone and both."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor
from transformers import PreTrainedTokenizerBase

from families import save_with_random_adapter, tiny_sbd
from naive import full_logits, naive_decode, naive_exact
from running import check_that_rows_come_and_go_as_alone
from setblock.data.packing import Document, RowDataset, as_batch, pack
from setblock.decoding.samplers import ConfidenceThreshold, EntropyBounded
from setblock.decoding.settings.table import DecodingSettings
from setblock.decoding.step.choice import random_tokens
from setblock.engine.generate import generate_batch
from setblock.engine.limits import EngineLimits
from setblock.engine.request import Request
from setblock.masks import CLEAN
from setblock.model.adapter.adapter import block_only
from setblock.model.loading.loading import load
from setblock.model.protocol.runtime import ModelInput, PassLayout, PassPlan, RowSchedule
from setblock.model.sbd_model import SBDModel
from setblock.training.inputs.doubled import TrainingInputs, doubled_inputs
from setblock.training.inputs.noising import Noising
from setblock.training.loss.forward import training_logits

pytestmark = pytest.mark.usefixtures("longest_drafts")

pytest.importorskip("peft")

FORMS: list[Any] = [
    pytest.param({"noise": "uniform", "causal_block": True}, id="UNO"),
    pytest.param({"noise": "uniform", "causal_block": False}, id="uniform"),
    pytest.param({"noise": "mask", "causal_block": True}, id="causal"),
]


@pytest.fixture(scope="module", params=FORMS)
def model(
    request: pytest.FixtureRequest, trained_tokenizer: PreTrainedTokenizerBase, tmp_path_factory: pytest.TempPathFactory
) -> SBDModel:
    """A random model with a random adapter, from disk. At a temperature its drafts are often right: the noise that tokens
    are drawn with decides more than its logits do."""
    folder: Path = tmp_path_factory.mktemp("model")
    sbd = tiny_sbd("llama", trained_tokenizer, mode="shifted", initializer_range=0.2)
    sbd.prepare_for_training(block_sizes=[4, 8], logit_shift=True, noisy_adapter=True, **request.param)
    save_with_random_adapter(sbd, folder, alpha=8)
    loaded = load(folder)
    assert loaded.sbd_config == sbd.sbd_config
    loaded.end_of_text_ids = ()
    return loaded


def settings_of(method: Any, **others: Any) -> DecodingSettings:
    return DecodingSettings(method=method, **({"max_new_tokens": 40, "block_size": 6} | others))


@pytest.mark.in_turn
@pytest.mark.parametrize("temperature", [0.0, 0.9])
def test_exact_text_is_plain_decodings_alone_and_in_batches_and_in_the_engine(
    model: SBDModel, prompts: list[list[int]], temperature: float
) -> None:
    of = {"temperature": temperature, "seed": 5, "max_new_tokens": 24}
    plain = [each.token_ids for each in generate_batch(model, prompts, settings=settings_of("ntp", **of))]
    for drafts in ("fixed", "adaptive"):
        exact = settings_of("exact", drafts=drafts, **of)
        together = generate_batch(model, prompts, settings=exact)
        alone = [generate_batch(model, [prompt], settings=exact)[0] for prompt in prompts]
        for found in (together, alone):
            assert [tuple(each.token_ids) for each in found] == [tuple(each) for each in plain]
        if drafts == "fixed":
            assert [each.num_forwards for each in together] == [each.num_forwards for each in alone]
            requests = [Request(str(n), prompt, exact) for n, prompt in enumerate(prompts)]
            limits = EngineLimits(kv_tokens=112, page_tokens=4, max_num_seqs=3)
            check_that_rows_come_and_go_as_alone(model, requests, limits)


def test_every_token_is_that_of_the_naive_twin(model: SBDModel, prompts: list[list[int]]) -> None:
    """Passes too, so the drafts are the same."""
    for method, naive, gamma in (
        ("exact", naive_exact, 12.0),
        ("sbd", naive_decode, 8.0),
    ):
        sampler = EntropyBounded(gamma=gamma)  # in `sbd`, several passes fill a block
        of = {"drafts": "fixed", "temperature": 4.0, "seed": 3, "max_new_tokens": 26}
        settings = settings_of(method, sampler=sampler, **of)
        settings = replace(settings, prompt_lookup=0) if method == "exact" else settings
        fast = [generate_batch(model, [prompt], settings=settings)[0] for prompt in prompts]
        for prompt, answer in zip(prompts, fast, strict=True):
            expected = naive(model, prompt, settings, sampler=sampler, forward=full_logits)
            assert (list(answer.token_ids), answer.passes.decoding) == expected
        passes = sum(each.passes.decoding for each in fast)
        assert 6 * len(prompts) < passes < 21 * len(prompts), method


def test_drafts_follow_from_the_seed_and_greedy_text_does_not(model: SBDModel, prompts: list[list[int]]) -> None:
    sampler = ConfidenceThreshold(threshold=0.0)
    text, passes = set(), set()
    for seed in (0, 0, 1, 2, 3):
        settings = settings_of("exact", drafts="fixed", seed=seed, sampler=sampler, prompt_lookup=0)
        found = generate_batch(model, prompts, settings=settings)
        text.add(tuple(tuple(each.token_ids) for each in found))
        passes.add((seed, tuple(each.num_forwards for each in found)))
    assert len(text) == 1
    assert len(passes) == 4, "the same seed drafts the same"


def test_random_tokens_are_uniform_and_depend_on_seed_and_position_alone() -> None:
    seeds, positions = torch.tensor([3, 4]), torch.arange(4000).expand(2, -1)
    found = random_tokens(seeds, positions, vocab_size=10)
    assert found.shape == positions.shape
    counts = found.flatten().bincount(minlength=10)
    assert len(counts) == 10
    assert ((counts - 800).abs() < 5 * 800**0.5).all()
    assert torch.equal(random_tokens(seeds[1:], positions[:1, 7:9], vocab_size=10), found[1:, 7:9])
    assert (found[0] == found[1]).float().mean() < 0.15


@pytest.mark.parametrize("packed", [False, True])
def test_the_training_mask_gives_the_logits_that_decoding_sees(model: SBDModel, packed: bool) -> None:
    """Of every block of two documents: one fused pass over all tokens before it and the block, in the runner, gives what
    training's one pass over both halves does."""
    documents = [
        Document(
            torch.randint(2, 60, (n,), generator=torch.Generator().manual_seed(n)).tolist(), [i >= 3 for i in range(n)]
        )
        for n in (21, 14)
    ]
    batch, inputs = doubled(model, documents, packed=packed)
    clean = batch["input_ids"].shape[1]
    with torch.inference_mode(), block_only(model.model, inputs.block_ids != CLEAN):
        trained = training_logits(model.model, inputs, torch.arange(inputs.input_ids.numel()))
    checked = 0
    blocks = inputs.block_ids[0]
    for block in blocks[(blocks != CLEAN) & (inputs.document_ids[0] >= 0)].unique():
        here = (blocks == block).nonzero()[:, 0]
        start, document = int(inputs.limits[0, here[0]]), int(inputs.document_ids[0, here[0]])
        before = documents[document].token_ids[:start]
        assert len(before) == start, "a block begins behind the document"
        tokens = torch.tensor([[*before, *inputs.input_ids[0, here].tolist()]])
        with torch.inference_mode():
            seen = one_pass(model, tokens, start)[start - 1 :]
        first = clean_place(batch["document_ids"][0], document) + start - 1
        expected = torch.cat([trained[first : first + 1], trained[here]])
        torch.testing.assert_close(seen, expected, atol=1e-4, rtol=1e-4)
        checked += len(here)
    assert checked == int((inputs.block_ids[0] != CLEAN).sum()) > 25
    assert clean >= 35


def doubled(
    model: SBDModel, documents: list[Document], *, packed: bool, seed: int = 0
) -> tuple[dict[str, Tensor], TrainingInputs]:
    """A row of some documents, and the inputs of training on it."""
    sbd_config = model.sbd_config
    assert sbd_config is not None
    batch = as_batch([RowDataset(pack(documents, row_length=40, pad_token_id=0))[0]], pad_token_id=0)
    inputs = doubled_inputs(
        batch,
        block_size=6,
        noising=Noising(noise_on="targets", mask_rate_per="block", complete_last_block=True),
        logit_shift=True,
        noise_ids=sbd_config.noise_ids,
        end_of_text_id=0,
        context_length=128,
        seed=(seed,),
        causal_block=sbd_config.causal_block,
        is_flat=packed,
    )
    return batch, inputs


@pytest.mark.parametrize("packed", [False, True])
def test_noise_leaves_clean_rows_of_training_as_they_are_to_the_bit(model: SBDModel, packed: bool) -> None:
    documents = [Document(list(range(2, 23)), [True] * 21), Document(list(range(30, 44)), [True] * 14)]
    seen = []
    for seed in (0, 1):
        _, inputs = doubled(model, documents, packed=packed, seed=seed)
        is_clean = inputs.block_ids == CLEAN
        with torch.inference_mode(), block_only(model.model, ~is_clean):
            logits = training_logits(model.model, inputs, torch.arange(inputs.input_ids.numel()))
        seen.append((inputs.input_ids, logits, is_clean.flatten()))
    (tokens, logits, is_clean), (other_tokens, other_logits, _) = seen
    assert not torch.equal(tokens, other_tokens)
    assert not torch.equal(logits[~is_clean], other_logits[~is_clean])
    assert torch.equal(logits[is_clean], other_logits[is_clean])


def test_noise_leaves_clean_rows_of_a_pass_as_they_are_to_the_bit(model: SBDModel) -> None:
    before = torch.arange(2, 19)
    first, second = (
        one_pass(model, torch.cat([before, torch.tensor(noise)])[None], len(before))
        for noise in ([40, 41, 42, 43], [50, 41, 52, 53])
    )
    assert not torch.equal(first[len(before) :], second[len(before) :])
    assert torch.equal(first[: len(before)], second[: len(before)])


def clean_place(document_ids: Tensor, document: int) -> int:
    return int(np.flatnonzero(document_ids.numpy() == document)[0])


def one_pass(model: SBDModel, tokens: Tensor, start: int) -> Tensor:
    """Logits [T, V] of a fused pass over a prompt and a block."""
    length = tokens.shape[1]
    outputs = torch.arange(length)[None]
    sbd_config = model.sbd_config
    assert sbd_config is not None
    plan = PassPlan(
        rows=torch.tensor([0]),
        batch=1,
        ends=torch.tensor([length]),
        queries=length,
        width=outputs.shape[1],
        visible=length,
        layout=PassLayout.FULL,
        causal_block=sbd_config.causal_block,
        schedules=[RowSchedule(0, length, start, is_prefill=False)],
    )
    inputs = ModelInput(
        plan=plan,
        tokens=tokens,
        positions=torch.arange(length)[None],
        block_start=torch.tensor([start]),
        is_real=torch.ones_like(tokens).bool(),
        outputs=outputs,
        wanted=torch.ones_like(outputs).bool(),
        targets=outputs + 1,
    )
    logits: Tensor = model.runner(pages=1, page_tokens=length + 1, rows=1, whole_rows=True).logits(inputs)
    return logits.view(outputs.shape[1], -1)
