"""Write one answer to one prompt in several ways, greedily: ours, Transformers' own, and llama.cpp's.

Knows how each is called. Each is given token ids and gives token ids, so that nobody's tokenizer is in the times.
"""

import time
from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import gguf

from measuring.plain import transformers_answer
from setblock.decoding.settings.table import DecodingSettings
from setblock.engine.generate import together
from setblock.export.gguf_file import WeightType, model_file
from setblock.model.protocol.runtime import LanguageModel


@dataclass(frozen=True)
class Answer:
    """Hold what a contender wrote.

    Attributes:
        token_ids: end-of-text included.
        passes: of the model after the prefill; None where nobody counts them.
        prefill_seconds: None where it can't be separated.
    """

    token_ids: list[int]
    passes: int | None = None
    prefill_seconds: float | None = None


@dataclass(frozen=True)
class Contender:
    """Describe one way to decode.

    Attributes:
        name: in tables and files.
        decode: a prompt's token ids to the answer; what is timed.
        is_plain: whether greedy plain decoding's tokens are promised.
    """

    name: str
    decode: Callable[[list[int]], Answer]
    is_plain: bool


def ours(name: str, model: LanguageModel, settings: DecodingSettings) -> Contender:
    """Return our own loop, by its public settings."""
    return Contender(name, lambda prompt: _decoded(model, prompt, settings), settings.method != "sbd")


def _decoded(model: LanguageModel, prompt: list[int], settings: DecodingSettings) -> Answer:
    """Decode with everything that belongs to decoding."""
    started, prefill, found = time.perf_counter(), 0.0, None
    for progress in together(model, [(prompt, settings)]):
        for each in progress:
            if each.event is None or each.event.kind == "prefill":
                prefill = time.perf_counter() - started
            found = each.generation
    assert found is not None
    return Answer(found.token_ids, found.passes.decoding, prefill)


def transformers(
    name: str,
    model: Any,
    *,
    max_new_tokens: int,
    assistant: Any = None,
    **options: Any,
) -> Contender:
    """Return Transformers' `generate`.

    Args:
        assistant: a draft model, for assisted generation. Transformers' rule adapts how many tokens it drafts at a time.
        options: of `generate`.
    """
    if assistant is not None:
        options["assistant_model"] = assistant

    # A hook would be compiled with the model, and a new one is a new compilation
    counted = None if options.get("cache_implementation") == "static" else _PassCounter(model)

    def decode(prompt: list[int]) -> Answer:
        with nullcontext() if counted is None else counted:
            written = transformers_answer(model, prompt, max_new_tokens=max_new_tokens, **options)
        return Answer(written, None if counted is None else counted.count - 1)

    return Contender(name, decode, True)


def llama_cpp(
    name: str,
    model: Any,
    folder: Path,
    *,
    build: str,
    threads: int,
    context: int,
    max_new_tokens: int,
    weights: WeightType,
    draft: Any = None,
    ngram: bool = False,
) -> Contender:
    """Return the same weights in llama.cpp. Writes them to `folder` first.

    Args:
        build: a key of `measuring.llama_cpp.PACKAGES`.
        weights: the type that matrices are written in.
        draft: a draft model, written in the same type.
        ngram: whether drafts come from n-grams of the text.
    """
    from measuring.llama_cpp import LlamaCpp

    paths = [folder / f"{name.replace(' ', '-')}.gguf", folder / f"{name.replace(' ', '-')}-draft.gguf"]
    for each, path in zip((model, draft), paths, strict=True):
        if each is not None:
            end = each.config.eos_token_id
            ends = end if isinstance(end, list) else [each.config.vocab_size - 1 if end is None else end]
            with model_file(each, path, weights=weights) as writer:
                _write_numbers(writer, size=each.get_output_embeddings().weight.shape[0], end_of_text_id=ends[0])
    drafts = None if draft is None else paths[1]
    server = LlamaCpp(paths[0], build=build, threads=threads, context=context, draft=drafts, ngram=ngram)

    def decode(prompt: list[int]) -> Answer:
        return Answer(server.decode(prompt, max_new_tokens=max_new_tokens))

    return Contender(name, decode, True)


def _write_numbers(writer: gguf.GGUFWriter, *, size: int, end_of_text_id: int) -> None:
    """Write a vocabulary `<0>`, `<1>`, ... for a model that is given token ids alone."""
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("default")
    writer.add_token_list([f"<{number}>" for number in range(size)])
    writer.add_token_types([gguf.TokenType.USER_DEFINED] * size)
    writer.add_token_merges(["< 0"])  # llama.cpp wants one
    writer.add_add_bos_token(False)
    writer.add_eos_token_id(end_of_text_id)


class _PassCounter:
    """Count forward passes of a model while active."""

    def __init__(self, model: Any) -> None:
        self._model = model
        self.count = 0

    def __enter__(self) -> "_PassCounter":
        self.count = 0

        def add(*_: Any) -> None:
            self.count += 1

        self._handle = self._model.register_forward_pre_hook(add)
        return self

    def __exit__(self, *_: object) -> None:
        self._handle.remove()
