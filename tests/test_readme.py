"""Every command and program of the README runs. Those that can't here say why, in `<!-- not run: REASON -->` before them."""

import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest
from typer.testing import CliRunner

from fenced import blocks
from setblock.cli.app import app
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
    """In a block of the README or of another page, so that readers find it."""
    pages = [README, *map(blocks, (ROOT / "docs").glob("*.md"))]
    shown = "\n".join(block.content for page in pages for block in page)
    names = [each.name for each in (ROOT / "examples").iterdir() if each.name != "__pycache__"]
    assert [name for name in names if f"examples/{name}" not in shown] == []


def test_the_demo_is_what_the_readme_shows():
    makefile = (ROOT / "Makefile").read_text()
    recipe = re.search(r"^demo:.*\n((?:\t.*\n)+)", makefile, flags=re.MULTILINE)[1]
    prompt = re.search(r"^PROMPT \?= (.*)$", makefile, flags=re.MULTILINE)[1]
    commands = re.findall(
        r"\$\(BIN\)/(setblock .*?)(?: &&|;|$)", recipe.replace("$$PROMPT", prompt), flags=re.MULTILINE
    )
    shown = {command for block in README if block.runs_here for command in block.commands}
    assert len(commands) == 5
    assert set(commands) - shown == {"setblock fetch smollm2", "setblock compare"}


@pytest.mark.parametrize("block", [b for b in README if b.language == "yaml"], ids=lambda block: f"line {block.line}")
def test_recipes_are_valid(block, tmp_path):
    path = tmp_path / "recipe.yaml"
    path.write_text(block.content)
    _, args = load_recipe(path, overrides={"training.output_dir": str(tmp_path), "training.use_cpu": True})
    assert args.objective == "sbd"


@pytest.mark.readme
@pytest.mark.parametrize("block", [b for b in README if b.runs_here], ids=lambda block: f"line {block.line}")
def test_block_runs(block, monkeypatch):
    """Commands of `setblock` run in this process, which has imported PyTorch; programs in one of their own."""
    monkeypatch.chdir(ROOT)
    (ROOT / "answers.jsonl").unlink(missing_ok=True)  # of an earlier run: the command writes over nothing
    printed = ""
    for command in [block.content] if block.language == "python" else block.commands:
        program, *words = ["python", "-c", command] if block.language == "python" else shlex.split(command)
        if program == "setblock":
            done = CliRunner().invoke(app, words, input="Hello\n")  # what `chat` reads
            assert done.exit_code == 0, f"{command}\n{done.output}\n{done.exception!r}"
        else:
            assert program == "python", command
            done = subprocess.run([sys.executable, *words], capture_output=True, text=True, check=False)
            assert done.returncode == 0, done.stdout + done.stderr
        printed += done.stdout
        assert done.stdout.strip() or done.stderr.strip(), command
    assert printed.strip()
