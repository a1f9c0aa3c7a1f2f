"""Every command and program of the README runs. Those that can't here say why, in `<!-- not run: REASON -->` before them."""

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
