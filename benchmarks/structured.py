"""What a grammar costs and gains: passes and seconds of JSON answers with a schema and without, in each method.

    python benchmarks/structured.py
    python benchmarks/structured.py --model smollm2-base --weights float32

Answers without a schema are as long as those with one, to the token, if the model does not end them before. The grammar's own
time is that in which it is asked or told anything.
"""

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from functools import wraps
from typing import Any

import setblock
from measuring.output import at_least_one, begin, finish, machine, note, parser_of, show, table
from setblock import DecodingSettings, generate
from setblock.model.sbd_model import SBDModel
from setblock.structure.matcher import Matcher

_WORD = {"type": "string", "maxLength": 24}


def _record(**properties: Any) -> dict[str, Any]:
    return {"type": "object", "properties": properties, "required": list(properties), "additionalProperties": False}


SCHEMAS = {
    "person": _record(
        first_name=_WORD,
        last_name=_WORD,
        age={"type": "integer", "minimum": 0, "maximum": 120},
        address=_record(street=_WORD, city=_WORD, postal_code={"type": "string", "pattern": "^[0-9]{5}$"}),
        occupation=_WORD,
    ),
    "orders": {
        "type": "array",
        "items": _record(
            product=_WORD,
            quantity={"type": "integer", "minimum": 1, "maximum": 99},
            status={"enum": ["ordered", "shipped", "delivered", "returned"]},
        ),
        "minItems": 3,
        "maxItems": 3,
    },
    "review": _record(
        title=_WORD,
        sentiment={"enum": ["positive", "neutral", "negative"]},
        aspects=_record(price={"type": "boolean"}, quality={"type": "boolean"}, delivery={"type": "boolean"}),
        would_recommend={"type": "boolean"},
        number_of_stars={"type": "integer", "minimum": 1, "maximum": 5},
        one_sentence_summary=_WORD,
    ),
}
PROMPTS = (
    "Write a JSON object about a {} from a big city.",
    "Maya tells a story of a {}. Answer in JSON.",
    "Make up data for a {} in JSON.",
)


def main(arguments: list[str] | None = None) -> None:
    """Measure, print and write."""
    parser = parser_of(__doc__)
    parser.add_argument("--model", help="a checkpoint (the bundled model)")
    parser.add_argument("--weights", default="float32", help="(float32)")
    parser.add_argument("--rounds", type=int, default=3, help="prompts of each schema, at most 3 (3)")
    options = parser.parse_args(arguments)
    at_least_one(parser, options, "rounds")
    results = begin("structured", options) | {"model": options.model or "bundled"}
    model = setblock.load(options.model, dtype=options.weights) if options.model else setblock.load()
    methods = ["ntp", "exact"] if model.facts is None else ["ntp", "exact", "sbd"]
    rounds = 1 if options.quick else min(options.rounds, len(PROMPTS))
    schemas = {"review": SCHEMAS["review"]} if options.quick else SCHEMAS
    results["methods"] = {}
    for method in methods:
        note(f"method {method}")
        results["methods"][method] = measured(model, method, schemas, rounds)
    made = table(
        f"JSON answers of {results['model']}, {machine(results)}",
        *(
            "method",
            "tokens",
            "passes with",
            "passes without",
            "seconds with",
            "seconds without",
            "grammar, % of a pass",
        ),
    )
    for method, row in results["methods"].items():
        cells = (row["tokens"], row["passes"], row["passes_without"], row["seconds"], row["seconds_without"])
        made.add_row(method, *(f"{each:.3g}" for each in cells), f"{100 * row['grammar_share']:.1f}")
    show(made)
    finish(results, options)


def measured(model: SBDModel, method: Any, schemas: dict[str, Any], rounds: int) -> dict[str, float]:
    """Means over answers, and the grammar's share of the seconds. Passes without a schema are scaled to as many tokens."""
    total = dict.fromkeys(("tokens", "passes", "seconds", "passes_without", "seconds_without", "grammar"), 0.0)
    answers = 0
    for name, schema in schemas.items():
        for prompt in PROMPTS[:rounds]:
            asked = prompt.format(name)
            held = DecodingSettings(method=method, structure=schema, max_new_tokens=160)
            generate(model, asked, settings=replace(held, max_new_tokens=2))  # compiles the grammar, fills caches
            with grammar_seconds() as spent:
                with_schema = generate(model, asked, settings=held)
            free = replace(held, structure=None, max_new_tokens=with_schema.num_tokens)
            without = generate(model, asked, settings=free)
            scale = with_schema.num_tokens / without.num_tokens
            total["tokens"] += with_schema.num_tokens
            total["grammar"] += spent()
            for each, ending, by in ((with_schema, "", 1.0), (without, "_without", scale)):
                total[f"passes{ending}"] += by * each.passes.decoding
                total[f"seconds{ending}"] += by * each.seconds
            answers += 1
    share = total.pop("grammar") / total["seconds"]
    return {name: value / answers for name, value in total.items()} | {"grammar_share": share, "answers": answers}


@contextmanager
def grammar_seconds() -> Iterator[Callable[[], float]]:
    """Counts the time that matchers take."""
    spent = [0.0]
    kept = {name: getattr(Matcher, name) for name in ("advance", "go_back", "fill")}

    def timed(method: Callable[..., None]) -> Callable[..., None]:
        @wraps(method)
        def run(*args: Any) -> None:
            started = time.perf_counter()
            method(*args)
            spent[0] += time.perf_counter() - started

        return run

    for name, method in kept.items():
        setattr(Matcher, name, timed(method))
    try:
        yield lambda: spent[0]
    finally:
        for name, method in kept.items():
            setattr(Matcher, name, method)


if __name__ == "__main__":
    main()
