"""Tasks as a recipe's data, alone and in a mixture."""

import itertools

import pytest

from setblock.data.corpus.corpus import DocumentLimits
from setblock.data.corpus.tokenised import rows_of
from setblock.data.section import DataSection, SourceSection
from setblock.data.tasks import TASKS
from setblock.data.texts.encoding import Encoder, corpus_texts, shaped
from setblock.data.texts.records import records_of
from setblock.errors import SetBlockError


def source(name, **fields):
    return SourceSection(source=name, **fields)


def test_records_are_the_exercises_of_the_split_and_seed():
    records = list(records_of(source("word-problems", documents=5, split="validation", seed=2)))
    exercises = itertools.islice(TASKS["word-problems"].examples("validation", seed=2), 5)
    assert [record.columns for record in records] == [
        {"prompt": e.prompt, "completion": e.completion} for e in exercises
    ]
    assert records[0].where == "word-problems, number 1"


def test_the_fingerprint_is_that_of_the_exercises():
    first = records_of(source("word-problems", documents=5)).fingerprint
    assert first == records_of(source("word-problems", documents=5)).fingerprint
    for other in ({"documents": 6}, {"documents": 5, "seed": 1}, {"documents": 5, "split": "test"}):
        assert first != records_of(source("word-problems", **other)).fingerprint


def test_what_has_no_end_must_be_given_one():
    with pytest.raises(
        SetBlockError, match=r"word-problems may be endless: set data.documents to the number of documents to take"
    ):
        records_of(source("word-problems"))
    with pytest.raises(SetBlockError, match="split of word-problems must be one of train, validation, test, not 'dev'"):
        records_of(source("word-problems", documents=3, split="dev"))


def test_a_mixture_is_evaluated_on_another_split_of_its_sources(tokenizer):
    section = DataSection(
        mixture=[{"source": "word-problems", "documents": 12}, {"source": "word-problems", "documents": 12, "seed": 5}],
        evaluation={"split": "validation", "documents": 4},
    )
    rows = rows_of(section, tokenizer, DocumentLimits(512, vocabulary=300, mask_token_id=1))

    def texts(side):
        return {tokenizer.decode(row.input_ids, skip_special_tokens=True) for row in side}

    def expected(name, split, seed, count):
        return {e.prompt + e.completion for e in itertools.islice(TASKS[name].examples(split, seed=seed), count)}

    sources = (("word-problems", 0), ("word-problems", 5))
    for side, split, count in ((rows["train"], "train", 12), (rows["evaluation"], "validation", 4)):
        assert texts(side) == set().union(*(expected(name, split, seed, count) for name, seed in sources))
    assert not texts(rows["train"]) & texts(rows["evaluation"])
    with pytest.raises(ValueError, match="needs its own source or split"):
        DataSection(mixture=[{"source": "word-problems", "documents": 2}], evaluation={"documents": 2})


def test_only_completions_carry_loss(tokenizer):
    data = DataSection(source="word-problems", documents=1)
    (section,) = data.sources
    (document,) = Encoder(tokenizer, section, data).documents(*shaped(section, records_of(section)))
    exercise = next(TASKS["word-problems"].examples("train"))
    learned = [token for token, carries in zip(document["token_ids"], document["carries_loss"], strict=True) if carries]
    assert tokenizer.decode(learned) == f"{exercise.completion}<|endoftext|>"


def test_a_single_source_takes_the_sections_seed():
    section = DataSection(source="word-problems", documents=3, seed=9)
    exercises = itertools.islice(TASKS["word-problems"].examples("train", seed=9), 3)
    assert list(corpus_texts(section)) == [f"{each.prompt}{each.completion}" for each in exercises]
