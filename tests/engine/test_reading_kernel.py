"""A model whose logits are read by one kernel: all its passes choose tokens by it, captured or not, so exact's text is plain
decoding's whatever the kernel draws."""

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest

from answers import assert_same
from measuring.synchronisations import as_on_an_accelerator
from measuring.tape import Tape
from other_noise import of_other_noise
from running import Log
from setblock.decoding.answer.generation import Generation
from setblock.decoding.samplers import EntropyBounded
from setblock.decoding.settings.table import DecodingSettings
from setblock.decoding.step import reading
from setblock.decoding.step.reading import read_by_operations
from setblock.engine.engine import Engine
from setblock.engine.limits import EngineLimits
from setblock.engine.request import Request
from setblock.model.sbd_model import SBDModel
from setblock.structure import Regex

DRAWN = DecodingSettings(method="exact", sampler=EntropyBounded(4.0), block_size=4, temperature=1.0, max_new_tokens=24)
KINDS = {
    "free": DRAWN,
    "bounds": replace(DRAWN, top_k=200, top_p=0.95, min_p=0.001),
    "penalty": replace(DRAWN, repetition_penalty=1.2),
    "copies": replace(DRAWN, prompt_lookup=1),
    "bans": replace(DRAWN, banned_tokens=(5, 6), logit_bias={7: 1.0}, min_new_tokens=9),
    "log-probabilities": replace(DRAWN, logprobs=2),
    "grammar": replace(DRAWN, structure=Regex("[a-z ]{30,60}")),
}


@pytest.fixture(autouse=True)
def _accelerator() -> Iterator[None]:
    with as_on_an_accelerator():
        yield


def answered(sbd: SBDModel, requests: list[Request], **limits: int) -> dict[str, Generation]:
    engine, log = Engine(sbd, EngineLimits(**limits), recorder=Tape), Log()
    for request in requests:
        engine.submit(request)
    log.run(engine)
    assert engine.captured is not None
    assert engine.captured.reason is None
    assert engine.captured.sizes
    return {name: received.generation for name, received in log.items() if received.generation is not None}


def requests_of(texts: list[list[int]], **changed: Any) -> list[Request]:
    """One request of each kind; and a greedy one, whose passes are captured whatever the others are."""
    kinds = {name: replace(each, seed=3, **changed) for name, each in KINDS.items()}
    kinds["greedy"] = replace(DRAWN, temperature=0.0, **changed)
    return [Request(name, texts[at % len(texts)], each) for at, (name, each) in enumerate(kinds.items())]


def test_exact_is_plain_whatever_the_kernel_draws(
    sbd: SBDModel, texts: list[list[int]], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each request alone, and beside others, some of which keep passes from being captured."""
    plain = answered(sbd, requests_of(texts, method="ntp"), max_num_seqs=2)
    monkeypatch.setattr(reading, "_kernel_on", lambda device: of_other_noise)
    monkeypatch.setattr(sbd, "cuda_graphs", True)
    by_kernel = answered(sbd, requests_of(texts, method="ntp"), max_num_seqs=1)
    for rows in (1, 3):
        exact = answered(sbd, requests_of(texts), max_num_seqs=rows)
        for name, each in exact.items():
            assert each.token_ids == by_kernel[name].token_ids, name
    for name, each in by_kernel.items():
        assert (each.token_ids == plain[name].token_ids) == (name == "greedy"), name


def test_a_kernel_that_gives_the_same_changes_nothing(
    sbd: SBDModel, texts: list[list[int]], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Reports of entropies included."""
    requests = requests_of(texts, method="sbd")
    plain = answered(sbd, requests, max_num_seqs=3)
    monkeypatch.setattr(reading, "_kernel_on", lambda device: read_by_operations)
    monkeypatch.setattr(sbd, "cuda_graphs", True)
    for name, each in answered(sbd, requests, max_num_seqs=3).items():
        assert_same(each, plain[name])
