"""The picture of a sweep, and which of its points are on the front."""

import runpy
from dataclasses import replace
from pathlib import Path

import pytest

from evaluation.sweeps import point, row, sweep_of
from setblock.errors import SetBlockError
from setblock.evaluation.result import pareto_front

SWEEP = sweep_of(
    [1, 1, 1, 0],
    [
        row(point(0.1), [1, 1, 1, 0], [10, 10, 10, 10], [0, 0, 0, 0]),
        row(point(0.5, block_size=4), [1, 1, 0, 0], [8, 8, 8, 12], [0, 0, 7, 1]),
        row(point(2.0, block_size=8), [0, 0, 0, 0], [10, 12, 10, 12], [9, 9, 9, 9]),
        row(point(1.0, method="exact"), [1, 1, 1, 0], [3, 3, 3, 3], [0, 0, 0, 0]),
    ],
)


@pytest.fixture(scope="module")
def draw_results():
    """Not at import, as Matplotlib takes its time and each worker imports every file."""
    return runpy.run_path(str(Path(__file__).parent.parent / "examples" / "sweep_figure.py"))["draw_results"]


def test_the_front_is_what_nothing_beats():
    assert [each.point.method for each in pareto_front(SWEEP)] == ["exact"]


@pytest.mark.parametrize("suffix", [".png", ".svg"])
def test_figures(draw_results, tmp_path, suffix):
    path = tmp_path / f"figure{suffix}"
    draw_results(SWEEP, path)
    assert [each.name for each in tmp_path.iterdir()] == [path.name]
    content = path.read_bytes()
    assert content.startswith({".png": b"\x89PNG", ".svg": b"<?xml"}[suffix])
    if suffix == ".svg":
        for text in (b"Pareto front", b"block size 4", b"entropy-bounded", b"accuracy, %"):
            assert text in content
        draw_results(SWEEP, path)
        assert path.read_bytes() == content


def test_what_can_not_be_written(draw_results, tmp_path):
    with pytest.raises(SetBlockError, match=r"a figure must end in one of .png, .svg, .pdf, not 'figure.gif'"):
        draw_results(SWEEP, tmp_path / "figure.gif")
    with pytest.raises(SetBlockError, match="can't write"):
        draw_results(SWEEP, tmp_path / "nowhere" / "figure.svg")
    open_ended = [replace(each, outcomes=replace(each.outcomes, correct=None)) for each in SWEEP]
    assert pareto_front(open_ended) == []
    with pytest.raises(SetBlockError, match="the task has no right answers: 4 greetings, test split"):
        draw_results(open_ended, tmp_path / "figure.svg")
