"""A model whose passes are captured keeps its engine from one call to the next. Each call gives what a new engine gives."""

import copy
import gc
import threading
import weakref
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import pytest
import torch
from transformers import PreTrainedTokenizerBase

from answers import assert_same
from families import tiny_sbd
from measuring.synchronisations import as_on_an_accelerator
from measuring.tape import Tape
from setblock.decoding.answer.generation import Generation
from setblock.decoding.samplers import EntropyBounded
from setblock.decoding.settings.table import DecodingSettings
from setblock.engine import engine, kept
from setblock.engine.generate import generate, generate_batch, stream
from setblock.engine.launcher import Launcher
from setblock.errors import SetBlockError
from setblock.model.protocol.draft_text import indexed
from setblock.model.sbd_model import SBDModel

EXACT = DecodingSettings(method="exact", block_size=8, drafts="fixed", max_new_tokens=24)
SBD = DecodingSettings(method="sbd", sampler=EntropyBounded(3.0), block_size=4, max_new_tokens=12)
NTP = DecodingSettings(method="ntp", max_new_tokens=12)


class Counting(Tape):
    """Counts captures."""

    captures = 0

    def capture(self, run: Callable[[], Any]) -> Any:
        Counting.captures += 1
        return super().capture(run)


@pytest.fixture(autouse=True)
def _graphs(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr(engine, "CudaGraph", Counting)
    with as_on_an_accelerator():
        yield


@pytest.fixture
def new(trained_tokenizer: PreTrainedTokenizerBase) -> Callable[[], SBDModel]:
    """Makes the same model, with nothing kept."""

    def made() -> SBDModel:
        sbd = tiny_sbd(
            "llama",
            trained_tokenizer,
            mode="unshifted, first token causal",
            dtype=torch.float64,
            max_position_embeddings=2048,
        )
        sbd.end_of_text_ids = (0, 40, 41)
        sbd.cuda_graphs = True
        return sbd

    return made


def captures(run: Callable[[], Any]) -> int:
    before = Counting.captures
    run()
    return Counting.captures - before


def assert_as_new(found: Generation, expected: Generation) -> None:
    """The same answer by the same passes, those over the prompt too."""
    assert_same(found, expected)
    assert found.passes == expected.passes
    assert found.revealed_by == expected.revealed_by


@pytest.mark.parametrize("given", [EXACT, NTP])
def test_a_second_call_captures_nothing(
    given: DecodingSettings, new: Callable[[], SBDModel], texts: list[list[int]]
) -> None:
    """However many passes over the prompt the first one needed, which the cache would save a second one."""
    sbd, prompt = new(), texts[2] * 20
    expected = generate(new(), prompt, settings=given)
    assert expected.passes.prefill > 1
    assert captures(lambda: assert_as_new(generate(sbd, prompt, settings=given), expected))
    assert not captures(lambda: assert_as_new(generate(sbd, prompt, settings=given), expected))


def test_a_smaller_call_after_a_larger_one(new: Callable[[], SBDModel], texts: list[list[int]]) -> None:
    """It has the budget of its own size: more tokens of its prompt in a pass would be other passes."""
    sbd, prompt = new(), texts[2] * 40
    generate_batch(sbd, [prompt, *texts[:4]], settings=EXACT)
    assert_as_new(generate(sbd, prompt, settings=EXACT), generate(new(), prompt, settings=EXACT))


def test_a_larger_call_gets_a_larger_engine_which_is_kept(new: Callable[[], SBDModel], texts: list[list[int]]) -> None:
    sbd, long = new(), (texts[2] * 40)[:1500]
    calls = [long], texts[:5], [long, long]  # 1 row of 2,048 positions, 8 of 256, 2 of 2,048
    expected = [generate_batch(new(), prompts, settings=EXACT) for prompts in calls]

    def answer_all() -> None:
        for prompts, wanted in zip(calls, expected, strict=True):
            for found, each in zip(generate_batch(sbd, prompts, settings=EXACT), wanted, strict=True):
                assert_as_new(found, each)

    assert captures(answer_all)
    answer_all()  # the table of rows grows once more
    assert not captures(answer_all)


def test_streams_at_once_have_engines_of_their_own(new: Callable[[], SBDModel], texts: list[list[int]]) -> None:
    sbd, prompts = new(), texts[:3]
    streams = [stream(sbd, prompt, settings=EXACT) for prompt in prompts]
    answers: dict[int, Generation] = {}
    while len(answers) < len(streams):
        for number, each in enumerate(streams):
            if (chunk := next(each, None)) is not None and chunk.generation is not None:
                answers[number] = chunk.generation
    for number, prompt in enumerate(prompts):
        assert_as_new(answers[number], generate(new(), prompt, settings=EXACT))
    assert not captures(lambda: generate(sbd, prompts[-1], settings=EXACT))


def test_threads_at_once(new: Callable[[], SBDModel], texts: list[list[int]]) -> None:
    sbd, found = new(), dict[int, list[Generation]]()

    def answer(number: int) -> None:
        found[number] = [generate(sbd, texts[number], settings=NTP) for _ in range(3)]

    threads = [threading.Thread(target=answer, args=(number,)) for number in range(2)]
    for each in threads:
        each.start()
    for each in threads:
        each.join()
    for number in range(2):
        expected = generate(new(), texts[number], settings=NTP)
        for each in found[number]:
            assert_as_new(each, expected)


def test_a_stream_that_is_left_keeps_nothing(new: Callable[[], SBDModel], texts: list[list[int]]) -> None:
    sbd = new()
    for left_after in range(1, 5):
        chunks = stream(sbd, texts[0], settings=EXACT)
        for _ in range(left_after):
            next(chunks)
        del chunks
        assert_as_new(generate(sbd, texts[1], settings=EXACT), generate(new(), texts[1], settings=EXACT))


def test_the_last_chunk_is_the_end_of_a_call(new: Callable[[], SBDModel], texts: list[list[int]]) -> None:
    sbd = new()
    for chunk in stream(sbd, texts[0], settings=EXACT):
        if chunk.generation is not None:
            break
    assert not captures(lambda: generate(sbd, texts[0], settings=EXACT))


def test_after_an_exception_in_a_pass_there_is_a_new_engine(
    new: Callable[[], SBDModel], texts: list[list[int]], monkeypatch: pytest.MonkeyPatch
) -> None:
    sbd, expected = new(), generate(new(), texts[0], settings=EXACT)
    generate(sbd, texts[0], settings=EXACT)

    def failing(*args: Any) -> Any:
        raise RuntimeError("out of memory")

    with monkeypatch.context() as patch:
        patch.setattr(Launcher, "read", failing)
        with pytest.raises(RuntimeError, match="out of memory"):
            generate(sbd, texts[0], settings=EXACT)
    assert_as_new(generate(sbd, texts[0], settings=EXACT), expected)
    with pytest.raises(SetBlockError):  # nor after a request that is refused
        generate(sbd, texts[0], settings=EXACT, banned_tokens=(10**6,))
    assert_as_new(generate(sbd, texts[0], settings=EXACT), expected)


def changed_weights(sbd: SBDModel) -> None:
    with torch.no_grad():
        sbd.model.model.layers[0].mlp.down_proj.weight.mul_(-3)


def moved_weights(sbd: SBDModel) -> None:
    for each in sbd.model.parameters():
        each.data = each.data.flip(0).clone()


def draft_text(sbd: SBDModel) -> None:
    answer = generate(replace(sbd), range(5, 25), settings=NTP).token_ids
    sbd.draft_text = indexed([[*range(5, 25), *answer]])


def trained_for_others(sbd: SBDModel) -> None:
    sbd.prepare_for_training(block_sizes=[4], logit_shift=True)


def other_layer(sbd: SBDModel) -> None:
    layers = sbd.model.model.layers
    layers[0].mlp, layers[1].mlp = layers[1].mlp, layers[0].mlp


def test_a_copy_of_a_model_has_an_engine_of_its_own(new: Callable[[], SBDModel], texts: list[list[int]]) -> None:
    sbd = new()
    expected = generate(sbd, texts[0], settings=EXACT)
    for copied in (copy.copy, copy.deepcopy):
        other = copied(sbd)
        before = Counting.captures
        assert_as_new(generate(other, texts[0], settings=EXACT), expected)
        assert Counting.captures > before


def test_an_engine_is_freed_before_a_larger_one_is_made(
    new: Callable[[], SBDModel], texts: list[list[int]], monkeypatch: pytest.MonkeyPatch
) -> None:
    """With its cache. Nothing waits for the garbage collector."""
    made = list[weakref.ref[engine.Engine]]()

    class Watched(engine.Engine):
        def __init__(self, *args: Any, **options: Any) -> None:
            assert not any(each() for each in made)
            made.append(weakref.ref(self))
            super().__init__(*args, **options)

    sbd = new()
    monkeypatch.setattr(kept, "Engine", Watched)
    gc.disable()
    try:
        for count in (1, 1, 2, 4):
            generate_batch(sbd, texts[:count], settings=NTP)
    finally:
        gc.enable()
    assert len(made) == 3


@pytest.mark.parametrize("change", [changed_weights, moved_weights, draft_text, trained_for_others, other_layer])
def test_a_changed_model_decodes_as_it_is_now(change: Callable[[SBDModel], None], new: Callable[[], SBDModel]) -> None:
    sbd, fresh, prompt = new(), new(), list(range(5, 25))
    kinds = [replace(NTP, method="exact", block_size=4, drafts="fixed", prompt_lookup=1), SBD]

    def answers(sbd: SBDModel) -> list[Generation]:
        return [generate(sbd, prompt, settings=each) for each in kinds]

    before = answers(sbd)
    change(sbd), change(fresh)
    found = answers(sbd)
    for each, expected in zip(found, answers(fresh), strict=True):
        assert_as_new(each, expected)
    assert [(each.token_ids, each.passes) for each in found] != [(each.token_ids, each.passes) for each in before]
