"""Answer the same requests in vLLM plainly, by n-gram speculation, and in blocks: passes, seconds and texts.

    BENCHMARK=plugins/setblock-vllm/benchmarks/speculation.py
    # in the repository's environment: the requests
    .venv/bin/python $BENCHMARK questions --task tasks/orders.py --model models/smollm2-orders --questions runs/orders.jsonl
    # in vLLM's (`make setup-vllm`), on an idle machine
    .venv-vllm/bin/python $BENCHMARK run --questions runs/orders.jsonl --model models/smollm2-orders --json orders.json
    # all results as the table of docs/vllm.md, which is written there
    .venv/bin/python $BENCHMARK table

Each contender has a process of its own, one after the other, and answers eight requests before it is timed. As many requests
as `--at-once` says run together: when one ends the next begins. What a contender gave is written at once to the file of
`--json`, in `results`, so that a run that was interrupted goes on after it. Intervals are those of 95% by bootstrap over
requests, of how many times as fast as plain decoding the requests were, one at a time.

On a CPU, plain decoding and speculation run as vLLM's users have them there: Model Runner V1 with its kernels in C++. Blocks
need V2, whose own kernels a CPU interprets. vLLM asks for Intel's OpenMP, above all for speculation: `pip install
intel-openmp`, and put its `libiomp5.so` into `LD_PRELOAD`.
"""

import argparse
import json
import os
import random
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from datetime import date
from importlib.metadata import version
from itertools import islice
from pathlib import Path
from typing import Any

NGRAM = {"method": "ngram", "num_speculative_tokens": 8, "prompt_lookup_max": 4, "prompt_lookup_min": 2}
# What the tests set, too: vLLM on a CPU, without a compiler for its kernels
ON_A_CPU = {
    "TORCHDYNAMO_DISABLE": "1",
    "VLLM_CPU_KVCACHE_SPACE": "2",
    "VLLM_CPU_OMP_THREADS_BIND": "nobind",
    "VLLM_CPU_CI_ENV": "1",
    "VLLM_ENABLE_V1_MULTIPROCESSING": "0",
    "VLLM_NO_USAGE_STATS": "1",
    "VLLM_LOGGING_LEVEL": "WARNING",
    "HF_HUB_OFFLINE": "1",
}
_PASSES, _ACCEPTED = "vllm:diffusion_num_denoising_steps", "vllm:spec_decode_num_accepted_tokens"
_RESAMPLES = 2_000
_RESULTS = Path(__file__).parent / "results"
_PAGE = Path(__file__).resolve().parents[3] / "docs" / "vllm.md"
_BEGIN, _END = "<!-- speculation.py table -->", "<!-- end of the table -->"


@dataclass
class Round:
    """The answers of one contender to all requests, so many at once."""

    at_once: int
    seconds: float  # of all
    token_ids: list[list[int]]
    each: list[float] = field(default_factory=list)  # seconds of each request
    passes: int = 0  # of all, prompts aside
    interpreted: float | None = None  # of the seconds, those in kernels that Triton interprets, if they were measured


def write_questions(options: argparse.Namespace) -> None:
    """Write a line for each request: its token ids."""
    import setblock
    from setblock.data.tasks import task_named
    from setblock.decoding.answer.prompt import encode_prompt

    tokenizer = setblock.load(options.model).tokenizer
    options.questions.parent.mkdir(parents=True, exist_ok=True)
    with options.questions.open("w") as file:
        for example in islice(task_named(options.task).examples("test"), options.count):
            file.write(json.dumps({"token_ids": encode_prompt(tokenizer, example.messages, raw=False)}) + "\n")


def contenders(options: argparse.Namespace) -> dict[str, dict[str, Any] | None]:
    """Return the contenders, with the request parameters of those that decode in blocks."""
    every: dict[str, dict[str, Any] | None] = {
        "plain": None,
        "ngram": None,
        "ntp": {"method": "ntp"},
        "exact": {"method": "exact"},
        "sbd": {"method": "sbd", "gamma": options.gamma},
    }
    return {name: every[name] for name in options.contenders}


def answer_all(options: argparse.Namespace) -> list[Round]:
    """Answer as one contender, in this process."""
    extra = contenders(options)[options.contender]
    if (
        options.cpu and not extra
    ):  # no user of vLLM's CPU build has the tests' stand-in for Triton: kernels are in C++ then
        from triton.backends import backends

        backends.pop("cpu", None)
    from vllm import LLM, SamplingParams

    from setblock.model.loading.named import resolved
    from setblock_vllm.config import overrides_for

    questions = [json.loads(line) for line in options.questions.read_text().splitlines()]
    folder = resolved(options.model)
    arguments: dict[str, Any] = {"hf_overrides": overrides_for(folder, adapter=options.adapter)} if extra else {}
    if options.contender == "ngram":
        arguments["speculative_config"] = NGRAM
    if options.pass_tokens and extra:
        arguments["additional_config"] = {"setblock_pass_tokens": options.pass_tokens}
    engine = LLM(
        folder,
        dtype=options.dtype,
        enforce_eager=options.eager,
        max_model_len=options.max_model_len,
        max_num_seqs=max(options.at_once),
        max_num_batched_tokens=max(2048, 64 * max(options.at_once)),
        enable_prefix_caching=False,
        disable_log_stats=False,
        **arguments,
    )
    params = SamplingParams(max_tokens=options.max_tokens, temperature=0.0, extra_args=extra or None)
    interpreted = InterpretedSeconds() if options.cpu and extra else None
    prompts = [each["token_ids"] for each in questions]
    _answer(engine, prompts[:8], params, at_once=8)
    name = _PASSES if extra else _ACCEPTED
    rounds = []
    for at_once in options.at_once:
        for _ in range(options.rounds):
            before, so_far = _metric(engine, name), interpreted.total if interpreted else 0.0
            found = _answer(engine, prompts, params, at_once=at_once)
            found.interpreted = interpreted.total - so_far if interpreted else None
            found.passes = _metric(engine, name) - before
            if not extra:  # a pass for each token after the first, which the prompt's pass gives, but for accepted ones
                found.passes = sum(len(each) - 1 for each in found.token_ids) - found.passes
            rounds.append(found)
    return rounds


class InterpretedSeconds:
    """The seconds that kernels take in Triton's interpreter from now on, in this process."""

    def __init__(self) -> None:
        from triton.runtime.interpreter import GridExecutor

        self.total, call = 0.0, GridExecutor.__call__

        def timed(executor: Any, *arguments: Any, **named: Any) -> Any:
            start = time.perf_counter()
            try:
                return call(executor, *arguments, **named)
            finally:
                self.total += time.perf_counter() - start

        GridExecutor.__call__ = timed


def _answer(engine: Any, prompts: list[list[int]], params: Any, *, at_once: int) -> Round:
    waiting = list(enumerate(prompts))
    begun: dict[str, float] = {}
    found: dict[int, list[int]] = {}
    each: dict[int, float] = {}
    start = time.perf_counter()
    while waiting or begun:
        while waiting and len(begun) < at_once:
            number, token_ids = waiting.pop(0)
            begun[str(number)] = time.perf_counter()
            engine.llm_engine.add_request(str(number), {"prompt_token_ids": token_ids}, params.clone())
        for output in engine.llm_engine.step():
            if output.finished:
                key = output.request_id.split("-")[0]
                found[int(key)] = list(output.outputs[0].token_ids)
                each[int(key)] = time.perf_counter() - begun.pop(key)
    order = range(len(prompts))
    return Round(at_once, time.perf_counter() - start, [found[n] for n in order], [each[n] for n in order])


def _metric(engine: Any, name: str) -> int:
    return next((int(each.value) for each in engine.get_metrics() if each.name == name), 0)


def run(options: argparse.Namespace) -> dict[str, Any]:
    """Let each contender answer in a process of its own, and compare. Contenders in the file of results are not run again."""
    questions = [json.loads(line) for line in options.questions.read_text().splitlines()]
    found: dict[str, Any] = {
        "model": options.model,
        "adapter": options.adapter,
        "dtype": options.dtype,
        "requests": len(questions),
        "max_tokens": options.max_tokens,
        "pass_tokens": options.pass_tokens,
        "vllm": version("vllm"),
        "threads": os.environ.get("OMP_NUM_THREADS", os.cpu_count()),
        "date": date.today().isoformat(),
        "rounds": {},
    }
    kept = _RESULTS / options.json
    if kept.exists():
        found = json.loads(kept.read_text())
    _RESULTS.mkdir(exist_ok=True)
    for name, extra in contenders(options).items():
        if name not in found["rounds"]:
            environment = dict(os.environ) | (ON_A_CPU if options.cpu else {})
            environment["VLLM_USE_V2_MODEL_RUNNER"] = "1" if extra or not options.cpu else "0"
            if options.cpu and extra:
                environment["TRITON_INTERPRET"] = "1"
            with tempfile.NamedTemporaryFile(suffix=".json") as file:
                words = [*sys.argv[1:], "--contender", name, "--answers", file.name]
                subprocess.run([sys.executable, __file__, *words], env=environment, check=True)
                found["rounds"][name] = json.loads(Path(file.name).read_text())
        rounds = {who: [Round(**each) for each in its] for who, its in found["rounds"].items()}
        found["contenders"] = {who: _summary(who, rounds) for who in rounds}
        kept.write_text(json.dumps(found) + "\n")
    return found


def _summary(name: str, rounds: dict[str, list[Round]]) -> list[dict[str, Any]]:
    """Return what one contender took for each number of requests at once."""
    rows = []
    for at_once in dict.fromkeys(each.at_once for each in rounds[name]):
        own, plain = ([each for each in rounds[who] if each.at_once == at_once] for who in (name, "plain"))
        tokens = sum(map(len, own[0].token_ids))
        row: dict[str, Any] = {
            "at_once": at_once,
            "seconds": [each.seconds for each in own],
            "interpreted": [each.interpreted for each in own],
            "tokens": tokens,
            "passes": own[0].passes,
            "as_plain": sum(mine == its for mine, its in zip(own[0].token_ids, plain[0].token_ids, strict=True)),
        }
        if at_once == 1:
            numbers = range(len(own[0].token_ids))
            row["faster"] = _interval([_best(plain, n) for n in numbers], [_best(own, n) for n in numbers])
        rows.append(row)
    return rows


def _best(rounds: list[Round], number: int) -> float:
    return min(each.each[number] for each in rounds)


def _interval(before: list[float], after: list[float]) -> list[float]:
    """Return how many times as fast, and the ends of its 95% interval."""
    rng, pairs = random.Random(0), list(zip(before, after, strict=True))
    drawn = sorted(_ratio(rng.choices(pairs, k=len(pairs))) for _ in range(_RESAMPLES))
    return [_ratio(pairs), drawn[int(0.025 * _RESAMPLES)], drawn[int(0.975 * _RESAMPLES)]]


def _ratio(pairs: list[tuple[float, float]]) -> float:
    return sum(each for each, _ in pairs) / sum(each for _, each in pairs)


def table(results: Sequence[dict[str, Any]]) -> str:
    """Return what was found as a table."""
    lines = [
        "| | | at once | seconds | in interpreted kernels | tokens a second | alone, times as fast as plain (95%) | passes "
        "| texts as plain |",
        "|---|---|---|---|---|---|---|---|---|",
    ]
    for found in results:
        for name, rows in found["contenders"].items():
            if name == "plain" and found["pass_tokens"]:  # it is in another file
                continue
            for row in rows:
                best = min(row["seconds"])
                in_kernels = row["interpreted"][row["seconds"].index(best)]
                interpreted = "" if in_kernels is None else f"{in_kernels:.1f}"
                faster = "{:.2f} ({:.2f} to {:.2f})".format(*row["faster"]) if "faster" in row else ""
                model = f"`{Path(found['model']).name}`"
                if found["adapter"] and name in ("ntp", "exact", "sbd"):
                    model += f" with `{Path(found['adapter']).name}`"
                fed = (
                    f", {found['pass_tokens']} tokens a pass"
                    if found["pass_tokens"] and name in ("ntp", "exact", "sbd")
                    else ""
                )
                lines.append(
                    f"| {model} | {_NAMES[name]}{fed} | {row['at_once']} "
                    f"| {best:.1f} | {interpreted} | {row['tokens'] / best:.0f} | {faster} | {row['passes']} "
                    f"| {row['as_plain']} of {found['requests']} |"
                )
    return "\n".join(lines)


_NAMES = {"plain": "plain", "ngram": "n-gram", "ntp": "plain, by the plugin", "exact": "`exact`", "sbd": "`sbd`"}


def write_table() -> None:
    """Write the table of all results into the page, between its marks."""
    results = [json.loads(path.read_text()) for path in sorted(_RESULTS.glob("*.json"))]
    first = results[0]
    how = (
        f"Seconds for {first['requests']} requests on a CPU ({first['dtype']}, vLLM {first['vllm']}, {first['threads']} "
        f"threads, {first['date']}). Blocks run in Model Runner V2, some of whose kernels a CPU interprets."
    )
    before, _, rest = _PAGE.read_text().partition(_BEGIN)
    _PAGE.write_text(f"{before}{_BEGIN}\n\n{how}\n\n{table(results)}\n\n{_END}{rest.partition(_END)[2]}")


def options_of() -> argparse.Namespace:
    """Return the options of the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=["questions", "run", "table"])
    parser.add_argument("--model", help="a checkpoint's folder, or a name that `setblock` knows")
    parser.add_argument("--task", help="of `questions`: its name or its file")
    parser.add_argument("--count", type=int, default=40)
    parser.add_argument("--questions", type=Path, help="the file of requests, which `questions` writes and `run` reads")
    parser.add_argument("--adapter", help="an adapter's folder; its model needs no training")
    parser.add_argument("--contenders", nargs="+", choices=[*_NAMES], default=[*_NAMES])
    parser.add_argument("--at-once", type=int, nargs="+", default=[1, 8])
    parser.add_argument("--rounds", type=int, default=1)
    parser.add_argument("--max-tokens", type=int, default=256)
    parser.add_argument("--max-model-len", type=int, default=1024)
    parser.add_argument("--gamma", type=float, default=0.1, help="of method sbd")
    parser.add_argument("--pass-tokens", type=int, help="how many tokens a pass feeds all requests together")
    parser.add_argument("--dtype", default="bfloat16")
    parser.add_argument("--eager", action=argparse.BooleanOptionalAction, default=True)
    parser.add_argument("--cpu", action=argparse.BooleanOptionalAction, default=True)
    parser.add_argument("--contender", help=argparse.SUPPRESS)
    parser.add_argument("--answers", type=Path, help=argparse.SUPPRESS)
    parser.add_argument("--json", metavar="NAME", help="of `run`: where results are kept, in `results`")
    return parser.parse_args()


def main() -> None:
    """Run it."""
    options = options_of()
    if options.what == "questions":
        write_questions(options)
    elif options.what == "table":
        write_table()
    elif options.contender:
        options.answers.write_text(json.dumps([asdict(each) for each in answer_all(options)]))
    else:
        print(table([run(options)]))


if __name__ == "__main__":
    main()
