"""requirements-oldest.txt has the oldest versions that pyproject.toml allows, so that CI tests what is promised."""

import re
import tomllib
from pathlib import Path

from packaging.requirements import Requirement
from packaging.version import Version

ROOT = Path(__file__).parent.parent
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
TESTED = ("eval", "peft", "pictures", "quantize", "serve", "structured", "tasks")
"""Extras whose oldest dependencies are tested. vLLM and llama.cpp have environments of their own; the others are tools."""


def promised():
    texts = [*PROJECT["dependencies"], *(text for extra in TESTED for text in PROJECT["optional-dependencies"][extra])]
    return {requirement.name.lower(): requirement for requirement in map(Requirement, texts)}


def locked():
    lines = (ROOT / "requirements-oldest.txt").read_text().splitlines()
    return {
        line.split("==")[0].lower(): Version(line.split("==")[1]) for line in lines if "==" in line and line[0] != "#"
    }


def test_every_dependency_is_locked_at_its_lower_bound():
    for name, requirement in promised().items():
        bounds = [Version(each.version) for each in requirement.specifier if each.operator == ">="]
        assert [locked()[name]] == bounds, name


def test_the_newest_are_allowed_too():
    newest = dict(
        re.findall(r"^([\w.-]+)==([\w.]+)$", (ROOT / "constraints.txt").read_text().lower(), flags=re.MULTILINE)
    )
    for name, requirement in promised().items():
        assert requirement.specifier.contains(newest[name], prereleases=True), name
