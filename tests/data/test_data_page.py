"""docs/data.md: its commands run, and its recipes are valid."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from setblock.data.section import DataSection
from setblock.training.recipe import load_recipe

PAGE = (Path(__file__).parents[2] / "docs" / "data.md").read_text()


def blocks(language: str) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```$", PAGE, flags=re.MULTILINE | re.DOTALL)


@pytest.mark.readme
def test_the_commands_run(tmp_path: Path) -> None:
    (tmp_path / "recipe.yaml").write_text(blocks("yaml")[0])
    path = os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]])
    said = ""
    for command in blocks("bash"):
        done = subprocess.run(
            ["bash", "-euo", "pipefail", "-c", command],
            cwd=tmp_path,
            env={**os.environ, "PATH": path, "HF_DATASETS_CACHE": str(tmp_path / "cache"), "OMP_NUM_THREADS": "1"},
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.returncode == 0, done.stderr
        said += done.stdout
    assert (tmp_path / "runs" / "sums" / "config.json").is_file()
    assert "3 + 4" in (tmp_path / "sums.jsonl").read_text()
    assert "saved to runs/sums after" in said
    assert "saved to runs/from-tokens after" in said


@pytest.mark.parametrize("recipe", blocks("yaml"))
def test_the_recipes_are_valid(recipe: str, tmp_path: Path) -> None:
    (tmp_path / "recipe.yaml").write_text(recipe)
    section = load_recipe(tmp_path / "recipe.yaml", overrides={"training.use_cpu": True})[0].data
    assert isinstance(section, DataSection)
