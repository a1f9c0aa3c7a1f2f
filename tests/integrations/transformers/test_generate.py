"""Set block decoding from plain Transformers: a saved checkpoint, `model.generate`, and nothing of ours called by name."""

import re
import sys
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import (
    AutoModelForCausalLM,
    PreTrainedModel,
    PreTrainedTokenizerBase,
    TextStreamer,
    set_seed,
)
from transformers.generation.streamers import BaseStreamer

from answers import answers
from families import tiny_model, tiny_sbd
from setblock.decoding.samplers import ConfidenceThreshold, EntropyBounded, EntropyPrefix
from setblock.decoding.settings.table import DecodingSettings
from setblock.engine.generate import generate_batch
from setblock.errors import SetBlockError
from setblock.integrations.transformers import generate, sbd_generate
from setblock.model.loading.loading import load
from setblock.model.sbd_model import SBDModel

from .conftest import NEW, PAD, padded


def tokens_of(sbd: SBDModel, prompts: list[list[int]], settings: DecodingSettings) -> list[list[int]]:
    return [each.token_ids for each in answers(sbd, prompts, [settings] * len(prompts))]


def new_tokens(output: torch.Tensor, inputs: dict[str, torch.Tensor]) -> list[list[int]]:
    """The new tokens of each row, up to its end-of-text, 0."""
    start = inputs["input_ids"].shape[1]
    rows = output[:, start:].tolist()
    return [row[: row.index(0) + 1] if 0 in row else row for row in rows]


@pytest.mark.parametrize("method", ["ntp", "exact"])
@pytest.mark.parametrize("family", ["llama", "gpt2", "mistral"])
def test_is_transformers_own_greedy(
    family: str, method: str, trained_tokenizer: PreTrainedTokenizerBase, tmp_path: Path, prompts: list[list[int]]
) -> None:
    """Token for token, padding and shape included, for rows of different lengths."""
    tiny_sbd(family, trained_tokenizer).save(tmp_path)
    model = AutoModelForCausalLM.from_pretrained(tmp_path)
    inputs = padded(prompts) | {"max_new_tokens": NEW, "pad_token_id": PAD}
    wanted = model.generate(**inputs, eos_token_id=[0, 7])
    got = model.generate(
        **inputs, eos_token_id=[0, 7], custom_generate=str(tmp_path), trust_remote_code=True, method=method
    )
    assert torch.equal(got, wanted)


EOS = [0, *range(100, 140)]  # many, so that rows end early


@pytest.mark.parametrize(
    "requested",
    [
        {"eos_token_id": EOS},
        {"eos_token_id": EOS, "min_new_tokens": 6},
        {"eos_token_id": EOS, "min_length": 44},
        {"eos_token_id": None},
        {"repetition_penalty": 1.7},
        {"sequence_bias": {(9,): 30.0, (11,): -5.0}},
        {"sequence_bias": [[[9], 30.0]]},
        {"suppress_tokens": list(range(50, 200))},
        {"bad_words_ids": [[each] for each in (0, *range(50, 200))]},
        {"renormalize_logits": True},
        {"max_new_tokens": None, "max_length": 47},
    ],
    ids=lambda requested: "-".join(requested),
)
def test_the_config_means_what_it_means_to_transformers(
    requested: dict[str, Any], model: PreTrainedModel, in_blocks: Any, prompts: list[list[int]]
) -> None:
    inputs = padded(prompts)
    wanted = model.generate(**{**inputs, "max_new_tokens": NEW, "pad_token_id": PAD} | requested)
    assert torch.equal(in_blocks(**inputs, **requested, method="ntp"), wanted)
    assert torch.equal(in_blocks(**inputs, **requested, method="exact"), wanted)


def test_blocks_are_those_of_generate_batch(in_blocks: Any, folder: Path, prompts: list[list[int]]) -> None:
    inputs = padded(prompts)
    sbd = load(folder, device="cpu")
    for requested, sampler in (
        ({"gamma": 0.3}, EntropyPrefix(0.3)),
        ({"sampler": "entropy-bounded", "gamma": 0.3}, EntropyBounded(0.3)),
        ({"sampler": ConfidenceThreshold(0.4)}, ConfidenceThreshold(0.4)),
    ):
        settings = DecodingSettings(method="sbd", sampler=sampler, block_size=8, max_new_tokens=NEW)
        output = in_blocks(**inputs, method="sbd", block_size=8, **requested)
        assert torch.equal(output[:, : inputs["input_ids"].shape[1]], inputs["input_ids"])
        assert new_tokens(output, inputs) == tokens_of(sbd, prompts, settings)


def test_text_is_that_of_generate_batch(in_blocks: Any, folder: Path) -> None:
    sbd = load(folder, device="cpu")
    ids = sbd.tokenizer("How many?", return_tensors="pt").input_ids
    wanted = generate_batch(sbd, ["How many?"], settings=DecodingSettings(method="sbd", max_new_tokens=NEW), raw=True)
    assert in_blocks(ids, method="sbd")[0, ids.shape[1] :].tolist() == wanted[0].token_ids


def test_sampling(in_blocks: Any, folder: Path, prompts: list[list[int]]) -> None:
    """By its seed, else by `set_seed`; several answers to a prompt are `n` of ours."""
    sampled = partial(in_blocks, method="sbd", do_sample=True, temperature=1.3, top_k=40, top_p=0.9, min_p=0.01)
    one = padded(prompts[:1])
    settings = DecodingSettings(
        method="sbd", temperature=1.3, top_k=40, top_p=0.9, min_p=0.01, seed=5, max_new_tokens=NEW, block_size=16
    )
    sbd = load(folder, device="cpu")
    first = sampled(**one, seed=5, num_return_sequences=3)
    assert first.shape[0] == 3
    for row in range(3):
        alone = DecodingSettings(**{**vars(settings), "seed": 5 + row})
        assert new_tokens(first, one)[row] == tokens_of(sbd, prompts[:1], alone)[0]

    twice = padded([prompts[0], prompts[0]])
    assert not torch.equal(*sampled(**twice, seed=5).unbind(0))
    assert torch.equal(sampled(**twice, seed=2**63 - 1), sampled(**twice, seed=2**63 - 1))
    drawn = []
    for seed in (1, 1, 2):
        set_seed(seed)
        drawn.append(sampled(**twice))
    assert torch.equal(drawn[0], drawn[1])
    assert drawn[0].shape != drawn[2].shape or not torch.equal(drawn[0], drawn[2])

    before = torch.get_rng_state()
    in_blocks(**twice)
    assert torch.equal(torch.get_rng_state(), before)


def test_stop_strings(
    model: PreTrainedModel, in_blocks: Any, trained_tokenizer: PreTrainedTokenizerBase, prompts: list[list[int]]
) -> None:
    inputs = padded(prompts)
    start = inputs["input_ids"].shape[1]
    text = trained_tokenizer.decode(model.generate(**inputs, max_new_tokens=NEW, pad_token_id=PAD)[1, start + 4])
    wanted = model.generate(
        **inputs, max_new_tokens=NEW, pad_token_id=PAD, stop_strings=[text], tokenizer=trained_tokenizer
    )
    requested = {**inputs, "method": "ntp"}
    assert torch.equal(in_blocks(**requested, stop_strings=[text], tokenizer=trained_tokenizer), wanted)
    by_config = model.generation_config.from_dict({"max_new_tokens": NEW, "pad_token_id": PAD, "stop_strings": text})
    by_config = generate(**requested, model=model, generation_config=by_config, tokenizer=trained_tokenizer)
    assert torch.equal(by_config, wanted)
    bound = partial(sbd_generate, tokenizer=trained_tokenizer)
    own = model.generate(**requested, max_new_tokens=NEW, pad_token_id=PAD, stop_strings=text, custom_generate=bound)
    assert torch.equal(own, wanted)
    with pytest.raises(ValueError, match="stop_strings need the tokenizer"):
        in_blocks(**requested, stop_strings=[text])
    model.generation_config.stop_strings = ["x"]
    with pytest.raises(ValueError, match=r"stop_strings of model\.generation_config can't be taken over"):
        in_blocks(**requested, tokenizer=trained_tokenizer)


class Columns(BaseStreamer):
    """Remembers what it was given."""

    def __init__(self) -> None:
        self.columns: list[torch.Tensor] = []
        self.ended = 0

    def put(self, value: torch.Tensor) -> None:
        assert not self.ended
        self.columns.append(value)

    def end(self) -> None:
        self.ended += 1


@pytest.mark.parametrize("method", ["ntp", "exact", "sbd"])
def test_a_streamer_gets_the_prompt_then_each_token(method: str, in_blocks: Any, prompts: list[list[int]]) -> None:
    """As from Transformers: columns, padded where a row has ended."""
    inputs, streamer = padded(prompts), Columns()
    output = in_blocks(**inputs, eos_token_id=EOS, streamer=streamer, method=method, gamma=0.5)
    assert torch.equal(streamer.columns[0], inputs["input_ids"])
    assert torch.equal(torch.stack(streamer.columns[1:], dim=1), output[:, inputs["input_ids"].shape[1] :])
    assert streamer.ended == 1


def test_a_text_streamer(
    in_blocks: Any,
    model: PreTrainedModel,
    trained_tokenizer: PreTrainedTokenizerBase,
    capsys: pytest.CaptureFixture[str],
) -> None:
    ids = trained_tokenizer("How many?", return_tensors="pt").input_ids
    output = in_blocks(ids, streamer=TextStreamer(trained_tokenizer, skip_prompt=True))
    assert capsys.readouterr().out == trained_tokenizer.decode(output[0, ids.shape[1] :]) + "\n"


def test_by_a_callable(model: PreTrainedModel, in_blocks: Any, prompts: list[list[int]]) -> None:
    """No code of the checkpoint runs, so nothing must be trusted."""
    inputs = padded(prompts)
    requested: dict[str, Any] = {
        "gamma": 0.4,
        "block_size": 8,
        "eos_token_id": EOS,
        "min_new_tokens": 3,
        "repetition_penalty": 1.2,
        "suppress_tokens": [5],
        "bad_words_ids": [[6]],
        "sequence_bias": {(9,): 3.0},
        "do_sample": True,
        "temperature": 0.7,
        "min_p": 0.05,
        "top_p": 0.9,
        "renormalize_logits": True,
        "seed": 3,
    }
    wanted = in_blocks(**inputs, **requested)
    own = {"max_new_tokens": NEW, "pad_token_id": PAD}
    assert torch.equal(model.generate(**inputs, **requested, **own, custom_generate=sbd_generate), wanted)
    assert torch.equal(generate(**inputs, **requested, **own, model=model), wanted)


def test_a_model_loaded_with_trust_decodes_in_blocks_by_itself(folder: Path, prompts: list[list[int]]) -> None:
    """Transformers replaces `generate` then."""
    trusted = AutoModelForCausalLM.from_pretrained(folder, trust_remote_code=True)
    stock = AutoModelForCausalLM.from_pretrained(folder)
    ids = torch.tensor(prompts[:1])
    requested = {"max_new_tokens": NEW, "pad_token_id": PAD}
    wanted = stock.generate(ids, **requested, custom_generate=sbd_generate, gamma=0.4)
    assert torch.equal(trusted.generate(ids, **requested, gamma=0.4), wanted)
    named = trusted.generate(ids, **requested, gamma=0.4, custom_generate=str(folder), trust_remote_code=True)
    assert torch.equal(named, wanted)
    assert torch.equal(trusted.generate(ids, **requested, method="ntp"), stock.generate(ids, **requested))


def test_without_trust_transformers_refuses(model: PreTrainedModel, folder: Path, prompts: list[list[int]]) -> None:
    with pytest.raises(ValueError, match="trust_remote_code=True"):
        model.generate(torch.tensor(prompts[:1]), custom_generate=str(folder), trust_remote_code=False)


def test_the_code_in_a_checkpoint(folder: Path, tmp_path: Path, trained_tokenizer: PreTrainedTokenizerBase) -> None:
    files = [path.relative_to(folder / "custom_generate") for path in (folder / "custom_generate").rglob("*")]
    assert files == [Path("generate.py")]
    assert len((folder / "custom_generate" / "generate.py").read_text().splitlines()) < 15
    SBDModel(tiny_model("llama", vocab_size=len(trained_tokenizer)), trained_tokenizer).save(tmp_path)
    assert not (tmp_path / "custom_generate").exists()


def test_without_this_package(
    folder: Path, prompts: list[list[int]], in_blocks: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The checkpoint still loads, with its code trusted or not, and decoding in blocks says what to do."""
    monkeypatch.setitem(sys.modules, "setblock.integrations.transformers", None)
    model = AutoModelForCausalLM.from_pretrained(folder, trust_remote_code=True)
    for call in (model.generate, in_blocks):
        with pytest.raises(ImportError, match="needs the package setblock in this environment"):
            call(torch.tensor(prompts[:1]))


def test_a_mask_may_have_holes_and_be_left_out(
    in_blocks: Any, model: PreTrainedModel, prompts: list[list[int]]
) -> None:
    """Positions that the mask leaves out don't exist, wherever they are; padding is found by its id as Transformers does."""
    ids = torch.tensor([prompts[1]])
    mask = torch.ones_like(ids)
    mask[0, 5:9] = 0
    own = {"max_new_tokens": NEW, "pad_token_id": PAD}
    wanted = model.generate(ids, attention_mask=mask, **own)
    assert torch.equal(in_blocks(ids, attention_mask=mask, method="ntp"), wanted)
    inputs = padded(prompts)
    assert torch.equal(in_blocks(inputs["input_ids"], method="exact"), model.generate(**inputs, **own))


def test_return_dict(in_blocks: Any, prompts: list[list[int]]) -> None:
    inputs = padded(prompts)
    output = in_blocks(**inputs, return_dict_in_generate=True)
    assert torch.equal(output.sequences, in_blocks(**inputs))


def test_fields_that_change_nothing_are_taken(in_blocks: Any, prompts: list[list[int]]) -> None:
    ids = torch.tensor(prompts[:1])
    wanted = in_blocks(ids)
    for requested in (
        {"use_cache": False},
        {"cache_implementation": "static"},
        {"typical_p": 0.9},
        {"length_penalty": 2.0},
    ):
        assert torch.equal(in_blocks(ids, **requested), wanted)


def test_answers_of_different_lengths_need_a_pad_token(
    model: PreTrainedModel, trained_tokenizer: PreTrainedTokenizerBase, prompts: list[list[int]]
) -> None:
    """Which Transformers takes from the end-of-text, if there is one."""
    model.generation_config.eos_token_id = model.generation_config.pad_token_id = None
    inputs = padded(prompts)
    output = generate(**inputs, model=model, max_new_tokens=NEW)
    start = inputs["input_ids"].shape[1]
    assert output.shape == (len(prompts), start + NEW)
    text = trained_tokenizer.decode(output[1, start + 4])
    with pytest.raises(ValueError, match="pad_token_id must be set where answers differ in length"):
        generate(**inputs, model=model, max_new_tokens=NEW, stop_strings=text, tokenizer=trained_tokenizer)


def test_a_model_without_mask_token(trained_tokenizer: PreTrainedTokenizerBase, prompts: list[list[int]]) -> None:
    """Methods `ntp` and `exact` are all it can, and their text is plain decoding's."""
    model = tiny_model("llama", vocab_size=len(trained_tokenizer))
    inputs = padded(prompts) | {"max_new_tokens": NEW, "pad_token_id": PAD}
    assert torch.equal(generate(**inputs, model=model, method="ntp"), model.generate(**inputs))
    assert torch.equal(generate(**inputs, model=model), model.generate(**inputs))
    with pytest.raises(SetBlockError, match="this one has no mask token"):
        generate(**inputs, model=model, method="sbd")


def test_logits_that_are_not_numbers(model: PreTrainedModel, prompts: list[list[int]]) -> None:
    with torch.no_grad():
        model.get_output_embeddings().weight.fill_(torch.nan)
    with pytest.raises(SetBlockError, match="logits that are not numbers after 0 tokens, in row 0"):
        generate(torch.tensor(prompts[:1]), model=model, max_new_tokens=2)


def test_an_answer_can_be_held_to_a_form(model: PreTrainedModel, trained_tokenizer: PreTrainedTokenizerBase) -> None:
    pytest.importorskip("llguidance", reason="the extra `structured` is not installed")
    ids = trained_tokenizer("Tom has", return_tensors="pt").input_ids
    requested: dict[str, Any] = {"structure": {"regex": "[ab]{3}-[0-9]"}, "max_new_tokens": NEW, "pad_token_id": PAD}
    found = generate(ids, model=model, tokenizer=trained_tokenizer, **requested)
    text = trained_tokenizer.decode(found[0, ids.shape[1] :], skip_special_tokens=True)  # type: ignore[index]
    assert re.fullmatch("[ab]{3}-[0-9]", text)
    with pytest.raises(SetBlockError, match="structure needs the tokenizer"):
        generate(ids, model=model, **requested)
