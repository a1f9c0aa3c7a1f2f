"""Run the same weights in llama.cpp: a process that decodes token ids greedily.

Knows llama.cpp's names. llama-cpp-python builds llama.cpp for this machine. xllamacpp is a wheel, built for AVX2; only it has a
draft model and n-grams at the speed of llama.cpp's own.
"""

import importlib.util
import multiprocessing
import os
import re
import signal
import weakref
from collections.abc import Callable
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import torch

PACKAGES = {"from source": "llama_cpp", "AVX2 wheel": "xllamacpp"}
"""By the build of llama.cpp that each has."""
_DRAFT_TOKENS = 8  # that a draft model drafts at a time

Decode = Callable[[list[int], int], list[int]]


def is_installed(build: str) -> bool:
    """Return whether there is a package with this build."""
    return importlib.util.find_spec(PACKAGES[build]) is not None


class LlamaCpp:
    """Decode one request at a time in llama.cpp, greedily and with nothing kept between requests.

    It lives in a separate process, which is stopped while it has nothing to do: its threads, waiting for work, would take
    time from whoever is measured next.

    Args:
        path: a GGUF file.
        build: a key of `PACKAGES`.
        threads: of its matrix products.
        context: positions to allocate.
        draft: a GGUF file of a draft model for speculative decoding. Only the wheel has it.
        ngram: whether drafts come from n-grams of the text, in llama.cpp's simple way with its own defaults. Only the wheel.
    """

    def __init__(
        self,
        path: Path,
        *,
        build: str,
        threads: int,
        context: int,
        draft: Path | None = None,
        ngram: bool = False,
    ) -> None:
        spawn = multiprocessing.get_context("spawn")
        self._pipe, theirs = spawn.Pipe()
        options: dict[str, Any] = {"threads": threads, "context": context}
        if build == "AVX2 wheel":
            options |= {"draft": draft, "ngram": ngram}
        process = spawn.Process(target=_serve, args=(theirs, build, path, options), daemon=True)
        process.start()
        theirs.close()  # so that its end is seen here
        # Killed, since a stopped process heeds nothing else.
        self.close = weakref.finalize(self, process.kill)
        self._pid: int = process.pid  # type: ignore[assignment]
        self._receive()
        os.kill(self._pid, signal.SIGSTOP)

    def decode(self, prompt: list[int], *, max_new_tokens: int) -> list[int]:
        """Return the token ids of the answer, its end-of-text included."""
        os.kill(self._pid, signal.SIGCONT)
        self._pipe.send((prompt, max_new_tokens))
        answer = self._receive()
        os.kill(self._pid, signal.SIGSTOP)
        return answer

    def _receive(self) -> list[int]:
        try:
            found: list[int] = self._pipe.recv()
        except EOFError:
            raise RuntimeError("llama.cpp's process ended; what it said is above") from None
        return found


def _serve(pipe: Connection, build: str, path: Path, options: dict[str, Any]) -> None:
    """Load the model in the process, say so, and answer requests until it is killed."""
    decode = (_from_source if build == "from source" else _wheel)(path, **options)
    pipe.send([])
    while True:
        pipe.send(decode(*pipe.recv()))


def _from_source(path: Path, *, threads: int, context: int) -> Decode:
    import llama_cpp

    made: Callable[..., Any] = llama_cpp.Llama
    layers = -1 if torch.cuda.is_available() else 0
    llama = made(
        str(path), n_ctx=context, n_threads=threads, n_threads_batch=threads, n_gpu_layers=layers, verbose=False
    )

    def decode(prompt: list[int], max_new_tokens: int) -> list[int]:
        llama.reset()  # else it keeps what the prompt has in common with the last one
        written: list[int] = []
        for token_id in llama.generate(prompt, temp=0.0, repeat_penalty=1.0):
            written.append(token_id)
            if len(written) == max_new_tokens or (token_id == llama.token_eos()):
                break
        return written

    return decode


def _wheel(path: Path, *, threads: int, context: int, draft: Path | None, ngram: bool) -> Decode:
    import xllamacpp

    params = xllamacpp.CommonParams()
    params.model.path = str(path)
    params.n_ctx = context
    params.n_parallel = 1
    params.cpuparams.n_threads = params.cpuparams_batch.n_threads = threads
    params.n_gpu_layers = 999 if torch.cuda.is_available() else 0
    params.verbosity = -1
    params.fit_params = False
    params.cache_ram_mib = 0
    if draft is not None:
        params.speculative.draft.mparams.path = str(draft)
        params.speculative.draft.n_max = _DRAFT_TOKENS
        params.speculative.types = [xllamacpp.common_speculative_type.COMMON_SPECULATIVE_TYPE_DRAFT_SIMPLE]
    if ngram:
        params.speculative.types = [xllamacpp.common_speculative_type.COMMON_SPECULATIVE_TYPE_NGRAM_SIMPLE]
    server = xllamacpp.Server(params)

    def decode(prompt: list[int], max_new_tokens: int) -> list[int]:
        answer = server.handle_completions(
            {
                "prompt": prompt,
                "max_tokens": max_new_tokens,
                "temperature": 0,
                "repeat_penalty": 1.0,
                "cache_prompt": False,
            }
        )
        return [int(token) for token in re.findall(r"<(\d+)>", answer["choices"][0]["text"])]

    return decode
