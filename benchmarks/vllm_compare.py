"""Compare block decoding with plain decoding and speculation, of the same weights and prompts in the same vLLM.

    python benchmarks/vllm_compare.py --model MODEL --draft-model SMALLER --out results.json      on a GPU
    .venv-vllm/bin/python benchmarks/vllm_compare.py --cpu --draft-model runs/draft --out results.json   on a CPU
    .venv-vllm/bin/python benchmarks/vllm_compare.py --quick                                      in miniature: that it works

Starts `vllm serve` once for each way to decode, and runs `vllm bench serve` at each number of requests at once. For every
gamma the same server is asked, since gamma belongs to the request. Word problems are the prompts, unless a file of
`{"prompt": ...}` lines is given. Wants the machine to itself; results are written after every measurement, and what is in the
file already is not measured again.
"""

import argparse
import json
import os
import signal
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from functools import partial
from itertools import islice
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from rich.console import Console
from rich.progress import Progress
from rich.table import Table

from measuring.hardware import provenance
from measuring.output import write
from setblock.data.tasks.word_problems import word_problems
from setblock.errors import SetBlockError
from setblock.integrations.vllm.config import overrides_for
from setblock.integrations.vllm.vllm_api import check_version, installed_version
from setblock.model.loading.bundled import BUNDLED_MODEL

NAME = "model"
NGRAM = {"method": "ngram", "num_speculative_tokens": 8, "prompt_lookup_max": 4, "prompt_lookup_min": 2}
GREEDY = {"temperature": 0}
# What a bench result is kept of; times in milliseconds.
KEPT = (
    "completed",
    "total_output_tokens",
    "duration",
    "output_throughput",
    "request_throughput",
    "mean_ttft_ms",
    "mean_tpot_ms",
    "p99_tpot_ms",
    "diffusion_denoising_steps",
    "diffusion_committed_tokens",
)
ON_CPU = {
    "VLLM_USE_V2_MODEL_RUNNER": "1",
    "TRITON_INTERPRET": "1",
    "TORCHDYNAMO_DISABLE": "1",
    "VLLM_CPU_KVCACHE_SPACE": "1",
    "VLLM_CPU_OMP_THREADS_BIND": "nobind",
    "VLLM_CPU_CI_ENV": "1",
}
# Model Runner V2's n-gram kernel does not run under Triton's interpreter: on a CPU it is compared within the runner before.
FIRST_RUNNER = {"VLLM_USE_V2_MODEL_RUNNER": "0"}
SMALL = ["--dtype", "float32", "--enforce-eager", "--max-model-len", "512", "--max-num-batched-tokens", "1024"]


@dataclass(frozen=True)
class Way:
    """Describe a way to decode: words for the server, and what its requests say.

    Attributes:
        name: as it is in the results.
        server: words of `vllm serve`; equal words and environment, one server.
        request: a request's further fields.
        environment: of the server.
        base: the way that its throughput is compared with.
    """

    name: str
    server: tuple[str, ...] = ()
    request: dict[str, Any] = field(default_factory=lambda: dict(GREEDY))
    environment: dict[str, str] = field(default_factory=dict)
    base: str = "plain"

    @property
    def serving(self) -> tuple[tuple[str, ...], tuple[tuple[str, str], ...]]:
        """Return what distinguishes servers."""
        return self.server, tuple(self.environment.items())


def ways(
    model: str, *, draft_model: str | None, gammas: Sequence[float], block_size: int | None, cpu: bool
) -> list[Way]:
    """Return what is compared."""
    ngram = ("--speculative-config", json.dumps(NGRAM))
    found = [Way("plain"), Way("n-gram", ngram)]
    if cpu:
        first = partial(Way, environment=FIRST_RUNNER, base="plain, first runner")
        found = [Way("plain"), first("plain, first runner"), first("n-gram, first runner", ngram)]
    if draft_model is not None:
        draft = {
            "method": "draft_model",
            "model": draft_model,
            "num_speculative_tokens": NGRAM["num_speculative_tokens"],
        }
        found.append(Way("draft model", ("--speculative-config", json.dumps(draft))))
    blocks = ("--hf-overrides", json.dumps(overrides_for(model, block_size=block_size)))
    found.append(Way("exact", blocks, {"vllm_xargs": {"method": "exact"}}))
    return found + [
        Way(f"gamma {gamma:g}", blocks, {"vllm_xargs": {"method": "sbd", "gamma": gamma}}) for gamma in gammas
    ]


def main() -> None:
    """Measure what is missing in the results, and print the table."""
    options = _options()
    check_version()
    results: dict[str, Any] = {
        "vllm": installed_version(),
        "model": options.name,
        **provenance(),
        "measured": {},
    }
    if options.out is not None and options.out.exists():
        results = json.loads(options.out.read_text())
    compared = ways(
        options.model,
        draft_model=options.draft_model,
        gammas=options.gamma,
        block_size=options.block_size,
        cpu=options.cpu,
    )
    wanted = [(way, level) for way in compared for level in options.concurrency]
    missing = [(way, level) for way, level in wanted if _key(way, level) not in results["measured"]]
    with Progress() as progress, TemporaryDirectory() as folder:
        bar = progress.add_task("measuring", total=len(missing))
        prompts = options.prompts or _write_word_problems(Path(folder) / "prompts.jsonl", options.num_prompts)
        for serving in dict.fromkeys(way.serving for way, _ in missing):
            words = [*serving[0], "--max-num-seqs", str(max(options.concurrency)), *options.extra]
            with _serving(options.model, words, dict(serving[1]), port=options.port, cpu=options.cpu):
                for way, level in missing:
                    if way.serving == serving:
                        progress.update(bar, description=_key(way, level))
                        found = _bench(options, way, level, prompts=prompts, folder=Path(folder))
                        results["measured"][_key(way, level)] = {"way": asdict(way), "concurrency": level, **found}
                        if options.out is not None:
                            write(results, options.out)
                        progress.advance(bar)
    Console().print(table(results))


def table(results: dict[str, Any]) -> Table:
    """Return the results for people. Tokens a pass are of one request: those of blocks by vLLM's own count of passes."""
    made = Table(title=f"{results['model']} in vLLM {results['vllm']}", title_justify="left")
    for column in ("decoding", "at once", "tokens/s", "x plain", "ms to first token", "ms a token", "tokens a pass"):
        made.add_column(column, justify="left" if column == "decoding" else "right")
    measured = results["measured"].values()
    throughput = {(row["way"]["name"], row["concurrency"]): row["output_throughput"] for row in measured}
    for row in measured:
        base, passes = throughput.get((row["way"]["base"], row["concurrency"])), row.get("diffusion_denoising_steps")
        made.add_row(
            row["way"]["name"],
            str(row["concurrency"]),
            f"{row['output_throughput']:.1f}",
            f"{row['output_throughput'] / base:.2f}" if base else "",
            f"{row['mean_ttft_ms']:.1f}",
            f"{row['mean_tpot_ms']:.2f}",
            f"{row['diffusion_committed_tokens'] / passes:.2f}" if passes else "",
        )
    return made


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n", 1)[0])
    parser.add_argument("--model", default=str(BUNDLED_MODEL), help="an SBD checkpoint; the bundled one by default")
    parser.add_argument("--draft-model", help="a smaller model with the same vocabulary, for speculation")
    parser.add_argument("--gamma", type=float, nargs="+", default=[0.01, 0.03, 0.1, 0.35])
    parser.add_argument("--block-size", type=int)
    parser.add_argument("--concurrency", type=int, nargs="+", default=[1, 2, 4, 8, 16, 32, 64])
    parser.add_argument("--num-prompts", type=int, default=256)
    parser.add_argument("--prompts", type=Path, help='a file of lines {"prompt": "..."}')
    parser.add_argument("--max-tokens", type=int, default=256)
    parser.add_argument("--port", type=int, default=18300)
    parser.add_argument("--out", type=Path, help="results, as JSON; a run goes on where it stopped")
    parser.add_argument(
        "--cpu", action="store_true", help="on the CPU, in float32, with what `make test-vllm` installs"
    )
    parser.add_argument(
        "--quick", action="store_true", help="in miniature, on the CPU: says that it works, and no more"
    )
    parser.add_argument("extra", nargs="*", help="further words for `vllm serve`, after --")
    options = parser.parse_args()
    options.cpu |= options.quick
    options.name = "bundled" if options.model == str(BUNDLED_MODEL) else options.model
    if options.quick:
        options.gamma, options.concurrency, options.num_prompts = [0.03], [2], 4
        options.draft_model = options.draft_model or options.model  # a draft that is always right
    return options


def _key(way: Way, level: int) -> str:
    return f"{way.name}, {level} at once"


def _write_word_problems(path: Path, count: int) -> Path:
    lines = [json.dumps({"prompt": problem.question}) for problem in islice(word_problems("test"), count)]
    path.write_text("\n".join(lines) + "\n")
    return path


def _vllm(*words: str) -> list[str]:
    return [str(Path(sys.executable).with_name("vllm")), *words]


@contextmanager
def _serving(model: str, words: Sequence[str], own: dict[str, str], *, port: int, cpu: bool) -> Iterator[None]:
    command = _vllm("serve", model, "--port", str(port), "--served-model-name", NAME, *words, *(SMALL if cpu else []))
    environment = os.environ | (ON_CPU if cpu else {}) | own
    process = subprocess.Popen(command, env=environment, start_new_session=True, stdout=subprocess.DEVNULL)
    try:
        while process.poll() is None:
            try:
                urllib.request.urlopen(f"http://127.0.0.1:{port}/health", timeout=5).close()
            except OSError:
                time.sleep(2)
            else:
                break
        if process.poll() is not None:
            raise SetBlockError(f"vllm serve ended with {process.returncode}: {' '.join(command)}")
        yield
    finally:
        os.killpg(process.pid, signal.SIGTERM)
        process.wait(timeout=120)


def _bench(options: argparse.Namespace, way: Way, level: int, *, prompts: Path, folder: Path) -> dict[str, Any]:
    result = folder / "result.json"
    words = {
        "--backend": "openai-chat",
        "--endpoint": "/v1/chat/completions",
        "--port": options.port,
        "--model": NAME,
        "--tokenizer": options.model,
        "--dataset-name": "custom",
        "--dataset-path": prompts,
        "--num-prompts": options.num_prompts,
        "--custom-output-len": options.max_tokens,
        "--max-concurrency": level,
        "--extra-body": json.dumps(way.request),
        "--result-dir": folder,
        "--result-filename": result.name,
    }
    command = _vllm("bench", "serve", "--save-result", "--skip-chat-template", "--disable-shuffle", "--disable-tqdm")
    command += [str(word) for pair in words.items() for word in pair]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        raise SetBlockError(f"vllm bench serve ended with {done.returncode}: {done.stderr.strip().splitlines()[-1:]}")
    whole = json.loads(result.read_text())
    if whole["completed"] < options.num_prompts:
        raise SetBlockError(f"{way.name}: {whole['completed']} of {options.num_prompts} requests were answered")
    return {name: whole[name] for name in KEPT if name in whole}


if __name__ == "__main__":
    main()
