"""What waiting costs: the host waits for its device once a pass, and a request that waits for its turn holds no tensors."""

import gc
from dataclasses import replace

import pytest
import torch
from transformers import PreTrainedTokenizerBase

from families import tiny_sbd
from measuring.synchronisations import Synchronisations, as_on_an_accelerator
from running import alone
from setblock.decoding.answer.generation import Generation
from setblock.decoding.constraints.constraint import TokenConstraint
from setblock.decoding.samplers import EntropyBounded, FixedCount
from setblock.decoding.settings.table import DecodingSettings, RequestParams
from setblock.engine.engine import Engine
from setblock.engine.generate import generate_batch
from setblock.engine.limits import EngineLimits
from setblock.engine.request import Request
from setblock.errors import SetBlockError

SETTINGS = {
    "ntp": DecodingSettings(method="ntp", max_new_tokens=64),
    "sbd": DecodingSettings(method="sbd", block_size=16, sampler=EntropyBounded(9.0), max_new_tokens=64),
    "exact": DecodingSettings(method="exact", block_size=16, sampler=FixedCount(16), max_new_tokens=64),
}
CONTEXT = 32768


@pytest.mark.in_turn
@pytest.mark.parametrize("layers", [2, 4])
@pytest.mark.parametrize("names", [["ntp"], ["sbd"], ["exact"], ["ntp", "sbd", "exact"]], ids="+".join)
def test_the_engine_waits_once_a_pass_as_a_stream_does(
    names: list[str], layers: int, tokenizer: PreTrainedTokenizerBase, prompts: list[list[int]]
) -> None:
    """However many layers and requests there are, in each pass in which nobody joins or leaves."""
    sbd = tiny_sbd("llama", tokenizer, mode="shifted", num_hidden_layers=layers)
    sbd.end_of_text_ids = ()
    counted = []
    with as_on_an_accelerator():
        engine = Engine(sbd)
        for name, prompt in zip(names, prompts, strict=False):
            engine.submit(Request(name, prompt, SETTINGS[name]))
        while not engine.is_idle:
            joins = engine.figures.waiting > 0
            with Synchronisations() as waits:
                progress = engine.step()
            if not joins and all(each.generation is None for each in progress):
                counted.append(waits)
    assert len(counted) > 4
    assert [waits.total for waits in counted] == [1] * len(counted), counted[0].counts


@pytest.mark.parametrize("way", ["engine", "generate"])
def test_no_pass_waits_for_attention_to_be_prepared_for_its_shape(
    way: str, tokenizer: PreTrainedTokenizerBase, prompts: list[list[int]]
) -> None:
    """Passes are without cuDNN's attention, which takes a GPU 0.1 s for each new number of keys."""
    sbd = tiny_sbd("llama", tokenizer, mode="shifted")
    seen = list[bool]()
    sbd.model.register_forward_pre_hook(lambda *_: seen.append(torch.backends.cuda.cudnn_sdp_enabled()))
    if way == "generate":
        generate_batch(sbd, prompts[:2], settings=SETTINGS["exact"])
    else:
        engine = Engine(sbd)
        engine.submit(Request("a", prompts[0], SETTINGS["exact"]))
        while not engine.is_idle:
            engine.step()
    assert set(seen) == {False}
    assert torch.backends.cuda.cudnn_sdp_enabled()


def test_a_thousand_waiting_requests_hold_no_tensors(
    tokenizer: PreTrainedTokenizerBase, prompts: list[list[int]]
) -> None:
    """1,024 requests that may each fill a context of 32k."""
    sbd = tiny_sbd("llama", tokenizer, mode="shifted", max_position_embeddings=CONTEXT)
    engine = Engine(sbd, EngineLimits(max_num_seqs=1, kv_tokens=CONTEXT + 64))
    before = _tensor_bytes()
    for number in range(1024):
        prompt = prompts[number % len(prompts)]
        settings = DecodingSettings(max_new_tokens=CONTEXT - len(prompt), logprobs=0)
        engine.submit(Request(str(number), prompt, settings))
    assert engine.figures.waiting == 1024
    assert _tensor_bytes() == before
    engine.step()
    assert (engine.figures.running, engine.figures.waiting) == (1, 1023)
    one = 72 * CONTEXT  # the tokens of one request, and what is recorded of each
    rows = 3  # of the table, one of which stands for no request, and the copy that passes work on
    assert _tensor_bytes() - before <= rows * one + _cache_bytes(engine)


def test_a_request_that_waits_for_cache_costs_nothing(
    tokenizer: PreTrainedTokenizerBase, prompts: list[list[int]]
) -> None:
    """There is a place for it, but no pages: it holds no tensors, and the host does not wait for the device to ask."""
    sbd = tiny_sbd("llama", tokenizer, mode="shifted")
    sbd.end_of_text_ids = ()
    prompt, counted = (prompts[2] * 4)[:40], []
    with as_on_an_accelerator():
        engine = Engine(sbd, EngineLimits(max_num_seqs=2, kv_tokens=96, page_tokens=16))
        engine.submit(Request("first", prompt, replace(SETTINGS["ntp"], max_new_tokens=40)))
        engine.step()
        engine.submit(Request("second", prompt[::-1], replace(SETTINGS["exact"], max_new_tokens=40)))
        before = _tensor_bytes()
        engine.step()
        assert engine.figures.waiting == 1
        assert abs(_tensor_bytes() - before) < 40 * 8  # a new tensor or two, of a row's numbers
        while engine.figures.waiting:
            with Synchronisations() as waits:
                progress = engine.step()
            if all(each.generation is None for each in progress):
                counted.append(waits.total)
    assert len(counted) > 30
    assert set(counted[:-1]) == {1}  # in the last one it starts


def test_what_is_wrong_with_a_request_is_said_when_it_is_submitted(
    tokenizer: PreTrainedTokenizerBase, prompts: list[list[int]]
) -> None:
    engine = Engine(tiny_sbd("llama", tokenizer, mode="shifted"))
    wrong = [
        ([], SETTINGS["ntp"], "prompt must not be empty"),
        ([10**6], SETTINGS["ntp"], "token ids of the prompt must be between 0 and "),
        (prompts[0], replace(SETTINGS["ntp"], banned_tokens=(10**6,)), "token ids of banned_tokens must be between"),
        (prompts[0], replace(SETTINGS["ntp"], constraints=(_Refuses(),)), "a constraint that can't be"),
    ]
    for prompt, settings, message in wrong:
        with pytest.raises(SetBlockError, match=message):
            engine.submit(Request("a", prompt, settings))
    assert engine.is_idle


def test_seconds_count_from_the_submission(tokenizer: PreTrainedTokenizerBase, prompts: list[list[int]]) -> None:
    """Of an answer that had to wait too, and it is what it would be alone."""
    sbd = tiny_sbd("llama", tokenizer, mode="shifted", dtype=torch.float64)
    engine = Engine(sbd, EngineLimits(max_num_seqs=1))
    requests = [Request(name, prompts[0], SETTINGS["sbd"]) for name in ("first", "second")]
    for request in requests:
        engine.submit(request)
    done: dict[str, Generation] = {}
    while not engine.is_idle:
        done |= {each.id: each.generation for each in engine.step() if each.generation is not None}
    assert done["second"].token_ids == done["first"].token_ids == alone(sbd, requests[0]).token_ids
    assert done["second"].seconds > done["first"].seconds


class _Refuses:
    def constraint(self, params: RequestParams, *, vocab_size: int) -> TokenConstraint:
        raise SetBlockError("a constraint that can't be")


def _tensor_bytes() -> int:
    """Return the bytes of all tensors that live. Those that a compiler traced in another test hold none."""
    gc.collect()
    tensors = (each for each in gc.get_objects() if type(each) in (torch.Tensor, torch.nn.Parameter))
    return sum({each.untyped_storage().data_ptr(): each.untyped_storage().nbytes() for each in tensors}.values())


def _cache_bytes(engine: Engine) -> int:
    cache = engine._runner.cache  # type: ignore[attr-defined]
    return sum(each.untyped_storage().nbytes() for layer in cache.layers for each in (layer.keys, layer.values))
