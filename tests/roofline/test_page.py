"""The page's figures are those that the code gives."""

from pathlib import Path

import pytest

from roofline.predictions import predicted
from setblock.roofline.prediction import block_speedup, slowdown

PAGE = (Path(__file__).parents[2] / "docs" / "roofline.md").read_text()


def corrected(batch: int, heading: str) -> list[str]:
    """The second figures of a table's row; the first are what the paper prints."""
    table = PAGE.split(heading)[1]
    row = next(line for line in table.splitlines() if line.startswith(f"| {batch} |"))
    return [cell.split(", ")[1] for cell in row.strip("| ").split(" | ")[1:]]


@pytest.mark.parametrize("batch", [1, 4, 8, 16])
def test_slowdowns(batch):
    expected = [f"{slowdown(predicted(), k, batch=batch, kv_length=1024):.3f}" for k in (16, 32, 64)]
    assert corrected(batch, "Slowdown of a block pass, 1,024") == expected


@pytest.mark.parametrize("batch", [1, 4, 8, 16, 32])
def test_speedups(batch):
    at = {"block_size": 16, "batch": batch, "kv_length": 1024}
    expected = [f"{block_speedup(predicted(), nfe, **at):.3f}" for nfe in (2, 4, 8)]
    assert corrected(batch, "Speed-up in seconds at k = 16") == expected


def test_figures_in_the_text():
    at = {"block_size": 16, "batch": 16, "kv_length": 1024}
    assert f"{block_speedup(predicted(hardware='h100'), 4, **at):.3f} instead of" in PAGE
    mixture = predicted("qwen3-30b-a3b", "h200", "bfloat16")
    assert f"takes {slowdown(mixture, 16, batch=1, kv_length=1024):.1f} times as long" in PAGE
    speedups = [block_speedup(mixture, 4, **at | {"batch": batch}) for batch in (3, 4)]
    assert speedups[0] < 1 < speedups[1]  # "a loss below batch 4"
