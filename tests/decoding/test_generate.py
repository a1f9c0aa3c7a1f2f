"""The three layers over the decoding loop: steps, a stream of text, a string; and the figures they report."""

import gc
import logging
import math
from collections.abc import Callable
from dataclasses import replace
from itertools import pairwise
from typing import Any

import pytest
import torch
from transformers import PreTrainedTokenizerBase

import setblock
from answers import decoded
from families import CONTEXT, MODES, tiny_model, tiny_sbd
from measuring.static_batch import static_batch
from measuring.synchronisations import as_on_an_accelerator
from running import Log
from setblock.decoding.answer.generation import PassCounts
from setblock.decoding.samplers import EntropyBounded
from setblock.decoding.settings.table import DecodingSettings, Method
from setblock.decoding.state.state import BatchState
from setblock.engine.engine import Engine
from setblock.engine.generate import generate, generate_batch, stream
from setblock.engine.request import Request
from setblock.errors import ParameterError, SetBlockError, SetBlockWarning
from setblock.evaluation.result import outcomes_of
from setblock.evaluation.tracing import trace
from setblock.model.sbd_model import SBDModel

pytestmark = pytest.mark.usefixtures("longest_drafts")

WHOLE_BLOCK, ONE_AT_A_TIME = EntropyBounded(math.inf), EntropyBounded(0.0)


@pytest.fixture(params=MODES)
def sbd(request: pytest.FixtureRequest, trained_tokenizer: PreTrainedTokenizerBase) -> SBDModel:
    sbd = tiny_sbd("llama", trained_tokenizer, mode=request.param)
    sbd.end_of_text_ids = ()  # these tests are of whole blocks
    return sbd


@pytest.fixture
def questions() -> list[str]:
    return ["How many apples does Tom have?", "Ana has 15 pears. How many more does she need?"]


def test_passes_are_counted(sbd: SBDModel, prompts: list[list[int]]) -> None:
    """20 tokens in blocks of 8, 8 and 4."""
    assert sbd.sbd_config is not None
    first_is_known = sbd.sbd_config.first_token_from_causal
    cases = {
        WHOLE_BLOCK: PassCounts(prefill=1, block=1, commit=2),
        # The commit pass, or the prefill, gives the first token away where it is causal
        ONE_AT_A_TIME: PassCounts(prefill=1, block=18 - first_is_known, commit=2),
    }
    for sampler, expected in cases.items():
        settings = DecodingSettings(method="sbd", block_size=8, max_new_tokens=20, sampler=sampler)
        batch = static_batch(sbd, prompts[:1], [settings])
        steps = list(batch.steps())
        counts = batch.generation(0).passes
        assert counts == expected
        assert counts.total == len(steps)
        assert counts.decoding == len(steps) - 1
        assert [bool(step.is_commit[0]) for step in steps].count(True) == 2
        assert [bool(step.is_prefill.all()) for step in steps] == [True] + [False] * (len(steps) - 1)


@pytest.mark.parametrize(("block_size", "tokens"), [(6, 15), (8, 20)])
def test_forward_passes_are_as_wide_as_they_should_be(
    sbd: SBDModel, prompts: list[list[int]], block_size: int, tokens: int
) -> None:
    """Prompt; then k, 2k, 2k tokens; logits for the masked tokens of the block only, of which 7 to 15 are filled up to 16."""
    fed, read = [], []
    sbd.model.register_forward_pre_hook(lambda m, a, kw: fed.append(tuple(kw["input_ids"].shape)), with_kwargs=True)
    # The last hook sees what the one that gathers positions has left.
    sbd.model.lm_head.register_forward_hook(lambda m, args, output: read.append(output.shape[1]))
    batch = static_batch(
        sbd,
        prompts[:1],
        [DecodingSettings(method="sbd", block_size=block_size, max_new_tokens=tokens, sampler=WHOLE_BLOCK)],
    )
    for _ in batch.steps():
        pass
    last = tokens - 2 * block_size
    assert fed == [(1, len(prompts[0])), (1, block_size), (1, 2 * block_size), (1, block_size + last)]
    assert sbd.sbd_config is not None
    wanted = [1, block_size - sbd.sbd_config.first_token_from_causal, block_size, last]
    assert read == [16 if 6 < outputs < 16 else outputs for outputs in wanted]


def test_steps_say_what_each_pass_revealed(sbd: SBDModel, prompts: list[list[int]]) -> None:
    settings = DecodingSettings(method="sbd", block_size=8, sampler=EntropyBounded(4.0))
    batch = static_batch(sbd, prompts, [replace(settings, max_new_tokens=n) for n in (5, 20, 12)])
    steps, ended = [], []
    for step in batch.steps():
        steps.append(step)
        ended.append(batch.state.answer.finished.tolist())
    for row, prompt in enumerate(prompts):
        generation = batch.generation(row)
        tokens: dict[int, int] = {}
        took_part = 0
        for step in steps:
            took_part += bool(step.took_part[row])
            for column in step.revealed[row].nonzero()[:, 0].tolist():
                place = int(step.positions[row, column]) - len(prompt)
                assert place not in tokens  # a token is revealed once
                tokens[place] = int(step.token_ids[row, column])
                assert generation.revealed_by[place] == took_part - 1
                assert generation.entropy[place] == pytest.approx(float(step.entropy[row, column]))
                assert 0 <= generation.entropy[place] <= math.log(300)
        assert [tokens[place] for place in range(len(tokens))] == generation.token_ids
        assert took_part == generation.num_forwards
        finished = [of_rows[row] for of_rows in ended]
        assert finished == sorted(finished)
        assert finished.index(True) == took_part - 1
    assert all(bool(a.took_part[row]) >= bool(b.took_part[row]) for a, b in pairwise(steps) for row in range(3))


def test_chunks_that_are_kept_hold_no_logits(sbd: SBDModel, questions: list[str]) -> None:
    """A pass's logits are megabytes where a vocabulary is large. With `with_steps` they are there."""
    settings = DecodingSettings(method="exact", block_size=4, max_new_tokens=12)

    def held() -> int:
        gc.collect()
        tensors = [each for each in gc.get_objects() if isinstance(each, torch.Tensor) and each.dim() == 3]
        return sum(each.shape[-1] == sbd.vocab_size for each in tensors)

    before = held()
    chunks = list(stream(sbd, questions[0], settings=settings))
    assert held() == before
    with_steps = list(stream(sbd, questions[0], settings=settings, with_steps=True))
    assert len(chunks) == len(with_steps) <= held() - before
    for chunk in with_steps:
        assert chunk.step is not None
        assert chunk.step.given.logits.shape[-1] == sbd.vocab_size


def test_stream_adds_up_to_generate(sbd: SBDModel, questions: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sbd, "end_of_text_ids", ())  # whatever random weights would end with
    settings = DecodingSettings(method="sbd", block_size=6, max_new_tokens=25, sampler=EntropyBounded(4.0))
    chunks = list(stream(sbd, questions[0], settings=settings))
    whole = generate(sbd, questions[0], settings=settings)
    last = chunks[-1].generation
    assert last is not None
    assert all(chunk.generation is None for chunk in chunks[:-1])
    assert (last.text, last.token_ids, last.passes) == (whole.text, whole.token_ids, whole.passes)
    assert "".join(chunk.text for chunk in chunks) == whole.text
    assert len(chunks) == whole.num_forwards
    assert sum(bool(chunk.text) for chunk in chunks) > 3
    assert whole.tokens_per_forward == whole.num_tokens / len(chunks)


def test_batch_of_texts(sbd: SBDModel, questions: list[str]) -> None:
    settings = [
        DecodingSettings(method="sbd", block_size=4, max_new_tokens=9),
        DecodingSettings(method="ntp", max_new_tokens=5),
    ]
    together = generate_batch(sbd, questions, settings=settings)
    for question, each, generation in zip(questions, settings, together, strict=True):
        assert generation.token_ids == generate(sbd, question, settings=each).token_ids
        assert generation.method == each.method
        assert generation.seconds > 0
    assert generate_batch(sbd, []) == []


def test_the_mask_token_is_never_an_answer(
    trained_tokenizer: PreTrainedTokenizerBase, prompts: list[list[int]]
) -> None:
    """Even where the model likes nothing better."""
    sbd = tiny_sbd("gpt2", trained_tokenizer, tie_word_embeddings=False)
    assert sbd.sbd_config is not None
    head = torch.nn.Linear(32, len(trained_tokenizer))
    head.bias.data[sbd.sbd_config.mask_token_id] = 1e4
    sbd.model.set_output_embeddings(head)
    for settings in (
        DecodingSettings(method="sbd", block_size=4, max_new_tokens=10),
        DecodingSettings(method="sbd", block_size=4, max_new_tokens=10, temperature=2.0),
        DecodingSettings(method="ntp", max_new_tokens=10),
    ):
        batch = decoded(sbd, prompts[:1], [replace(settings, sampler=EntropyBounded(4.0))])
        assert sbd.sbd_config.mask_token_id not in batch.generation(0).token_ids


def test_a_mask_token_in_a_prompt_or_an_answer_is_not_a_masked_position(sbd: SBDModel) -> None:
    """What is revealed is a flag of its own: a prompt may hold the mask token's id."""
    assert sbd.sbd_config is not None
    prompt = [10, sbd.sbd_config.mask_token_id, 20]
    settings = DecodingSettings(method="sbd", block_size=4, max_new_tokens=8, sampler=WHOLE_BLOCK)
    batch = decoded(sbd, [prompt], [settings])
    assert batch.state.tokens[0, :3].tolist() == prompt
    assert batch.generation(0).num_tokens == 8


@pytest.mark.parametrize(
    ("prompt", "settings", "message"),
    [
        ([], DecodingSettings(method="sbd"), "prompt must not be empty"),
        (
            [5] * CONTEXT,
            DecodingSettings(method="sbd"),
            f"prompt has {CONTEXT} tokens; this model's context holds {CONTEXT}",
        ),
        (
            [5] * 100,
            DecodingSettings(method="sbd", max_new_tokens=29),
            "max_new_tokens must be at most 28 after a prompt of 100 tokens",
        ),
    ],
)
def test_requests_that_do_not_fit(sbd: SBDModel, prompt: list[int], settings: DecodingSettings, message: str) -> None:
    with pytest.raises(SetBlockError, match=message):
        static_batch(sbd, [prompt], [settings])


def test_blocks_need_a_mask_token(trained_tokenizer: PreTrainedTokenizerBase) -> None:
    sbd = SBDModel(tiny_model("llama", vocab_size=len(trained_tokenizer)), trained_tokenizer)
    with pytest.raises(SetBlockError, match="no mask token: use method 'exact' or 'ntp'"):
        static_batch(sbd, [[5, 6]], [DecodingSettings(method="sbd")])


def test_block_size_defaults_to_what_was_trained(trained_tokenizer: PreTrainedTokenizerBase) -> None:
    sbd = SBDModel(tiny_model("llama", vocab_size=len(trained_tokenizer)), trained_tokenizer)
    for trained, expected in (((2, 5), 5), (range(2, 40), 16)):
        sbd.prepare_for_training(block_sizes=trained, logit_shift=False)
        batch = static_batch(sbd, [[5, 6]], [DecodingSettings(method="sbd")])
        assert int(batch.state.params.block_size[0]) == expected


@pytest.mark.parametrize(
    ("lookup", "drafts", "expected"), [(1, "adaptive", 16), (0, "adaptive", 5), (1, "fixed", 5), (None, "adaptive", 5)]
)
def test_a_copy_may_be_longer_than_a_trained_block_where_its_length_is_decided(
    lookup: int | None, drafts: Any, expected: int, trained_tokenizer: PreTrainedTokenizerBase
) -> None:
    sbd = SBDModel(tiny_model("llama", vocab_size=len(trained_tokenizer)), trained_tokenizer)
    sbd.prepare_for_training(block_sizes=(2, 5), logit_shift=False)
    batch = static_batch(sbd, [[5, 6]], [DecodingSettings(prompt_lookup=lookup, drafts=drafts)])
    assert int(batch.state.params.block_size[0]) == expected


@pytest.mark.parametrize("way", [generate, generate_batch, lambda *args, **options: list(stream(*args, **options))])
def test_a_warning_names_the_caller_s_line(way: Callable[..., object], sbd: SBDModel, prompts: list[list[int]]) -> None:
    """And method exact, whose text no block can change, has none of too large a block."""
    requested = prompts[:1] if way is generate_batch else prompts[0]
    settings = DecodingSettings(method="sbd", block_size=17, max_new_tokens=18)
    way(sbd, requested, settings=replace(settings, method="exact"))
    with pytest.warns(SetBlockWarning, match="block_size 17 is larger than any") as caught:
        way(sbd, requested, settings=settings)
    assert [warning.filename for warning in caught] == [__file__]


@pytest.mark.parametrize("method", ["sbd", "exact"])
def test_a_fault_in_where_answers_end_is_no_endless_loop(
    method: Method, sbd: SBDModel, prompts: list[list[int]], monkeypatch: pytest.MonkeyPatch
) -> None:
    def nothing_ends(state: BatchState, *, fuses_commit: bool = True) -> None:
        state.block.passes = state.block.passes + 1

    monkeypatch.setattr(BatchState, "advance", nothing_ends)
    settings = DecodingSettings(method=method, block_size=4, max_new_tokens=6)
    engine = Engine(sbd)
    engine.submit(Request("", prompts[0], settings))
    for run in (generate, lambda *args, **options: list(stream(*args, **options)), lambda *_, **__: Log().run(engine)):
        with pytest.raises(AssertionError, match="an answer does not end"):
            run(sbd, prompts[0], settings=settings)
    with as_on_an_accelerator(), pytest.raises(AssertionError, match="an answer does not end"):
        generate(sbd, prompts[0], settings=settings)


def test_an_answer_that_stops_early_is_no_answer(
    sbd: SBDModel, prompts: list[list[int]], monkeypatch: pytest.MonkeyPatch
) -> None:
    """In plain decoding, where nothing is revealed any more, there is nothing to feed either."""
    monkeypatch.setattr(BatchState, "advance", lambda state, *, fuses_commit=True: None)
    settings = DecodingSettings(method="ntp", max_new_tokens=6)
    for run in (generate, lambda *args, **options: list(stream(*args, **options))):
        with pytest.raises(AssertionError, match="decoding stops before an answer ends"):
            run(sbd, prompts[0], settings=settings)
    with as_on_an_accelerator(), pytest.raises(AssertionError, match="decoding stops before an answer ends"):
        generate(sbd, prompts[0], settings=settings)


def test_settings_by_name(sbd: SBDModel, prompts: list[list[int]]) -> None:
    settings = DecodingSettings(method="sbd", sampler=EntropyBounded(0.5), max_new_tokens=3)
    named: dict[str, Any] = {"method": "sbd", "sampler": "entropy-bounded", "gamma": 0.5, "max_new_tokens": 3}
    whole = generate(sbd, prompts[0], settings=settings)
    assert whole.num_tokens == 3
    for answer in (
        generate(sbd, prompts[0], **named),
        generate(sbd, prompts[0], settings=replace(settings, max_new_tokens=9), max_new_tokens=3),
        list(stream(sbd, prompts[0], **named))[-1].generation,
        generate_batch(sbd, prompts[:1], **named)[0],
        generate_batch(sbd, prompts[:1], settings=[replace(settings, max_new_tokens=9)], max_new_tokens=3)[0],
    ):
        assert answer is not None
        assert (answer.token_ids, answer.num_forwards) == (whole.token_ids, whole.num_forwards)
    assert trace(sbd, prompts[0], **named).text == whole.text


def test_a_model_by_its_name() -> None:
    assert generate("bundled", "Ben has 30 cards.", max_new_tokens=1).num_tokens == 1
    assert len(trace("bundled", "Ben has 30 cards.", max_new_tokens=1).tokens) == 1
    with pytest.raises(SetBlockError, match="did you mean 'smollm2'"):
        generate("smollm", "Ben has 30 cards.")


@pytest.mark.parametrize(
    ("way", "arguments", "named", "message"),
    [
        (generate, [["a", "b"]], {}, "not a list of texts: generate_batch"),
        (generate_batch, ["a"], {}, "must be a list of prompts, not a text: generate answers one"),
        (generate, ["a"], {"max_tokens": 3}, "did you mean 'max_new_tokens'"),
        (generate, ["a"], {"settings": {"seed": 1}}, "settings must be DecodingSettings, not {'seed': 1}"),
        (DecodingSettings, [], {"gamma": 0.1}, "gamma is no setting: .* such as gamma, go .* by name to generate"),
        (DecodingSettings, [], {"max_token": 3}, "max_token is no setting, did you mean 'max_new_tokens'"),
    ],
)
def test_what_people_type(
    sbd: SBDModel, way: Callable[..., object], arguments: list[Any], named: dict[str, Any], message: str
) -> None:
    with pytest.raises(SetBlockError, match=message):
        way(*([] if way is DecodingSettings else [sbd]), *arguments, **named)


def test_libraries_noise_is_left_out(caplog: pytest.LogCaptureFixture) -> None:
    """What torchao says at its import, and no more."""
    logging.getLogger("torchao").warning("Failed to load /there/_C_mxfp8.so: could not load this library")
    logging.getLogger("torch.utils._pytree").warning("<enum 'A'> is an Enum subclass and is now supported")
    assert not caplog.records
    logging.getLogger("torchao").warning("int8 is not supported here")
    assert [record.message for record in caplog.records] == ["int8 is not supported here"]


def test_a_chunk_shows_its_text_and_the_package_its_names(sbd: SBDModel, prompts: list[list[int]]) -> None:
    chunk = next(iter(stream(sbd, prompts[0], settings=DecodingSettings(max_new_tokens=2))))
    assert str(chunk) == chunk.text
    assert repr(chunk.text) in repr(chunk)
    assert "tensor" not in repr(chunk)
    assert dir(setblock) == sorted(setblock.__all__)


def test_plain_decoding_makes_one_token_a_pass_after_a_prompt_in_parts(sbd: SBDModel, prompts: list[list[int]]) -> None:
    """The parts of a prompt, and what is fed again after a preemption, are counted as the one pass that a prefill is."""
    settings = DecodingSettings(method="ntp", max_new_tokens=9, prefill_chunk=10)
    whole, in_parts = (
        generate_batch(sbd, [prompts[2]], settings=each)[0]
        for each in (replace(settings, prefill_chunk=None), settings)
    )
    assert (whole.passes.prefill, in_parts.passes.prefill) == (1, 4)
    assert whole.tokens_per_forward == in_parts.tokens_per_forward == 1
    assert outcomes_of([whole, in_parts]).tokens_per_forward == 1
    assert in_parts.num_forwards == in_parts.passes.total == 4 + 8


@pytest.mark.parametrize("count", [0, 1, 3])
def test_a_list_of_settings_has_one_for_each_prompt(sbd: SBDModel, count: int) -> None:
    prompts, settings = ["Tom has", " 12"], [DecodingSettings(method="ntp", max_new_tokens=2)] * count
    with pytest.raises(ParameterError, match=f"^settings must be one .* for each of the 2 prompts, not {count}$"):
        generate_batch(sbd, prompts, settings=settings, raw=True)
    with pytest.raises(ParameterError, match=f"^settings must be one .* for each of the 2 prompts, not {count}$"):
        static_batch(sbd, [[5, 6], [7]], settings)


@pytest.mark.parametrize("prompts", [None, 5, {"role": "user", "content": "Tom has"}])
def test_prompts_are_a_list(sbd: SBDModel, prompts: Any) -> None:
    with pytest.raises(ParameterError, match=r"^prompts must be a list of prompts, not "):
        generate_batch(sbd, prompts)


def test_prompts_may_come_one_by_one(sbd: SBDModel) -> None:
    options: dict[str, Any] = {"raw": True, "method": "ntp", "max_new_tokens": 3}
    (found,) = generate_batch(sbd, (text for text in ["Tom has"]), **options)  # type: ignore[arg-type]
    assert found.token_ids == generate(sbd, "Tom has", **options).token_ids
