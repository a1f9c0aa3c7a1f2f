"""Judge answers of the suite's own tasks, for their files."""

from typing import Any

from lm_eval.tasks.aime.utils import is_equiv, last_boxed_only_string, remove_boxed


def boxed_answer(doc: dict[str, Any], results: list[str]) -> dict[str, int]:
    """Return whether the last boxed expression of an answer is the solution's, as the harness compares them."""
    boxed = last_boxed_only_string(results[0])
    return {"exact_match": int(boxed is not None and is_equiv(remove_boxed(boxed), str(doc["answer"])))}
