"""What pages promise of CI is what the workflows do, and nothing is published that no test has run on."""

import re
from pathlib import Path
from typing import Any

import pytest
import yaml

ROOT = Path(__file__).parent.parent
WORKFLOWS = {path.stem: path.read_text(encoding="utf-8") for path in (ROOT / ".github" / "workflows").glob("*.yml")}
SYSTEMS = {"ubuntu": "Linux", "macos": "macOS", "windows": "Windows"}


def jobs(name: str) -> dict[str, dict[str, Any]]:
    """The jobs of a workflow."""
    found: dict[str, dict[str, Any]] = yaml.safe_load(WORKFLOWS[name])["jobs"]
    return found


def before(name: str, job: str) -> set[str]:
    """All that must have passed before a job of a workflow."""
    needed = jobs(name)[job].get("needs", [])
    names = {needed} if isinstance(needed, str) else set(needed)
    return names | {each for other in names for each in before(name, other)}


@pytest.mark.parametrize("name", WORKFLOWS)
def test_actions_are_pinned_to_a_commit(name: str) -> None:
    used = re.findall(r"uses: (.+)", WORKFLOWS[name])
    assert used
    loose = [each for each in used if not re.fullmatch(r"[\w.-]+/[\w.-]+@[0-9a-f]{40} # v[\d.]+", each)]
    assert [each for each in loose if not each.startswith("./.github/workflows/")] == []


def test_a_release_waits_for_all_checks() -> None:
    assert jobs("release")["checks"]["uses"] == "./.github/workflows/checks.yml"
    for job in ("pypi", "github"):
        assert "checks" in before("release", job)
    assert "workflow_call" in WORKFLOWS["checks"]


def test_the_page_of_versions_says_what_is_tested() -> None:
    page = " ".join((ROOT / "docs" / "versions.md").read_text(encoding="utf-8").split())
    matrix = jobs("checks")["tests"]["strategy"]["matrix"]
    assert f"Python {matrix['python'][0]} to {matrix['python'][-1]}, on " in page
    tested = [SYSTEMS[each.partition("-")[0]] for each in matrix["os"]]
    assert f"on {' and '.join(tested)}." in page
    assert re.findall(r"\| Operating system \| ([^|]+) \|", page) == [", ".join(tested)]
    assert "Windows" in tested or "Windows is untested" in page
    (command,) = [step["run"] for step in jobs("checks")["oldest"]["steps"] if "pytest" in step.get("run", "")]
    folders = re.findall(r"(?<!--ignore )tests/(\w+)(?= |$)", command)
    assert len(folders) >= 6
    assert f"the tests in {', '.join(f'`{folder}`' for folder in folders)}" in page
    (setup,) = [step["with"] for step in jobs("checks")["oldest"]["steps"] if "with" in step]
    assert f"with Python {setup['python-version']} on Linux" in page


def test_contributing_says_what_ci_runs() -> None:
    page = " ".join((ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8").split())
    assert [step["run"] for step in jobs("checks")["everything"]["steps"] if "run" in step] == ["bash .ci/run"]
    assert "`.ci/run` is what CI runs from a clean clone" in page
    for name in WORKFLOWS:
        assert f"`{name}`" in page, "say what it is for"


def test_ci_says_which_tests_are_slow() -> None:
    for name in ("checks", "nightly"):
        commands = re.findall(r"python -m pytest.*", WORKFLOWS[name])
        assert commands
        assert [command for command in commands if "--durations" not in command] == []
    assert "--durations" in (ROOT / ".ci" / "run").read_text(encoding="utf-8")
