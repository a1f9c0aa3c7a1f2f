"""The table of tasks: each file's are in it, its splits share nothing, its right answers are right and others are not."""

import importlib.resources
import itertools
from pathlib import Path

import pytest

import setblock.data.tasks
from setblock.data.section import SourceSection
from setblock.data.tasks import TASKS, ChatExample, Example, TextExample, Verdict, task_named
from setblock.data.tasks.task import SPLITS, drawn, split_of
from setblock.data.texts.records import records_of
from setblock.errors import ParameterError

GENERATED = [name for name, task in TASKS.items() if task.splits == SPLITS]


def examples(name, split="test", count=20, seed=0):
    return list(itertools.islice(TASKS[name].examples(split, seed=seed), count))


def test_every_file_of_the_folder_is_in_the_table():
    files = {path.stem for path in Path(setblock.data.tasks.__file__).parent.glob("*.py")}
    assert files - {"__init__", "files", "task"} == set(map(file_of, TASKS.values()))
    assert all(task.name == name for name, task in TASKS.items())
    assert all(task.asks for task in TASKS.values())


def file_of(task):
    generate = getattr(task.generate, "func", task.generate)  # of a partial
    return generate.__module__.rsplit(".", 1)[1]


def test_a_wrong_name_lists_the_near_ones():
    with pytest.raises(ParameterError, match="there is no task 'word-problem', did you mean 'word-problems'"):
        task_named("word-problem")


@pytest.mark.parametrize("name", TASKS)
def test_a_split_that_is_not_there_is_refused(name):
    splits = TASKS[name].splits
    one_of = "one of " if len(splits) > 1 else ""
    with pytest.raises(ParameterError, match=f"split of {name} must be {one_of}{', '.join(splits)}, not 'dev'"):
        TASKS[name].examples("dev")


@pytest.mark.parametrize("name", GENERATED)
def test_splits_share_nothing(name):
    of = {split: examples(name, split, 60) for split in SPLITS}
    for one, other in itertools.combinations(SPLITS, 2):
        assert not {each.identity for each in of[one]} & {each.identity for each in of[other]}
        assert not {each.question for each in of[one]} & {each.question for each in of[other]}
    for split, found in of.items():
        assert {split_of(each.identity) for each in found} == {split}


@pytest.mark.parametrize("name", GENERATED)
def test_the_same_seed_gives_the_same_distinct_examples(name):
    first, again, other = (examples(name, count=30, seed=seed) for seed in (3, 3, 4))
    assert first == again != other
    assert len({each.question for each in first}) == 30
    assert all(each.prompt == f"Question: {each.question}\nAnswer:" for each in first)


@pytest.mark.parametrize("name", GENERATED)
def test_answers_are_judged(name):
    task = TASKS[name]
    for example in examples(name, split="validation", seed=1):
        assert task.judge(example, example.completion) == Verdict(True)
        assert task.judge(example, f"\n{example.answer.removesuffix('.')}.\nAnd something else.").right
        assert not task.judge(example, "").right
        assert not task.judge(example, example.answer[: len(example.answer) // 2]).right
        assert not task.judge(example, "I don't know, Zorro").right


def test_a_kind_with_few_examples_ends():
    def write(rng):
        n = rng.randrange(50)
        return Example(f"What is {n}?", str(n), identity=str(n)) if n else None

    of = [{each.answer for each in drawn(write, split, key=split)} for split in SPLITS]
    assert sum(map(len, of)) == 49
    assert set().union(*of) == set(map(str, range(1, 50)))


def test_an_example_has_messages_and_a_record():
    requested = {"role": "user", "content": "Who?"}
    answered = {"role": "assistant", "content": "Me."}
    assert Example("Who?", "Me.").record == {"prompt": "Question: Who?\nAnswer:", "completion": " Me."}
    assert TextExample("Who?", "Me.").record == {"prompt": "Who?", "completion": "Me."}
    assert ChatExample("Who?", "Me.").record == {"messages": [requested, answered]}
    for kind in (Example, TextExample, ChatExample):
        assert kind("Who?").messages == [requested]
        assert kind("Who?").completion is None


def test_one_file_more_in_the_folder_is_one_task_more(tmp_path, monkeypatch):
    """The file that docs/tasks.md shows."""
    page = (Path(__file__).parents[2] / "docs" / "tasks.md").read_text()
    (tmp_path / "doubles.py").write_text(page.split("```python\n")[1].split("```")[0])
    monkeypatch.setattr(setblock.data.tasks, "__path__", [*setblock.data.tasks.__path__, str(tmp_path)])
    found = {task.name: task for task in setblock.data.tasks._tasks_of_this_folder()}
    assert found.keys() == {*TASKS, "doubles"}
    monkeypatch.setitem(TASKS, "doubles", found["doubles"])
    example = next(task_named("doubles").examples("test"))
    assert task_named("doubles").judge(example, " 0\n") == Verdict(True, {"digits": 1.0})
    section = SourceSection(source="doubles", split="test", documents=3)
    assert [record.columns["completion"] for record in records_of(section)] == [" 0", " 2", " 4"]
    with pytest.raises(ParameterError, match="split of doubles must be test, not 'train'"):
        records_of(SourceSection(source="doubles", documents=3))


def test_instructions_are_two_hundred_and_have_no_answer_to_learn():
    lines = importlib.resources.files("setblock.data").joinpath("instructions.jsonl").read_text().splitlines()
    examples = list(TASKS["instructions"].examples("test"))
    assert len(lines) == len(examples) == len({each.question for each in examples}) == 200
    assert all(each.answer is None for each in examples)
    assert all(each.question == each.question.strip() for each in examples)
    assert examples != list(TASKS["instructions"].examples("test", seed=1))
    assert TASKS["instructions"].judge is None
    first = [each.question.split()[0] for each in itertools.islice(examples, 12)]
    assert len(set(first)) > 4  # several sorts
