"""Requests in many ways: the record's keys stand in the request, values stay, and held-out words are in no training."""

import itertools
import json
import random
import re

import pytest

from extraction import TASKS, extractions
from extraction.asking import record_of, requested_fields
from extraction.asks import _asks, _names, request_in_any_wording
from extraction.kinds import kinds, other_kinds
from extraction.values import Values
from extraction.writing import Writer

BY_NAME = {task.name: task for task in TASKS}


@pytest.fixture(scope="module")
def train():
    return list(itertools.islice(extractions("train", any_ask=True), 400))


@pytest.fixture(scope="module")
def test():
    return list(itertools.islice(extractions("test", any_ask=True), 400))


def test_a_request_has_each_key_and_the_message_and_no_mark_of_a_template(train, test):
    for example in (*train[:80], *test[:80]):
        assert json.loads(example.answer) == example.wanted
        assert len(example.wanted) >= 2
        assert all(key in example.question for key in example.wanted)
        assert not {"{keys}", "{rules}", "{ask}", "{message}", "{key}"} & set(example.question.split())
        assert "{keys}" not in example.question


@pytest.mark.parametrize("kind", [*kinds(), *other_kinds()], ids=lambda kind: kind.name)
@pytest.mark.parametrize("split", ["train", "test"])
def test_each_key_has_the_value_of_the_field_that_it_is_a_name_of(kind, split):
    rng = random.Random(kind.name)
    for wording in kind.wordings[:8]:
        message = Writer(kind, Values("en_GB", split, rng), rng).write(wording)
        fields = requested_fields(kind, message, wording, rng) or []
        for _ in range(4 if fields else 0):
            _, record = request_in_any_wording(message, fields, split, rng)
            assert len(record) <= len(fields)
            for key, value in record.items():
                meant = [field for field in fields if bare(key) in {bare(name) for name in names_of(field, split)}]
                assert value in record_of(meant, message).values(), (key, value)


def names_of(field, split):
    if field.other_keys:
        return [field.key, *field.other_keys]
    held_out, training = _names()[field.key]
    return [field.key, f"{field.key}_2", *(training if split == "train" else held_out)]


def bare(key):
    return re.sub(r"[ _-]", "", key).lower()


def test_keys_have_other_names_and_those_held_out_are_in_no_training(train):
    keys = {field.key for kind in kinds() for field in kind.fields.values() if field.key}
    assert _names().keys() == keys
    for held_out, training in _names().values():
        assert held_out
        assert training
        assert not {*held_out} & {*training}
    assert any(key not in keys for example in train for key in example.wanted)


def test_words_of_held_out_requests_are_in_no_training(train, test):
    for part, texts in _asks()["test"].items():
        assert not {*filter(None, texts)} & {*_asks()["train"][part]} - {"{ask}\n\n{message}"}
    starts = {text.partition("{")[0] for text in _asks()["test"]["asks"]} - {""}
    assert not any(start in example.question for example in train for start in starts)
    assert all(any(start in example.question for example in test) for start in starts)


def test_orders_and_ways_to_write_keys_differ(train):
    names = [tuple(example.wanted) for example in train]
    assert sum(any(" " in key for key in each) for each in names) > 40
    assert sum(any(key[0].islower() and key != key.lower() for key in each) for each in names) > 20
    assert sum(example.question.endswith((".", "}")) for example in train) > 40  # the message first


def test_answers_are_judged_by_their_own_keys():
    task = BY_NAME["extraction-any-ask"]
    for example in itertools.islice(task.examples("test"), 20):
        assert task.judge(example, example.answer).right
