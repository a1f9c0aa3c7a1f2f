"""The page's figures are those that the code gives."""

from pathlib import Path

import pytest

from roofline.predictions import predicted
from setblock.roofline.prediction import block_speedup, slowdown
from setblock.roofline.printed import PrintedPrediction

PAGE = (Path(__file__).parents[2] / "docs" / "roofline.md").read_text()


@pytest.mark.parametrize("batch", [1, 4, 8, 16])
def test_slowdowns(batch):
    cells = (
        ", ".join(
            f"{slowdown(times, k, batch=batch, kv_length=1024):.3f}" for times in (PrintedPrediction(), predicted())
        )
        for k in (16, 32, 64)
    )
    assert f"| {batch} | {' | '.join(cells)} |" in PAGE


@pytest.mark.parametrize("batch", [1, 4, 8, 16, 32])
def test_speedups(batch):
    def speedup(times, nfe):
        return f"{block_speedup(times, nfe, block_size=16, batch=batch, kv_length=1024):.3f}"

    cells = (
        f"{speedup(PrintedPrediction(), nfe) if batch <= 8 else 'not printed'}, {speedup(predicted(), nfe)}"
        for nfe in (2, 4, 8)
    )
    assert f"| {batch} | {' | '.join(cells)} |" in PAGE


def test_figures_in_the_text():
    at = {"block_size": 16, "batch": 16, "kv_length": 1024}
    assert f"{block_speedup(predicted(hardware='h100'), 4, **at):.3f} instead of" in PAGE
    mixture = predicted("qwen3-30b-a3b", "h200", "bfloat16")
    assert f"takes {slowdown(mixture, 16, batch=1, kv_length=1024):.1f} times as long" in PAGE
    speedups = [block_speedup(mixture, 4, **at | {"batch": batch}) for batch in (3, 4)]
    assert speedups[0] < 1 < speedups[1]  # "a loss below batch 4"
