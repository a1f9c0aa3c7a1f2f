"""The repository's own task file: one shop's mail, with fixed keys and the wordings of training."""

import json
from itertools import islice
from pathlib import Path
from typing import Any

import pytest

from extraction.kinds import kinds
from setblock.data.tasks import task_named
from setblock.data.tasks.task import SPLITS, split_of

TASK = task_named(str(Path(__file__).parents[2] / "tasks" / "orders.py"))


@pytest.fixture(scope="module")
def found() -> dict[str, list[Any]]:
    """Sixty examples of each split; not at import, as each worker imports every file."""
    return {split: list(islice(TASK.examples(split), 60)) for split in SPLITS}


def test_a_kind_has_its_keys_in_their_order(found: dict[str, list[Any]]) -> None:
    for example in (each for examples in found.values() for each in examples):
        keys = list(json.loads(example.answer))
        assert keys == list(example.wanted)
        assert f"JSON record with the keys {', '.join(keys)}. " in example.question
    assert len({tuple(example.wanted) for example in found["train"]}) == 3


@pytest.mark.parametrize("split", SPLITS)
def test_names_are_of_one_split_and_wordings_of_training(split: str, found: dict[str, list[Any]]) -> None:
    training = {wording.name for kind in kinds() for wording in kind.wordings if wording.split == "train"}
    assert {split_of(example.identity) for example in found[split]} == {split}
    assert {example.wording for example in found[split]} <= training


def test_answers_are_judged(found: dict[str, list[Any]]) -> None:
    for example in found["validation"]:
        assert TASK.judge(example, example.answer).right
        assert not TASK.judge(example, example.answer.replace('"', "'")).right


def test_a_seed_gives_the_same_distinct_messages(found: dict[str, list[Any]]) -> None:
    assert list(islice(TASK.examples("test"), 60)) == found["test"]
    assert len({example.question for example in found["test"]}) == 60
    assert found["test"] != list(islice(TASK.examples("test", seed=1), 60))
