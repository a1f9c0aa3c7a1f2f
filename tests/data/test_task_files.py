"""Tasks of the user's own files: every command and recipe takes them as it takes the package's."""

from pathlib import Path
from typing import Any

import pytest
import typer.testing

from setblock.cli.app import app
from setblock.data.section import SourceSection
from setblock.data.tasks import is_task, task_named
from setblock.data.texts.records import records_of
from setblock.errors import ParameterError

SOURCE = """
from dataclasses import dataclass
from setblock.data.tasks import Example, Task, Verdict

@dataclass(frozen=True)
class Double(Example):
    number: int = 0

def doubles(split, seed):
    for n in range(5):
        yield Double(f"What is two times {n}?", str(2 * n), number=n)

def judge(example, answer):
    return Verdict(answer.strip() == str(2 * example.number))

TASKS = (Task("doubles", "two times a number", doubles, judge),)
"""


@pytest.fixture
def doubles(tmp_path: Path) -> Path:
    path = tmp_path / "doubles.py"
    path.write_text(SOURCE)
    return path


def test_a_file_with_one_task_needs_no_name(doubles: Path) -> None:
    task = task_named(str(doubles))
    assert task is task_named(f"{doubles}:doubles")
    assert [each.number for each in task.examples("test")] == list(range(5))


def test_a_folder_with_an_init_is_a_package(tmp_path: Path) -> None:
    package = tmp_path / "own"
    package.mkdir()
    (package / "rules.py").write_text("asks = 'two times a number'\n")
    (package / "__init__.py").write_text("from .rules import asks\n" + SOURCE.replace('"two times a number"', "asks"))
    assert task_named(str(package)).asks == task_named(f"{package}:doubles").asks == "two times a number"


def test_two_files_of_one_name_are_two_modules(tmp_path: Path, doubles: Path) -> None:
    other = tmp_path / "other" / "doubles.py"
    other.parent.mkdir()
    other.write_text(SOURCE.replace("range(5)", "range(2)"))
    assert [len(list(task_named(str(path)).examples("test"))) for path in (doubles, other, doubles)] == [5, 2, 5]


def test_a_file_imports_what_is_beside_it(doubles: Path) -> None:
    """As a program does that Python runs, but an installed package is found first."""
    doubles.with_name("beside_doubles.py").write_text("asks = 'two times a number'\n")
    doubles.with_name("json.py").write_text("1 / 0\n")
    doubles.write_text(
        "from beside_doubles import asks\nimport json\n" + SOURCE.replace('"two times a number"', "asks")
    )
    assert task_named(str(doubles)).asks == "two times a number"


def test_of_several_tasks_the_one_with_the_name_of_the_file_needs_none(doubles: Path, tmp_path: Path) -> None:
    doubles.write_text(SOURCE + 'TASKS = (*TASKS, Task("more", "the same", doubles, judge))\n')
    package = tmp_path / "more"
    package.mkdir()
    (package / "__init__.py").write_text(doubles.read_text())
    assert task_named(str(doubles)).name == "doubles"
    assert task_named(str(package)).name == "more"
    assert task_named(f"{doubles}:more").name == "more"
    with pytest.raises(ParameterError, match="there is no task 'mor', did you mean 'more'"):
        task_named(f"{doubles}:mor")
    other = doubles.rename(tmp_path / "sums.py")
    with pytest.raises(ParameterError, match=r"task must be .*sums\.py:NAME, .* has 2 tasks: doubles, more"):
        task_named(str(other))


@pytest.mark.parametrize(
    ("source", "message"),
    [
        (None, r"there is no file .*doubles\.py"),
        ("1 / 0", r"can't load .*doubles\.py: ZeroDivisionError: division by zero"),
        ("import nowhere_to_be_found", "ModuleNotFoundError"),
        ("x = 1", r"doubles\.py has no tasks: give it a variable TASKS"),
    ],
)
def test_says_what_is_wrong_with_a_file(doubles: Path, source: str | None, message: str) -> None:
    doubles.unlink() if source is None else doubles.write_text(source)
    with pytest.raises(ParameterError, match=message) as error:
        task_named(str(doubles))
    assert "\n" not in str(error.value)


def test_a_recipe_trains_on_it(doubles: Path) -> None:
    section = SourceSection(source=str(doubles), documents=2, split="train")
    assert [record.columns["completion"] for record in records_of(section)] == [" 0", " 2"]


def test_a_folder_of_data_is_no_task(tmp_path: Path) -> None:
    assert not is_task(str(tmp_path))
    assert not is_task("data.jsonl")


def test_evaluate_takes_it(doubles: Path) -> None:
    outcome: Any = typer.testing.CliRunner().invoke(
        app, ["evaluate", "--task", str(doubles), "--limit", "2", "--max-new-tokens", "4", "--method", "exact"]
    )
    assert outcome.exit_code == 0, outcome.output
    assert "2 doubles, test split" in outcome.stdout
