"""vLLM engines for the tests: the bundled model, in blocks or plainly, small enough for two CPU cores."""

import json
import os
import signal
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from itertools import islice
from pathlib import Path
from typing import Any

from setblock.data.tasks.word_problems import WordProblem, word_problems
from setblock.model.loading.named import BUNDLED_MODEL
from setblock_vllm.config import overrides_for

START_SECONDS = 900.0
SIZES: dict[str, Any] = {
    "dtype": "float32",
    "enforce_eager": True,
    "max_model_len": 512,
    "max_num_seqs": 8,
    "max_num_batched_tokens": 512,
}


def problems(count: int) -> list[WordProblem]:
    """The first held-out problems."""
    return list(islice(word_problems("test"), count))


def offline(*, blocks: bool = True, model: Path = BUNDLED_MODEL, **options: Any) -> Any:
    """An engine in this process."""
    from vllm import LLM

    overrides = {"hf_overrides": overrides_for(model)} if blocks else {}
    return LLM(str(model), **(SIZES | {"disable_log_stats": False} | overrides | options))


def ask(engine: Any, questions: Sequence[str], extra: Sequence[dict[str, Any]], **params: Any) -> list[Any]:
    """The answers to some questions at once, each with parameters of its own."""
    from vllm import SamplingParams

    chats = [[{"role": "user", "content": question}] for question in questions]
    params = {"max_tokens": 256, "temperature": 0.0} | params
    wanted = [SamplingParams(extra_args=dict(each), **params) for each in extra]
    return [output.outputs[0] for output in engine.chat(chats, wanted, use_tqdm=False)]


def passes_so_far(engine: Any) -> int:
    """What vLLM's own metric says: block passes and commits of all requests so far."""
    return figure(engine, "vllm:diffusion_num_denoising_steps")


def figure(engine: Any, name: str) -> int:
    """One of vLLM's counters."""
    (metric,) = [each for each in engine.get_metrics() if each.name == name]
    return int(metric.value)


@contextmanager
def served(*words: str, blocks: bool = True, port: int, environment: dict[str, str] | None = None) -> Iterator[str]:
    """A `vllm serve` of the bundled model; gives the URL of its API."""
    sizes = [
        word
        for name, value in SIZES.items()
        for word in (f"--{name.replace('_', '-')}", *([] if value is True else [str(value)]))
    ]
    overrides = ("--hf-overrides", json.dumps(overrides_for(BUNDLED_MODEL))) if blocks else ()
    program = str(Path(sys.executable).with_name("vllm"))
    where = ("--host", "127.0.0.1", "--port", str(port), "--served-model-name", "it")
    command = [program, "serve", str(BUNDLED_MODEL), *where, *overrides, *sizes, *words]
    process = subprocess.Popen(command, env=os.environ | (environment or {}), start_new_session=True)
    try:
        _wait(process, f"http://127.0.0.1:{port}/health")
        yield f"http://127.0.0.1:{port}/v1"
    finally:
        os.killpg(process.pid, signal.SIGTERM)
        process.wait(timeout=60)


def _wait(process: subprocess.Popen[bytes], url: str) -> None:
    end = time.monotonic() + START_SECONDS
    while time.monotonic() < end:
        if process.poll() is not None:
            raise RuntimeError(f"vllm serve ended with {process.returncode}")
        try:
            urllib.request.urlopen(url, timeout=5).close()
        except OSError:
            time.sleep(2)
        else:
            return
    raise TimeoutError(f"vllm serve did not start within {START_SECONDS:.0f} s")


def told(command: Sequence[str], environment: dict[str, str]) -> tuple[int, str]:
    """How a command ends, and what it says."""
    done = subprocess.run(
        list(command), env=os.environ | environment, capture_output=True, text=True, check=False, timeout=START_SECONDS
    )
    return done.returncode, done.stdout + done.stderr


def metrics(url: str) -> dict[str, float]:
    """The figures of a server, added up over engines."""
    with urllib.request.urlopen(url.removesuffix("/v1") + "/metrics", timeout=30) as answer:
        lines = [line for line in answer.read().decode().splitlines() if not line.startswith("#")]
    found: dict[str, float] = {}
    for line in lines:
        name, value = line.split("{")[0].split(" ")[0], float(line.rsplit(" ", 1)[1])
        found[name] = found.get(name, 0.0) + value
    return found


def as_json(value: Any) -> str:
    """For command lines."""
    return json.dumps(value)
