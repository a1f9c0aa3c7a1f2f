"""Every command and program of the README runs. Those that can't here say why, in `<!-- not run: REASON -->` before them."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from fenced import blocks
from setblock.training.recipe import load_recipe

ROOT = Path(__file__).parent.parent


README = blocks(ROOT / "README.md")


def test_every_block_says_what_it_is():
    assert {block.language for block in README} <= {"bash", "python", "text", "yaml"}


def test_few_blocks_are_left_out():
    left_out = [block for block in README if block.not_run]
    assert [block.line for block in left_out if block.language not in ("bash", "python")] == []
    assert len(left_out) <= 3, [f"line {block.line}: {block.not_run}" for block in left_out]


def test_no_reason_is_lost_for_want_of_a_block():
    comments = (ROOT / "README.md").read_text().count("<!-- not run")
    assert comments == sum(block.not_run is not None for block in README)


def test_every_example_is_shown():
    for example in (ROOT / "examples").iterdir():
        assert any(f"examples/{example.name}" in block.content for block in README if block.runs_here), example.name


def test_ci_builds_every_target_shown():
    shown = {target for block in README if not block.not_run for target in block.targets}
    built = set(re.findall(r"^make (\w+)", (ROOT / ".ci" / "run").read_text(), flags=re.MULTILINE))
    makefile = (ROOT / "Makefile").read_text()
    for target in tuple(built):
        prerequisites = re.search(rf"^{target}:([^#\n]*)", makefile, flags=re.MULTILINE)
        built |= set(prerequisites[1].split()) if prerequisites else set()
    assert shown <= built


@pytest.mark.parametrize("block", [b for b in README if b.language == "yaml"], ids=lambda block: f"line {block.line}")
def test_recipes_are_valid(block, tmp_path):
    path = tmp_path / "recipe.yaml"
    path.write_text(block.content)
    _, args = load_recipe(path, overrides={"training.output_dir": str(tmp_path), "training.use_cpu": True})
    assert args.objective == "sbd"


@pytest.mark.readme
@pytest.mark.parametrize("block", [b for b in README if b.runs_here], ids=lambda block: f"line {block.line}")
def test_block_runs(block):
    command = [sys.executable, "-c", block.content]
    if block.language == "bash":
        command = ["bash", "-euxo", "pipefail", "-c", block.content]
    (ROOT / "answers.jsonl").unlink(missing_ok=True)  # of an earlier run: the command writes over nothing
    path = os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]])
    done = subprocess.run(
        command, cwd=ROOT, env={**os.environ, "PATH": path}, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.strip(), done.stderr
