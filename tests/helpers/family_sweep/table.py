"""The table of families in `docs/versions.md`, made of the results of all runs.

`python tests/helpers/every_family.py` writes it anew.
"""

import json
from collections import defaultdict
from collections.abc import Sequence
from importlib import metadata
from pathlib import Path
from typing import Any

from family_sweep.cases import cases
from family_sweep.outcome import Outcome

RESULTS = Path(__file__).parents[2] / "families" / "results.jsonl"

PAGE = Path(__file__).parents[3] / "docs" / "versions.md"


def write_results(outcomes: Sequence[Outcome]) -> None:
    """Put outcomes in the place of earlier ones of the same cases."""
    found = (
        {each["name"]: each for each in map(json.loads, RESULTS.read_text().splitlines())} if RESULTS.exists() else {}
    )
    found |= {each.name: each.to_json() for each in outcomes}
    lines = [json.dumps(found[name]) + "\n" for name in cases() if name in found]
    RESULTS.write_text("".join(lines))


def summary(outcomes: Sequence[dict[str, Any]]) -> str:
    """The table of models in `docs/versions.md`."""
    of = {
        status: [each for each in outcomes if each["status"] == status]
        for status in ("right", "refused", "not covered")
    }
    version = metadata.version("transformers")
    unpackable = [each["name"] for each in of["right"] if _UNPACKABLE in each["plan"]]
    limited = [each["name"] for each in of["right"] if "limits" in each]
    reasons: dict[str, list[str]] = defaultdict(list)
    for each in of["refused"]:
        reasons[next(reason for part, reason in REASONS.items() if part in each["reason"])].append(each["name"])
    rows = [
        ("right", len(of["right"]), ", ".join(each["name"] for each in of["right"])),
        ("right up to a length", len(limited), ", ".join(limited)),
        ("right, by whole rows of the cache in the engine", len(unpackable), ", ".join(unpackable)),
        *((f"refused: {reason}", len(names), ", ".join(names)) for reason, names in sorted(reasons.items())),
        (
            "not covered: no tiny model can be made",
            len(of["not covered"]),
            ", ".join(e["name"] for e in of["not covered"]),
        ),
    ]
    table = "\n".join(f"| {what} | {count} | {names} |" for what, count, names in rows if count)
    return f"| Transformers {version} | | |\n|---|---|---|\n{table}\n"


_UNPACKABLE = "with requests packed in one row"

REASONS = {
    "is an encoder-decoder": "encoder-decoder",
    "outside of Transformers' cache": "a recurrent state outside of Transformers' cache",
    "which can't be put back": "a cache that can't be put back",
    "a cache that is put back": "a cache that can't be put back",
    "from a state": "other logits from a recurrent state",
    "from their states": "other logits from a recurrent state",
    "state was put back": "other logits from a recurrent state",
    "ALiBi": "ALiBi",
    "layer type": "layers that are neither full nor sliding-window attention",
    "change with the tokens that follow": "a token's logits change with what follows it",
    "other logits": "other logits under the masks, positions or cache of blocks",
    "ignores a mask": "a mask of its own",
    "no 4D mask": "takes no mask, positions or cache of ours",
    "no small copy": "can't be tried on a small copy",
    "mask token": "no room for a mask token",
    "no causal language model": "no causal language model",
    "": "other reasons",
}
"""What refusals have in common, by a part of their messages."""


def main() -> None:
    """Write the table of `docs/versions.md` anew, which ends it."""
    text = PAGE.read_text()
    table = summary([json.loads(line) for line in RESULTS.read_text().splitlines()])
    PAGE.write_text(text[: text.rindex("\n| Transformers ") + 1] + table)
