"""HumanEval: which code of an answer is run, and that the problems' own solutions pass while others do not."""

import re
from pathlib import Path

import pytest

import humaneval
from humaneval import code_in
from setblock.data.tasks import task_named
from setblock.errors import ParameterError, SetBlockError, install_command
from setblock.evaluation.judging import check_judge, verdicts_on

(TASK,) = humaneval.TASKS
FOLDER = Path(humaneval.__file__).parent


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


def test_the_folder_is_a_task_and_its_earlier_name_says_where_it_is():
    assert task_named(str(FOLDER)).name == TASK.name == "humaneval"
    with pytest.raises(ParameterError, match=r"the task humaneval is a folder of the repository now: tasks/humaneval$"):
        task_named("humaneval")


def test_programs_run_only_where_that_is_allowed_and_can_be(monkeypatch):
    with pytest.raises(
        ParameterError, match="humaneval runs programs that the model writes: allow it with --allow-code"
    ):
        check_judge(TASK, allow_code_execution=False)

    def refuse():
        raise SetBlockError("no limits")

    monkeypatch.setattr("humaneval.programs._confinement", refuse)
    with pytest.raises(SetBlockError, match="no limits"):
        check_judge(TASK, allow_code_execution=True)
