"""Nothing is published that no test has run on, and workflows run pinned actions alone."""

import re
from pathlib import Path
from typing import Any

import pytest
import yaml

ROOT = Path(__file__).parent.parent
WORKFLOWS = {path.stem: path.read_text(encoding="utf-8") for path in (ROOT / ".github" / "workflows").glob("*.yml")}


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
