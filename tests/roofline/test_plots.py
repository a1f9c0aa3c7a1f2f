"""Pictures show the numbers that were predicted."""

import pytest

from roofline.predictions import predicted
from setblock.errors import SetBlockError
from setblock.roofline import plots
from setblock.roofline.prediction import block_speedup, last_paying_batch, slowdown

HOW = {"title": "a title", "kv_length": 1024, "block_size": 16, "nfe_speedups": (2, 4, 8)}


@pytest.fixture
def figure(monkeypatch, tmp_path):
    """The figure, as it was saved."""
    from matplotlib.figure import Figure

    saved, save = [], Figure.savefig
    monkeypatch.setattr(Figure, "savefig", lambda self, *args, **how: (saved.append(self), save(self, *args, **how)))
    plots.draw(predicted(), tmp_path / "plot.png", **HOW)
    assert (tmp_path / "plot.png").read_bytes().startswith(b"\x89PNG")
    (only,) = saved
    return only


def lines(axes):
    return {line.get_label(): dict(zip(*line.get_data(), strict=True)) for line in axes.get_lines()}


def test_panels_show_predictions(figure):
    slowdowns, speedups, paying = (lines(axes) for axes in figure.axes)
    assert slowdowns["8"] == {k: slowdown(predicted(), k, batch=8, kv_length=1024) for k in (1, 2, 4, 8, 16, 32, 64)}
    assert speedups["8,192"][32] == block_speedup(predicted(), 4, block_size=16, batch=32, kv_length=8192)
    assert paying["NFE 2"][256] == last_paying_batch(predicted(), 2, block_size=16, kv_length=256)
    assert paying["fits in memory"][4096] == predicted().batch_in_memory(4096)
    assert figure.get_suptitle() == "a title"


def test_every_axis_says_what_it_is(figure):
    for axes in figure.axes:
        assert axes.get_xlabel()
        assert axes.get_ylabel()
        assert axes.get_title()


def test_the_same_drawing_is_the_same_file(tmp_path):
    for name in ("a.svg", "b.svg"):
        plots.draw(predicted(), tmp_path / name, **HOW)
    assert (tmp_path / "a.svg").read_bytes() == (tmp_path / "b.svg").read_bytes()


def test_files_that_can_not_be(tmp_path):
    with pytest.raises(SetBlockError, match=r"must end in one of \.png, \.svg, \.pdf, not 'plot.txt'"):
        plots.draw(predicted(), tmp_path / "plot.txt", **HOW)
    with pytest.raises(SetBlockError, match="can't write"):
        plots.draw(predicted(), tmp_path / "nowhere" / "plot.png", **HOW)
