"""Several threads that use one model, and its tokenizer: each gets what it gets alone."""

import copy
import pickle
import sys
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from itertools import product
from pathlib import Path
from threading import Barrier
from typing import Any, TypeVar

import pytest
from torch.backends.cuda import cudnn_sdp_enabled, enable_cudnn_sdp
from transformers import PreTrainedTokenizerBase

from families import save_with_random_adapter, tiny_sbd
from setblock.decoding.answer.detokenize import AnswerText
from setblock.decoding.answer.prompt import encode_prompt
from setblock.decoding.samplers import EntropyBounded
from setblock.decoding.settings.table import DecodingSettings
from setblock.engine.engine import Engine
from setblock.engine.generate import generate, generate_batch, stream
from setblock.engine.limits import EngineLimits
from setblock.engine.offline import answered
from setblock.engine.request import Request
from setblock.integrations.transformers import generate as generate_as_transformers
from setblock.locks import lock_of
from setblock.model.loading.loading import load
from setblock.model.sbd_model import SBDModel

THREADS = 4
METHODS = ("exact", "sbd", "ntp")
Result = TypeVar("Result")


@pytest.fixture(autouse=True)
def _switch_often() -> Iterator[None]:
    """Have Python change threads every few microseconds, so that they meet within any pass."""
    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-5)
    yield
    sys.setswitchinterval(before)


def at_once(tasks: Sequence[Callable[[], Result]]) -> list[Result]:
    """Run tasks in `THREADS` threads that begin together."""
    threads = min(THREADS, len(tasks))
    with ThreadPoolExecutor(threads, initializer=Barrier(threads).wait) as pool:
        return [each.result() for each in [pool.submit(task) for task in tasks]]


def settings_of(number: int) -> DecodingSettings:
    method: Any = METHODS[number % len(METHODS)]
    return DecodingSettings(method=method, block_size=4, max_new_tokens=10 + number, sampler=EntropyBounded(4.0))


def refuse_differences(sbd: SBDModel, prompts: Sequence[list[int]], repeats: int = 2) -> None:
    cases = [(prompt, settings_of(number)) for number, prompt in enumerate(prompts * len(METHODS) * repeats)]
    alone = [generate(sbd, prompt, settings=settings).token_ids for prompt, settings in cases]
    together = at_once([lambda case=case: generate(sbd, case[0], settings=case[1]).token_ids for case in cases])  # type: ignore[misc]
    assert together == alone


@pytest.mark.parametrize("family", ["llama", "gemma3_text", "gemma2"])
def test_generate(family: str, trained_tokenizer: PreTrainedTokenizerBase, prompts: list[list[int]]) -> None:
    refuse_differences(tiny_sbd(family, trained_tokenizer, mode="shifted"), prompts)


def test_an_adapter(tmp_path: Path, tokenizer: PreTrainedTokenizerBase, prompts: list[list[int]]) -> None:
    pytest.importorskip("peft")
    sbd = tiny_sbd("llama", tokenizer, mode="shifted")
    sbd.prepare_for_training(block_sizes=[4], logit_shift=True, noisy_adapter=True)
    save_with_random_adapter(sbd, tmp_path)
    loaded = load(tmp_path)
    refuse_differences(loaded, prompts)
    loaded.prepack()
    refuse_differences(loaded, prompts)


def test_a_compiled_model(trained_tokenizer: PreTrainedTokenizerBase, prompts: list[list[int]]) -> None:
    sbd = tiny_sbd("llama", trained_tokenizer, mode="shifted", num_hidden_layers=1)
    sbd.compile(backend="eager")
    refuse_differences(sbd, prompts[:2], repeats=1)


def test_batches_streams_an_engine_and_transformers(
    trained_tokenizer: PreTrainedTokenizerBase, prompts: list[list[int]]
) -> None:
    """All ways into one model at once."""
    sbd = tiny_sbd("llama", trained_tokenizer, mode="shifted")
    settings = [settings_of(number) for number in range(len(prompts))]
    requests = [Request(str(n), *pair) for n, pair in enumerate(zip(prompts, settings, strict=True))]

    def by_engine() -> list[list[int]]:
        engine = Engine(sbd, EngineLimits(kv_tokens=512, page_tokens=8))
        found = {name: each.token_ids for name, each in answered(engine, requests)}
        return [found[each.id] for each in requests]

    def by_batch() -> list[list[int]]:
        return [each.token_ids for each in generate_batch(sbd, prompts, settings=settings)]

    def by_stream() -> list[list[int]]:
        pairs = zip(prompts, settings, strict=True)
        chunks = [list(stream(sbd, prompt, settings=each)) for prompt, each in pairs]
        return [each[-1].generation.token_ids for each in chunks if each[-1].generation]

    def by_transformers() -> list[list[int]]:
        import torch

        rows = []
        for prompt, each in zip(prompts, settings, strict=True):
            made: Any = generate_as_transformers(
                torch.tensor([prompt]),
                model=sbd.model,
                max_new_tokens=each.max_new_tokens,
                method=each.method,
                block_size=each.block_size,
                sampler=each.sampler,
            )
            rows.append(made[0, len(prompt) :].tolist())
        return rows

    ways = [by_engine, by_batch, by_stream, by_transformers] * 2
    alone = [way() for way in ways]
    assert alone == [alone[0]] * len(ways)
    assert at_once(ways) == alone


def test_a_tokenizer_keeps_what_is_typed_apart(tokenizer: PreTrainedTokenizerBase) -> None:
    """A chat's template is read with special tokens, and what is typed without: a tokenizer has one switch for both. And it
    can't be switched while another thread reads from it."""
    special = tokenizer.eos_token
    tokenizer.chat_template = "{% for m in messages %}" + special + "{{ m.content }}{% endfor %}"
    chat = [{"role": "user", "content": f"{special} Tom {special} has 12 apples" * 40}]

    def decoded() -> list[int]:
        text = AnswerText(tokenizer)
        for _ in range(40):
            text.read([*range(10, 60)])
        return list(text.text.encode())

    tasks: list[Callable[[], list[int]]] = [
        lambda: encode_prompt(tokenizer, chat),
        lambda: encode_prompt(tokenizer, chat[0]["content"], raw=True),
        decoded,
    ] * 8
    alone = [task() for task in tasks[:3]] * 8
    assert tokenizer.eos_token_id not in alone[1]
    assert alone[0].count(tokenizer.eos_token_id) == 1
    assert at_once(tasks) == alone
    assert encode_prompt(prompt=chat, tokenizer=tokenizer) == alone[0]


def test_a_copy_of_a_model_has_its_own_lock(trained_tokenizer: PreTrainedTokenizerBase) -> None:
    """A lock can be neither copied nor pickled."""
    model = tiny_sbd("llama", trained_tokenizer).model
    twins = [copy.deepcopy(model), pickle.loads(pickle.dumps(model))]
    with lock_of(model):
        assert at_once([lambda each=each: lock_of(each).__enter__() for each in twins]) == [None] * 2  # type: ignore[misc]


def test_drafts_that_requests_learn_from_each_other(
    trained_tokenizer: PreTrainedTokenizerBase, prompts: list[list[int]]
) -> None:
    sbd = tiny_sbd("llama", trained_tokenizer, mode="shifted")
    settings = DecodingSettings(method="exact", block_size=8, max_new_tokens=30, prompt_lookup=2)
    cases = list(product(prompts, range(4)))
    alone = [generate(sbd, prompt, settings=settings).token_ids for prompt, _ in cases]
    fresh = SBDModel(sbd.model, sbd.tokenizer, sbd_config=sbd.sbd_config)
    assert at_once([lambda p=p: generate(fresh, p, settings=settings).token_ids for p, _ in cases]) == alone  # type: ignore[misc]


def test_two_models_leave_pytorchs_switch_as_it_was() -> None:
    """Whether cuDNN may attend is one switch for a process: it is off while any thread is in a pass with a cache."""
    from setblock.model.runners.forward import _WITHOUT_CUDNN

    before = cudnn_sdp_enabled()
    enable_cudnn_sdp(True)
    try:
        first, second = ExitStack(), ExitStack()
        first.enter_context(_WITHOUT_CUDNN)
        second.enter_context(_WITHOUT_CUDNN)
        first.close()
        assert not cudnn_sdp_enabled()
        second.close()
        assert cudnn_sdp_enabled()
    finally:
        enable_cudnn_sdp(before)
