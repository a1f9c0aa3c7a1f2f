"""Judge programs of the suite's own tasks, for their files: run them with the task's tests, in a sandbox."""

from collections.abc import Iterable
from typing import Any

from setblock.evaluation import sandbox
from setblock.evaluation.sandbox import Limits

# The tests of HumanEval+ compute for seconds on large inputs, some with NumPy.
LIMITS = Limits(seconds=90, cpu_seconds=30, memory=4 << 30)


def humaneval(doc: dict[str, Any], results: list[str]) -> dict[str, int]:
    """Return whether a function that was begun in the prompt passes its `check`."""
    return _judged(f"{doc['prompt']}{results[0]}", doc["test"], f"check({doc['entry_point']})")


def mbpp(doc: dict[str, Any], results: list[str]) -> dict[str, int]:
    """Return whether a program passes its three tests."""
    return _judged(results[0], doc.get("test_setup_code") or "", *doc["test_list"])


def mbpp_examples(docs: Iterable[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return the solved problems of MBPP's own prompt, tasks 2, 3 and 4 first."""
    return sorted(docs, key=lambda doc: (doc["task_id"] < 2, doc["task_id"]))


def _judged(*parts: str) -> dict[str, int]:
    return {"pass@1": int(sandbox.run("\n".join(parts), limits=LIMITS).finished)}
