"""Every command and program of the README and the tour runs as it is written there, but for a server's port.

Those that can't here say why, in `<!-- not run: REASON -->` before them.
"""

import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest
from typer.testing import CliRunner

from fenced import blocks, start_and_stop
from setblock.cli.app import app
from setblock.training.recipe import load_recipe

ROOT = Path(__file__).parent.parent
README, TOUR = blocks(ROOT / "README.md"), blocks(ROOT / "docs" / "tour.md")
BLOCKS = [
    pytest.param(block, id=f"{page} line {block.line}")
    for page, found in (("README", README), ("tour", TOUR))
    for block in found
]


@pytest.mark.parametrize("block", [each for each in BLOCKS if each.values[0].language == "yaml"])
def test_recipes_are_valid(block, tmp_path):
    path = tmp_path / "recipe.yaml"
    path.write_text(block.content)
    _, args = load_recipe(path, overrides={"training.output_dir": str(tmp_path), "training.use_cpu": True})
    assert args.objective == "sbd"


@pytest.mark.readme
@pytest.mark.parametrize("block", [each for each in BLOCKS if each.values[0].runs_here])
def test_block_runs(block, monkeypatch):
    """Commands of `setblock` run in this process, which has imported PyTorch; programs in one of their own."""
    monkeypatch.chdir(ROOT)
    monkeypatch.setattr("setblock.server.app.serve", start_and_stop)
    (ROOT / "answers.jsonl").unlink(missing_ok=True)  # of an earlier run: the command writes over nothing
    printed = ""
    for command in [block.content] if block.language == "python" else block.commands:
        program, *words = ["python", "-c", command] if block.language == "python" else shlex.split(command)
        if program == "setblock":
            words += ["--port", "0"] * (words[0] == "serve")
            done = CliRunner().invoke(app, words, input="Hello\n")  # what `chat` reads
            assert done.exit_code == 0, f"{command}\n{done.output}\n{done.exception!r}"
        else:
            assert program == "python", command
            done = subprocess.run([sys.executable, *words], capture_output=True, text=True, check=False)
            assert done.returncode == 0, done.stdout + done.stderr
        printed += done.stdout
        assert done.stdout.strip() or done.stderr.strip(), command
    if block.language == "python":
        shown = next(each.content for each in README[README.index(block) :] if each.language == "text")
        # how many passes there are depends on what they take here
        last, expected = (re.sub(r"\d+", "N", text).splitlines()[-1] for text in (printed, shown))
        assert last == expected
