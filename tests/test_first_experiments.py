"""The three first experiments, in miniature: each is one command that prints figures and draws its picture."""

import sys
from importlib import import_module
from pathlib import Path

import pytest

from setblock.roofline.hardware import HARDWARE

ROOT = Path(__file__).parent.parent


@pytest.fixture
def run(monkeypatch, tmp_path, capsys):
    """Run an experiment in a folder of its own; return what it prints, and its picture as text."""
    first = import_module("first")
    (tmp_path / "tasks").symlink_to(ROOT / "tasks")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(first, "measured_hardware", lambda *_, **__: HARDWARE["l4"])

    def run(*arguments):
        monkeypatch.setattr(sys, "argv", ["first.py", *arguments])
        first.main()
        return capsys.readouterr().out, (tmp_path / "runs" / "first" / f"{arguments[0]}.svg").read_text()

    return run


def test_the_twin_and_the_model_of_blocks_are_compared(run):
    printed, picture = run("twin", "--steps", "4", "--limit", "1")
    assert printed.count("training runs/first/") == 3
    assert [line.partition(":")[0] for line in printed.splitlines() if line.startswith("trained by")] == [
        "trained by ntp, decoded by ntp",
        "trained by sbd, decoded by ntp",
        "trained by sbd, decoded by exact",
    ]
    assert "next-token twin" in picture
    assert "learns blocks" in picture


def test_each_gamma_is_labelled_and_exact_is_among_them(run):
    printed, picture = run("gamma", "--limit", "1")
    assert len([line for line in printed.splitlines() if "passes an answer" in line]) == 7
    for label in ("0.01", "0.1", "0.35", "exact", "ntp"):
        assert label in picture


def test_passes_are_beside_the_roofline(run):
    printed, picture = run("passes", "--repeats", "1")
    assert [line.split()[2] for line in printed.splitlines() if line.startswith("k = ")] == ["1:", "8:", "16:"]
    for label in ("k = 1", "k = 8", "k = 16", "roofline", "1.00x"):
        assert label in picture
