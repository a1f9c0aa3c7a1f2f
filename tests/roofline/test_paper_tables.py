"""Tables 3 and 4 of the paper come out of its figure 11, cell by cell. With true shapes less is left of them."""

import runpy
from pathlib import Path

import pytest

from roofline.predictions import predicted
from setblock.roofline.prediction import block_speedup

ROOT = Path(__file__).parents[2]
PAPER = runpy.run_path(str(ROOT / "examples" / "paper_tables.py"))


def test_every_printed_cell_comes_out():
    assert [line for line in PAPER["report"](PAPER["PRINTED"]) if "printed" in line] == []


def test_a_cell_that_differs_is_marked():
    assert list(PAPER["lines"]({4: (1.0, 2.0004)}, {4: (1.0, 2.001)})) == ["batch  4:  1.000  2.000 (printed: 2.001)"]


@pytest.mark.parametrize("what", PAPER["RIGHT"])
def test_each_error_of_the_figure_is_needed(what):
    assert PAPER["wrong_cells"](PAPER["RIGHT"][what]) > 0


@pytest.mark.parametrize(("batch", "speedup"), [(1, 3.97), (8, 3.78), (16, 3.17), (32, 1.95)])
def test_true_shapes_gain_less_as_batches_grow(batch, speedup):
    at = {"block_size": 16, "batch": batch, "kv_length": 1024}
    assert block_speedup(predicted(), 4, **at) == pytest.approx(speedup, rel=0.01)
    if batch in PAPER["TABLE_4"]:
        assert block_speedup(predicted(), 4, **at) < block_speedup(PAPER["PRINTED"], 4, **at)
