"""Messages and their records: what a record says stands in its message, and splits share no names."""

import builtins
import itertools
import json
import os
import random
import re
import subprocess
import sys
from collections import Counter
from datetime import date, time
from difflib import SequenceMatcher

import pytest

from extraction import TASKS, extractions, values
from extraction.asking import FEWEST_TOKENS, MOST_TOKENS, tokens_about
from extraction.kinds import Wording, kinds, other_kinds
from extraction.locales import TEST_LOCALE, locales
from extraction.records import is_right, record_in, right_fields
from extraction.style import MONTHS, Style
from extraction.values import Values
from extraction.writing import _SLOT, Writer
from setblock.data.tasks.task import SPLITS, split_of
from setblock.errors import SetBlockError

BY_NAME = {task.name: task for task in TASKS}
ALL_KINDS = (*kinds(), *other_kinds())
WORDINGS = [(kind, wording) for kind in kinds() for wording in kind.wordings]


def some(split, count=150, seed=0, **options):
    return list(itertools.islice(extractions(split, seed, **options), count))


def written(kind, wording, locale="en_GB", seed=0, split="train"):
    rng = random.Random(f"{wording.name}-{locale}-{seed}")
    writer = Writer(kind, Values(locale, split, rng), rng)
    return writer, writer.write(wording)


def test_there_are_many_kinds_and_half_of_all_wordings_are_held_out_for_the_test():
    of = {split: {wording.name for _, wording in WORDINGS if wording.split == split} for split in SPLITS}
    assert len(kinds()) >= 10
    assert len(WORDINGS) >= 900
    assert len({wording.text for _, wording in WORDINGS}) == len(WORDINGS)
    assert len(of["test"]) >= len(of["train"])
    for kind in kinds():
        count = Counter(wording.split for wording in kind.wordings)
        assert count["train"] >= 28
        assert count["test"] >= 30
        assert count["validation"] >= 1
    assert {each.wording for each in some("train")} <= of["train"]
    assert {each.wording for each in some("validation")} <= of["train"] | of["validation"]
    assert {each.wording for each in some("test")} & of["train"]
    assert {each.wording for each in some("test", own_wordings=True)} <= of["test"]
    assert {each.wording for each in some("validation", own_wordings=True)} == of["validation"]


@pytest.mark.parametrize("kind", kinds(), ids=lambda kind: kind.name)
def test_no_held_out_wording_is_a_near_copy_of_one_of_training(kind):
    words = {wording.name: re.findall(r"\w+|[^\w\s\[\]]", wording.text) for wording in kind.wordings}
    held_out, trained = ([w for w in kind.wordings if (w.split == "train") is own] for own in (False, True))
    for one, other in itertools.product(held_out, trained):
        matcher = SequenceMatcher(None, words[one.name], words[other.name], autojunk=False)
        # Quick bounds of the ratio first
        assert any(bound() < 0.6 for bound in (matcher.real_quick_ratio, matcher.quick_ratio, matcher.ratio)), (
            one,
            other,
        )


def test_other_kinds_are_as_a_whole_of_one_split_and_no_key_has_two_meanings():
    assert not {kind.name for kind in kinds()} & {kind.name for kind in other_kinds()}
    count = Counter()
    for kind in other_kinds():
        (split,) = {wording.split for wording in kind.wordings}
        count[split] += 1
        names = [name for field in kind.fields.values() if field.key for name in (field.key, *field.other_keys)]
        assert len(set(names)) == len(names), kind.name
        assert all(field.other_keys for field in kind.fields.values() if field.key)
    assert count["train"] >= 50
    assert count["test"] >= 9
    assert count["validation"] >= 3
    task = BY_NAME["extraction-any-kind"]
    split_of_kind = {kind.name: kind.wordings[0].split for kind in other_kinds()}
    for split in SPLITS:
        examples = itertools.islice(task.examples(split), 100)
        assert {split_of_kind[each.wording.rpartition("-")[0]] for each in examples} == {split}


def test_one_locale_is_in_the_test_split_only():
    assert all(each.locale != TEST_LOCALE for split in ("train", "validation") for each in some(split))
    assert {each.locale for each in some("test")} == set(locales())


def test_each_name_is_of_one_split():
    for split in SPLITS:
        for number, each in enumerate(some(split, 40)):
            assert split_of(each.identity) == split
            drawn = Values("de_DE", split, random.Random(number))
            names = [drawn.person(), *drawn.draw("people", "2..3", str), drawn.draw("company", "", str)]
            assert {split_of(name) for name in names} == {split}
            assert len({part for name in names[:3] for part in name.rsplit(" ", 1)}) == 6  # no name twice in a message
            assert drawn.names == names


def test_messages_are_the_same_for_a_seed_and_differ_otherwise():
    first, again, other = some("train", 30, 3), some("train", 30, 3), some("train", 30, 4)
    assert first == again
    assert not {each.question for each in first} & {each.question for each in other}


@pytest.mark.parametrize("kind", ALL_KINDS, ids=lambda kind: kind.name)
def test_wordings_name_fields_that_are_there_and_leave_no_marks(kind):
    for number, wording in enumerate(kind.wordings):
        for slot in _SLOT.finditer(wording.text):
            assert {slot[1], slot[2] or slot[1]} <= kind.fields.keys(), wording.name
        assert wording.unclear <= kind.fields.keys()
        assert wording.flags <= {"typos", "lower"}
        for seed, locale in list(enumerate(locales()))[number % 3 :: 3]:
            text = written(kind, wording, locale, seed)[1].text
            assert not set("{}¦\1\2") & set(text), text
            assert "None" not in text
            assert not re.search(r"(?<!\.)\.\.(?!\.)|\ba (?=[AEIOaeio])", text), text
    taken = [field.key for field in kind.fields.values() if field.key]
    assert all(re.fullmatch("[a-z][a-z0-9_]*", key) for key in taken)
    assert len(set(taken)) == len(taken) >= 8


@pytest.mark.parametrize("kind", ALL_KINDS, ids=lambda kind: kind.name)
def test_what_a_message_shows_can_be_read_in_it(kind):
    """By a reader that knows nothing of the writer: it looks for each value in all the ways that a person would know. Each
    wording is read in every third locale."""
    for (number, wording), (seed, locale) in itertools.product(enumerate(kind.wordings), enumerate(locales())):
        if (number + seed) % 3:
            continue
        _, message = written(kind, wording, locale, seed)
        dates_share = "..".join(re.findall(r"\.\.(\w+)\}", wording.text))
        assert message.shown, wording.name
        for name, value in message.shown.items():
            field = kind.fields[name]
            if field.type == "flag" or name == "currency":
                continue  # stated in other words
            if f"..{name}" in f"..{dates_share}" or f"{{{name}.." in wording.text:
                assert f"{value.day}" in message.text
                continue
            assert is_readable(value, message.text), f"{name} {value} {wording.name} {locale}\n{message.text}"


def is_readable(value, text):
    if isinstance(value, list):
        parts = [part for each in value for part in (each.values() if isinstance(each, dict) else [each])]
        return all(is_readable(part, text) for part in parts)
    if isinstance(value, time):
        hours = {f"{value.hour}", f"{value.hour:02}", f"{value.hour % 12 or 12}"}
        full = any(re.search(rf"(?<!\d){hour} ?[:.h] ?{value.minute:02}", text) for hour in hours)
        return full or bool(value.minute == 0 and re.search(rf"\b{value.hour % 12 or 12} ?[ap]", text, re.IGNORECASE))
    if isinstance(value, date):
        month = MONTHS[value.month - 1][:3]
        named = rf"{month}[a-z]*[ -]{value.day}(st|nd|rd|th)?, {value.year}"
        day_first = rf"(?<!\d){value.day}(st|nd|rd|th|\.)?( of)?[ -]{month}[a-z]*[ -]{value.year}"
        numbers = [
            rf"0?{value.day}(?P<by>[/.-])0?{value.month}(?P=by){value.year}",
            rf"0?{value.month}/0?{value.day}/{value.year}",
        ]
        numbers += [
            rf"0?{value.day}/0?{value.month}/{value.year % 100:02}\b",
            rf"{value:%m/%d/%y}",
            f"{value:%Y-%m-%d}",
        ]
        return any(re.search(form, text, re.IGNORECASE) for form in (named, day_first, *numbers))
    if isinstance(value, int | float):
        words = "zero one two three four five six seven eight nine ten eleven twelve".split()
        if value in range(13) and words[int(value)] in text:
            return True
        grouped = r"(?<!\d)(?=(\d{1,3}(?:[.,' ]\d{3})+(?:[.,]\d\d?)?)(?!\d))"
        plain = r"(?<!\d)(?=(\d+(?:[.,]\d\d?)?)(?!\d))"
        return value in {number_of(each) for form in (grouped, plain) for each in re.findall(form, text)}
    return value in text


def number_of(text):
    whole, cents = re.fullmatch(r"(.*?)(?:[.,](\d{1,2}))?", text).groups()
    return float(f"{re.sub('[^0-9]', '', whole) or 0}.{cents or 0}")


def test_what_is_left_out_is_null_and_what_is_stated_in_part_is_not_requested():
    kind = next(each for each in kinds() if each.name == "contact")
    wording = Wording("contact-x", "train", frozenset(), frozenset(), "{name}, [{phone}|], {company.slug} {other}")
    messages = [written(kind, wording, seed=seed)[1] for seed in range(20)]
    assert {frozenset(each.shown) for each in messages} == {
        frozenset({"name", "phone", "other"}),
        frozenset({"name", "other"}),
    }
    assert all(each.partly == {"company"} for each in messages)
    partly_stated = [each for each in some("test", 1500, own_wordings=True) if each.wording == "invoice-9"]
    assert partly_stated
    assert all("vendor" not in each.wanted for each in partly_stated)


def test_what_a_message_leaves_unclear_is_not_requested():
    unclear = {wording.name: {kind.fields[name].key for name in wording.unclear} for kind, wording in WORDINGS}
    messages = [each for split in ("train", "test") for each in some(split, 300) if unclear[each.wording]]
    assert len({each.wording for each in messages}) > 5
    assert not [each for each in messages if unclear[each.wording] & each.wanted.keys()]


def test_records_are_of_fair_length_and_tell_something():
    for split in SPLITS:
        for each in some(split):
            length = tokens_about(json.dumps(each.wanted, ensure_ascii=False))
            assert FEWEST_TOKENS <= length <= MOST_TOKENS
            empty = [value for value in each.wanted.values() if value is None]
            assert len(empty) < len(each.wanted)
            assert all(key in each.question for key in each.wanted)
    everything = [value for each in some("train", 400) for value in each.wanted.values()]
    assert {type(value) for value in everything} == {str, int, float, bool, list, type(None)}
    assert 0.05 < sum(value is None for value in everything) / len(everything) < 0.3


def test_a_date_that_could_be_read_in_two_ways_comes_with_its_order():
    for name, order in (("en_US", "month/day/year"), ("en_GB", "day/month/year")):
        for seed in range(60):
            style = Style(locales()[name], random.Random(seed))
            text = style.date(date(2026, 5, 3))
            assert style.convention == (order if re.match(r"\d\d?/", text) else None)
    ambiguous = [each for each in some("train", 400) if re.search(r"\b\d\d?([/.-])\d\d?\1\d{2,4}\b", each.question)]
    assert ambiguous
    assert all(re.search("(day/month|month/day)/year", each.question) for each in ambiguous if asks_date(each.wanted))


def asks_date(record):
    return any(isinstance(value, str) and re.fullmatch(r"\d{4}-\d\d-\d\d", value) for value in record.values())


def test_thousands_without_cents_are_never_written_like_cents():
    for seed in range(100):
        style = Style(locales()["de_DE"], random.Random(seed))
        assert re.search(r"1\.200,00|1200(,00)?(?!\d)", style.amount(1200.0))


def test_what_counts_as_a_record():
    wanted = {"name": "Ada", "total": 12.0, "paid": True, "items": [{"n": 1}, {"n": 2}], "note": None}
    right = '\n {"total":12,\n\t"name": "Ada", "paid": true, "items": [{"n": 1.0}, {"n": 2}], "note": null}  '
    assert is_right(wanted, record_in(right))
    for wrong in (f"```json\n{right}\n```", f"{right};", f"{right}{right}", "[1]", "", '{"name": "Ada"', '{"a": NaN}'):
        assert record_in(wrong) is None
    assert record_in('{"name": "Ada", "name": "Bob"}') is None
    assert not is_right(wanted, None)
    assert right_fields(wanted, None) == 0


def test_each_field_counts_for_itself():
    wanted = {"name": "Ada", "paid": True, "items": [{"n": 1}, {"n": 2}]}
    assert right_fields(wanted, wanted) == 1
    assert right_fields(wanted, {**wanted, "name": "ada"}) == 3 / 4
    assert right_fields(wanted, {**wanted, "paid": 1}) == 3 / 4
    assert right_fields(wanted, {**wanted, "more": None}) == 4 / 5
    assert right_fields(wanted, {**wanted, "items": [{"n": 1}]}) == 3 / 4
    assert right_fields(wanted, {"name": "Ada"}) == 1 / 4
    assert right_fields({"n": None}, {}) == 0  # what is missing is to be said
    assert not is_right({"n": 0}, {"n": False})


@pytest.mark.parametrize("name", ["extraction", "extraction-unseen"])
def test_answers_are_judged(name):
    task = BY_NAME[name]
    for example in itertools.islice(task.examples("test", seed=2), 20):
        verdict = task.judge(example, f" {example.answer}\n")
        assert verdict.right
        assert verdict.scores == {"fields": 1.0, "record": 1.0}
        changed = dict(example.wanted)
        changed[next(iter(changed))] = "something else"
        verdict = task.judge(example, json.dumps(changed))
        assert not verdict.right
        assert 0 < verdict.scores["fields"] < 1
        assert verdict.scores["record"] == 0
        assert example.record["messages"][-1] == {"role": "assistant", "content": example.answer}


def test_without_faker_one_line_says_what_to_install(monkeypatch):
    original = builtins.__import__

    def without(name, *rest, **more):
        if name == "faker":
            raise ImportError(name)
        return original(name, *rest, **more)

    values._faker.cache_clear()
    monkeypatch.setattr(builtins, "__import__", without)
    with pytest.raises(SetBlockError, match=r"pip install 'faker>=40'"):
        next(BY_NAME["extraction"].examples("train"))


def test_the_messages_written_by_hand_are_of_fair_length_and_their_records_can_be_read_in_them():
    found = list(BY_NAME["extraction-handwritten"].examples("test"))
    assert len(found) == 40
    assert len({each.question for each in found}) == 40
    assert {each.question for each in BY_NAME["extraction-handwritten"].examples("test", seed=1)} == {
        each.question for each in found
    }
    for each in found:
        assert record_in(each.answer) == each.wanted
        assert 35 <= tokens_about(each.answer) <= 200
        assert all(key in each.question for key in each.wanted)
        for value in each.wanted.values():
            if isinstance(value, str) and not re.fullmatch(
                r"[A-Z]{3}|\d{4}-\d\d-\d\d( \d\d:\d\d)?|\d\d:\d\d|\d{11}", value
            ):
                assert value in each.question


def test_the_messages_are_the_same_in_every_process() -> None:
    code = """
from itertools import islice
from extraction.locales import locales
from extraction import TASKS, extractions
found = list(islice(extractions("train"), 150))
assert {each.locale for each in found} >= locales().keys() - {"pt_BR"}
print(*map(repr, found), sep="\\n")
"""
    first, second = (
        subprocess.run(
            [sys.executable, "-c", code],
            env={**os.environ, "PYTHONHASHSEED": seed, "PYTHONPATH": os.pathsep.join(sys.path)},
            capture_output=True,
            text=True,
            check=True,
        )
        for seed in ("1", "2")
    )
    assert first.stdout
    assert first.stdout == second.stdout
