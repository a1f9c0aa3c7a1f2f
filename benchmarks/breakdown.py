"""Measure where a pass's time goes: products of weights, the rest of the model, the sampler, the loop's bookkeeping; how many
operations that is, and how often the host waits.

    python benchmarks/breakdown.py --out benchmarks/results/breakdown.json

One request, block size 16, random weights in SmolLM2-135M's shapes, as `setblock.load` keeps them: on a CPU bfloat16 weights
are prepacked. Each part is timed where it is called, without the parts inside of it. On a GPU each part is waited for, so that
parts add up to more than an undisturbed pass takes. Synchronisations are the operations of a pass whose result the host reads,
or whose shape depends on values: on a GPU the host waits there. They and the operations are counted in separate runs, on any
device, of decoding as it runs on a GPU: of whole answers, and of a stream. A table for people, JSON on the last line.
"""

import argparse
import statistics
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from typing import Any
from unittest.mock import patch

import torch
from torch import nn

from measuring.operations import Operations
from measuring.output import at_least_one, begin, finish, parser_of, show
from measuring.static_batch import static_batch
from measuring.subjects import SIZES, FixedCount, random_model, random_prompt
from measuring.synchronisations import Synchronisations, as_on_an_accelerator
from measuring.tables import markdown
from measuring.timing import synchronise
from setblock.decoding import batch as batches
from setblock.decoding import samplers
from setblock.decoding.batch import Batch
from setblock.decoding.settings.table import DecodingSettings, Method
from setblock.decoding.state.state import BatchState
from setblock.decoding.step import update as loop
from setblock.decoding.step.choice import RowSamplers
from setblock.model.runners import forward
from setblock.model.sbd_model import SBDModel
from setblock.model.weights import PrepackedLinear, prepacking_pays

PRODUCTS, OTHERS = "products of weights", "the model's other operations"  # products: linear layers, the LM head too
MODEL = (PRODUCTS, OTHERS)

# What is timed: a name in the table -> where the loop finds it. A part's time is without that of parts inside it.
PARTS: dict[str, tuple[Any, str]] = {
    OTHERS: (forward, "logits_at"),
    "plan of the pass": (Batch, "schedules"),
    "inputs": (batches, "prepare_inputs"),
    "mask, logits' places": (forward.PaddedRunner, "logits"),
    "reading the logits": (loop, "read_logits"),
    "sampler": (RowSamplers, "select"),
    "choice of tokens": (loop, "chosen_from"),
    "check of drafts": (loop, "check_drafts"),
    "state: reveal": (BatchState, "reveal"),
    "state: advance": (BatchState, "advance"),
    "record": (loop, "_count"),
}
METHODS: tuple[Method, ...] = ("sbd", "exact", "ntp")


def main(arguments: Sequence[str] | None = None) -> None:
    """Measure, print, and write."""
    options = parse_options(arguments)
    results = begin("breakdown", options)
    sbd = random_model(SIZES[options.size], dtype=getattr(torch, options.dtype), block_size=options.block_size)
    if prepacking_pays(sbd.model):
        sbd.prepack()
    results |= {
        "size": options.size,
        "parameters": sbd.num_parameters,
        "dtype": options.dtype,
        "vocabulary": sbd.model.config.vocab_size,
        "block_size": options.block_size,
        "prompt": options.prompt,
        "methods": {method: measured(sbd, method, options) for method in METHODS},
    }
    show(operation_table(results))
    show(synchronisation_table(results))
    finish(results, options)


def measured(sbd: SBDModel, method: Method, options: argparse.Namespace) -> dict[str, Any]:
    """Return the milliseconds of each part in a pass after the prefill: the median of passes, of several answers."""
    prompt = random_prompt(sbd, options.prompt)
    settings = DecodingSettings(
        method=method,
        sampler=FixedCount(options.reveal),
        block_size=options.block_size,
        max_new_tokens=options.tokens,
    )
    timed: list[dict[str, float]] = []
    for round_ in range(1 + options.rounds):
        batch = static_batch(sbd, [prompt], [settings])
        seconds: dict[str, float] = {}
        with timing(seconds, sbd):
            steps = batch.steps()
            while True:
                seconds.clear()
                started = time.perf_counter()
                step = next(steps, None)
                if step is None:
                    break
                is_prefill = bool(step.is_prefill.all())
                timed.append({**seconds, "all": time.perf_counter() - started, "is_prefill": is_prefill})
        if round_ == 0:
            timed.clear()  # the first answer warms up
    decoding = [each for each in timed if not each["is_prefill"]]
    model = [sum(each[part] for part in MODEL) for each in decoding]
    own = [1e3 * (each["all"] - other) for each, other in zip(decoding, model, strict=True)]
    shares = [(each["all"] - other) / other for each, other in zip(decoding, model, strict=True)]
    low, _, high = statistics.quantiles(shares, n=4, method="inclusive")
    others = [1 - each[PRODUCTS] / each["all"] for each in decoding]
    return {
        "passes": len(decoding),
        "milliseconds": {
            part: 1e3 * statistics.median(each.get(part, 0.0) for each in decoding) for part in (PRODUCTS, *PARTS)
        },
        "not_products": statistics.median(others),
        "loop_milliseconds": statistics.median(own),
        "loop_over_model": statistics.median(shares),
        "loop_over_model_quartiles": [low, high],
        **counted(sbd, prompt, replace(settings, sampler=samplers.FixedCount(options.reveal))),
    }


def counted(sbd: SBDModel, prompt: list[int], settings: DecodingSettings) -> dict[str, Any]:
    """Return what a pass costs the host: operations in the model and outside it, and waits by line, of whole answers and
    of a stream.

    Args:
        settings: with a sampler of this package; others are checked in each pass, and waited for.
    """
    with as_on_an_accelerator():
        batch = static_batch(sbd, [prompt], [settings])
        with Operations(sbd.model) as operations, Synchronisations() as waits:
            batch.run()
        streamed = static_batch(sbd, [prompt], [settings])
        with Synchronisations() as streaming:
            for step in streamed.steps():
                streamed.new_texts(streamed.outputs(step))
    passes = operations.passes
    return {
        "operations": {place: count / passes for place, count in operations.counts.most_common()},
        "operations_in_model": operations.in_model / passes,
        "synchronisations": {line: count / passes for line, count in waits.counts.most_common()},
        "streaming_synchronisations": streaming.total / streamed.state.counts(0).total,
    }


@contextmanager
def timing(seconds: dict[str, float], sbd: SBDModel) -> Iterator[None]:
    """Add up in `seconds` the time spent in each part, without that of parts inside it, while active."""
    inside = [0.0]  # of the parts that are running: time spent in parts within them

    def timed(name: str, call: Callable[..., Any]) -> Callable[..., Any]:
        def wrapper(*args: Any, **kwargs: Any) -> Any:
            synchronise()
            started = time.perf_counter()
            inside.append(0.0)
            result = call(*args, **kwargs)
            synchronise()
            taken = time.perf_counter() - started
            seconds[name] = seconds.get(name, 0.0) + taken - inside.pop()
            inside[-1] += taken
            return result

        return wrapper

    linears = [module for module in sbd.model.modules() if isinstance(module, (nn.Linear, PrepackedLinear))]
    parts = [*PARTS.items(), *((PRODUCTS, (linear, "forward")) for linear in linears)]
    with ExitStack() as stack:
        for name, (home, attribute) in parts:
            stack.enter_context(patch.object(home, attribute, timed(name, getattr(home, attribute))))
        yield


def synchronisation_table(results: dict[str, Any]) -> str:
    """Return a table with a row for each line of code that waits."""
    streaming = [f"{row['streaming_synchronisations']:.2f}" for row in results["methods"].values()]
    return _counts(
        "The host waits for the device, times a pass", results, "synchronisations", ["all, of a stream", *streaming]
    )


def operation_table(results: dict[str, Any]) -> str:
    """Return a table with a row for each function that runs operations."""
    in_model = [f"{row['operations_in_model']:.1f}" for row in results["methods"].values()]
    return _counts("Operations of a pass beside the model", results, "operations", ["in the model", *in_model])


def _counts(title: str, results: dict[str, Any], key: str, last: list[str]) -> str:
    by_method = {name: row[key] for name, row in results["methods"].items()}
    lines = sorted({line for each in by_method.values() for line in each})
    rows = [[line, *(f"{each.get(line, 0):.2f}" for each in by_method.values())] for line in lines]
    rows += [["all", *(f"{sum(each.values()):.2f}" for each in by_method.values())], last]
    return f"{title}:\n\n{markdown(['where', *by_method], rows)}"


def parse_options(arguments: Sequence[str] | None) -> argparse.Namespace:
    """Return the options of the command line."""
    parser = parser_of(__doc__)
    add = parser.add_argument
    add("--size", choices=SIZES, default="135m", help=f"of {', '.join(SIZES)} (135m)")
    add("--dtype", choices=("float32", "bfloat16"), default="bfloat16")
    add("--block-size", type=int, default=16)
    add("--reveal", type=int, default=4, help="tokens that each pass reveals (4)")
    add("--prompt", type=int, default=128, help="tokens of the prompt (128)")
    add("--tokens", type=int, default=128, help="tokens of the answer (128)")
    add("--rounds", type=int, default=3, help="answers that are timed, after one that is not (3)")
    options = parser.parse_args(arguments)
    if options.quick:
        vars(options).update(size="tiny", block_size=4, reveal=2, prompt=8, tokens=8, rounds=1)
    at_least_one(parser, options, "block_size", "reveal", "prompt", "tokens", "rounds")
    return options


if __name__ == "__main__":
    main()
