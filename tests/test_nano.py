"""examples/nano.py is the method in one file: the library gives the same losses, tokens and passes."""

import dataclasses
import runpy
from pathlib import Path

import pytest
import torch

from families import tiny_model
from setblock import DecodingSettings, generate, load
from setblock.data.packing import Document, RowDataset, as_batch, pack
from setblock.decoding.samplers import EntropyBounded
from setblock.training.inputs.doubled import doubled_inputs
from setblock.training.inputs.noising import Noising
from setblock.training.loss.forward import training_loss

FILE = Path(__file__).parent.parent / "examples" / "nano.py"
NANO = runpy.run_path(str(FILE))
MASK, END, VOCABULARY = 1, 0, 60
PROMPTS = (
    "Maya has 12 apples. Maya finds 7 more. Maya gives away 4 of them. How many apples does Maya have now?",
    "Ben buys 4 pens for 3 dollars each and 2 mugs for 7 dollars each. How many dollars does Ben pay?",
    "Ana works 4 hours a day for 5 days and earns 8 dollars an hour. Ana spends 30 dollars on food. How many dollars are left?",
    "Tom reads 12 pages a day.",
)


def test_it_needs_pytorch_and_transformers_alone():
    text = FILE.read_text()
    imported = {
        line.split()[1].partition(".")[0] for line in text.splitlines() if line.startswith(("import ", "from "))
    }
    assert imported - {"dataclasses", "math", "pathlib", "sys", "collections"} == {"torch", "transformers"}


def batch(seed):
    """One document as a row of the library's."""
    tokens = torch.randint(2, VOCABULARY, (23,), generator=torch.Generator().manual_seed(seed)).tolist()
    rows = pack([Document(tokens, [True] * len(tokens))], row_length=len(tokens), pad_token_id=END)
    dataset = RowDataset(rows)
    return as_batch([dataset[0]], pad_token_id=END)


@pytest.mark.parametrize("shift", [False, True], ids=["unshifted", "shifted"])
def test_training_has_the_losses_of_the_library(shift):
    ours, theirs = (tiny_model("llama", vocab_size=VOCABULARY) for _ in range(2))
    optimisers = [torch.optim.AdamW(model.parameters(), lr=1e-2) for model in (ours, theirs)]
    losses = []
    for step in range(6):
        rows, k = batch(step), 2 + step
        inputs = doubled_inputs(
            rows,
            block_size=k,
            noising=Noising(),
            logit_shift=shift,
            noise_ids=range(MASK, MASK + 1),
            end_of_text_id=END,
            context_length=128,
            seed=(7, step),
        )
        tokens = rows["input_ids"][0]
        is_masked = inputs.input_ids[0, len(tokens) :] == MASK
        mine = NANO["loss"](ours, tokens, is_masked, block_size=k, mask_token=MASK, shift=shift)
        library = training_loss(theirs, inputs, head=None, ntp_weight=1.0, matp_weight=1.0).total
        losses.append((mine.item(), library.item()))
        for loss, optimiser in zip((mine, library), optimisers, strict=True):
            optimiser.zero_grad()
            loss.backward()
            optimiser.step()
    assert [mine for mine, _ in losses] == pytest.approx([library for _, library in losses], rel=1e-4)
    assert len({round(mine) for mine, _ in losses}) > 1


def test_noise_masks_each_token_with_the_probability_of_its_text():
    generator = torch.Generator().manual_seed(0)
    shares = torch.tensor([NANO["noise"](400, generator).float().mean() for _ in range(400)])
    assert shares.mean() == pytest.approx(0.5, abs=0.05)
    assert shares.var() == pytest.approx(1 / 12, rel=0.2)  # of a uniform draw


@pytest.fixture(scope="module")
def bundled():
    return load(device="cpu")


@pytest.mark.in_turn
@pytest.mark.parametrize("block_size", [1, 4, 16])
@pytest.mark.parametrize(
    ("method", "gamma"), [("ntp", 0.0), ("sbd", 0.01), ("sbd", 0.35), ("sbd", 9.0), ("exact", 1.0)]
)
def test_decoding_has_the_tokens_and_passes_of_the_library(bundled, method, gamma, block_size):
    fixed = {"drafts": "fixed"} if "drafts" in {f.name for f in dataclasses.fields(DecodingSettings)} else {}
    for prompt, limit in zip(PROMPTS, (256, 256, 21, 3), strict=True):
        settings = DecodingSettings(
            method=method, sampler=EntropyBounded(gamma), block_size=block_size, max_new_tokens=limit, **fixed
        )
        expected = generate(bundled, prompt, settings=settings)
        model = NANO["Model"](bundled.model, mask_token=1, end_of_text=0, shift=True)
        prompt_ids = torch.tensor(
            bundled.tokenizer.apply_chat_template(
                [{"role": "user", "content": prompt}], add_generation_prompt=True, return_dict=False
            )
        )
        rule = NANO["entropy_bounded"]
        if method == "ntp":
            answer = NANO["decode_plain"](model, prompt_ids, limit=limit)
        elif method == "sbd":
            answer = NANO["decode_blocks"](model, prompt_ids, limit=limit, block_size=block_size, rule=rule(gamma))
        else:
            answer = NANO["decode_exact"](model, prompt_ids, limit=limit, block_size=block_size, rule=rule(gamma))
        assert (answer.tokens, answer.passes) == (list(expected.token_ids), expected.num_forwards)
