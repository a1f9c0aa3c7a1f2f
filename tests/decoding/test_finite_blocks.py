"""A block whose positions are no numbers: in exact mode the answer stays plain decoding's, with drafts that nobody uses."""

from dataclasses import replace
from typing import Any

import pytest
import torch
from transformers import PreTrainedTokenizerBase

from answers import answers
from families import MODES, tiny_sbd
from setblock.decoding.settings.table import DecodingSettings
from setblock.engine.engine import Engine
from setblock.engine.limits import EngineLimits
from setblock.engine.offline import answered
from setblock.engine.request import Request
from setblock.model.sbd_model import SBDModel

SETTINGS = DecodingSettings(block_size=6, max_new_tokens=14)
EXACT = replace(SETTINGS, method="exact", drafts="fixed")


@pytest.fixture(params=[torch.nan, torch.inf])
def sbd(request: pytest.FixtureRequest, trained_tokenizer: PreTrainedTokenizerBase) -> SBDModel:
    """The mask token's embedding is no number, and so are its keys and values: 0 times these is none, either."""
    made = tiny_sbd("llama", trained_tokenizer, mode="shifted", tie_word_embeddings=False)
    made.end_of_text_ids = ()
    assert made.sbd_config is not None
    with torch.no_grad():
        made.model.get_input_embeddings().weight[made.sbd_config.mask_token_id] = request.param
    return made


@pytest.mark.parametrize("mode", MODES)
def test_exact_mode_gives_plain_decodings_answer(mode: str, sbd: SBDModel, prompts: list[list[int]]) -> None:
    """Alone, in a batch whose rows see different numbers of slots, and in an engine."""
    sbd.prepare_for_training(block_sizes=[6], **MODES[mode])
    plain = [each.token_ids for each in answers(sbd, prompts, [replace(SETTINGS, method="ntp")] * 3)]
    assert [len(each) for each in plain] == [14] * 3
    together = answers(sbd, prompts, [EXACT] * 3)
    assert [each.token_ids for each in together] == plain
    assert {each.finish_reason for each in together} == {"length"}
    assert [answers(sbd, [prompt], [EXACT])[0].token_ids for prompt in prompts] == plain
    engine = Engine(sbd, EngineLimits(kv_tokens=512, page_tokens=8))
    requests = [Request(str(number), prompt, EXACT) for number, prompt in enumerate(prompts)]
    found = {name: each.token_ids for name, each in answered(engine, requests)}
    assert [found[each.id] for each in requests] == plain


def test_method_sbd_still_says_that_its_tokens_are_no_numbers(sbd: SBDModel, prompts: list[list[int]]) -> None:
    (found,) = answers(sbd, prompts[:1], [replace(SETTINGS, method="sbd")])
    assert found.finish_reason == "error"
    assert found.error is not None
    assert "not numbers" in found.error.message


@pytest.mark.parametrize("method", ["exact", "ntp"])
def test_a_prompt_that_is_no_number_still_ends_the_answer(method: Any, sbd: SBDModel, prompts: list[list[int]]) -> None:
    assert sbd.sbd_config is not None
    prompt = [*prompts[0][:4], sbd.sbd_config.mask_token_id, *prompts[0][4:]]
    (found,) = answers(sbd, [prompt], [replace(SETTINGS, method=method)])
    assert (found.finish_reason, found.token_ids) == ("error", [])


def test_a_pass_is_run_again_once(sbd: SBDModel, prompts: list[list[int]]) -> None:
    calls: list[int] = []
    sbd.model.register_forward_pre_hook(lambda *_: calls.append(1))
    (found,) = answers(sbd, prompts[:1], [EXACT])
    assert len(calls) == found.num_forwards + 1
