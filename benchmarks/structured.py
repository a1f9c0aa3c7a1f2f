"""Measure what a grammar costs and gains: passes and seconds of JSON answers with a schema and without, in each method.

    python benchmarks/structured.py
    python benchmarks/structured.py --model smollm2-base --weights float32
    python benchmarks/structured.py --model runs/smollm2-extraction-sbd --weights bfloat16 --messages 20

Answers without a schema are as long as those with one, to the token, if the model does not end them before. The grammar's own
time is that in which it is asked or given anything. With `--messages` the prompts are of the task `tasks/extraction`, each
with a schema of the keys and types of its record, and whole records are judged.
"""

import json
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import wraps
from itertools import islice
from typing import Any

import setblock
from measuring.output import at_least_one, begin, finish, note, parser_of
from setblock import DecodingSettings, generate
from setblock.data.tasks import Example, Verdict, task_named
from setblock.model.sbd_model import SBDModel
from setblock.structure import JsonSchema
from setblock.structure.compiled import Matcher

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
TASK = "tasks/extraction"
MOST = 220
"""Tokens of an answer, at most."""
PROMPTS = (
    "Write a JSON object about a {} from a big city.",
    "Maya tells a story of a {}. Answer in JSON.",
    "Make up data for a {} in JSON.",
)


@dataclass(frozen=True)
class Case:
    """Hold a prompt, the schema of its answer, and the message that it is of, where it can be judged."""

    prompt: str
    schema: dict[str, Any]
    message: Example | None = None

    def is_right(self, text: str) -> bool:
        """Return whether an answer is the message's record."""
        judge = task_named(TASK).judge
        assert self.message is not None
        assert judge is not None
        verdict = judge(self.message, text)
        assert isinstance(verdict, Verdict)
        return verdict.right


def made_up(schemas: dict[str, Any], rounds: int) -> list[Case]:
    """Return cases of every schema, `rounds` prompts each."""
    return [Case(prompt.format(name), schema) for name, schema in schemas.items() for prompt in PROMPTS[:rounds]]


def messages(count: int) -> list[Case]:
    """Return messages of the test split, with a schema of the keys and types of their records."""
    found = islice(task_named(TASK).examples("test"), count)
    return [Case(each.question, schema_of(json.loads(str(each.answer))), each) for each in found]


def schema_of(value: Any) -> dict[str, Any]:
    """Return a schema that a JSON value satisfies, or null in its place."""
    if isinstance(value, dict):
        return _record(**{key: schema_of(each) for key, each in value.items()})
    if isinstance(value, list):
        return {"type": "array", "items": schema_of(value[0])}
    kinds = {str: ["string"], bool: ["boolean"], int: ["number"], float: ["number"]}
    return {"type": [*kinds.get(type(value), ["string", "number", "boolean"]), "null"]}


def main(arguments: list[str] | None = None) -> None:
    """Measure, print and write."""
    parser = parser_of(__doc__)
    parser.add_argument("--model", help="a checkpoint (the bundled model)")
    parser.add_argument("--weights", default="float32", help="(float32)")
    parser.add_argument("--rounds", type=int, default=3, help="prompts of each schema, at most 3 (3)")
    parser.add_argument("--messages", type=int, help=f"of the task {TASK}, in the place of schemas that were made up")
    options = parser.parse_args(arguments)
    at_least_one(parser, options, "rounds")
    results = begin("structured", options) | {"model": options.model or "bundled"}
    model = setblock.load(options.model, dtype=options.weights) if options.model else setblock.load()
    methods = ["ntp", "exact"] if model.sbd_config is None else ["ntp", "exact", "sbd"]
    if options.messages:
        cases = messages(options.messages)
    elif options.quick:
        cases = made_up({"review": SCHEMAS["review"]}, 1)
    else:
        cases = made_up(SCHEMAS, options.rounds)
    results |= {"answers": len(cases), "methods": {}}
    for method in methods:
        note(f"method {method}")
        results["methods"][method] = measured(model, method, cases)
    finish(results, options)


def measured(model: SBDModel, method: Any, cases: list[Case]) -> dict[str, float]:
    """Return means over answers, and the grammar's share of the seconds. Passes without a schema are scaled to as many
    tokens."""
    total = dict.fromkeys(("tokens", "passes", "seconds", "passes_without", "seconds_without", "grammar"), 0.0)
    right: Counter[str] = Counter()
    for case in cases:
        held = DecodingSettings(method=method, structure=JsonSchema(case.schema), max_new_tokens=MOST)
        generate(model, case.prompt, settings=replace(held, max_new_tokens=2))  # compiles the grammar, fills caches
        with grammar_seconds() as spent:
            with_schema = generate(model, case.prompt, settings=held)
        most = MOST if case.message else with_schema.num_tokens
        without = generate(model, case.prompt, settings=replace(held, structure=None, max_new_tokens=most))
        scale = with_schema.num_tokens / without.num_tokens
        total["tokens"] += with_schema.num_tokens
        total["grammar"] += spent()
        for each, ending, by in ((with_schema, "", 1.0), (without, "_without", scale)):
            total[f"passes{ending}"] += by * each.passes.decoding
            total[f"seconds{ending}"] += by * each.seconds
            if case.message:
                right[f"right{ending}"] += case.is_right(each.text)
    share = total.pop("grammar") / total["seconds"]
    judged = {name: float(right[name]) for name in ("right", "right_without")} if cases[0].message else {}
    return {name: value / len(cases) for name, value in (total | judged).items()} | {"grammar_share": share}


@contextmanager
def grammar_seconds() -> Iterator[Callable[[], float]]:
    """Count the time that matchers take."""
    spent = [0.0]
    kept = {name: getattr(Matcher, name) for name in ("reveal", "retract", "fill")}

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
