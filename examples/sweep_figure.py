"""Draw the file of a sweep: accuracy against mean passes, a colour for each sampler, a marker for each block size.

    python examples/sweep_figure.py runs/sweep.jsonl runs/sweep.png

Needs Matplotlib, which is in the dependency group `dev`.
"""

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from matplotlib import rc_context
from matplotlib.figure import Figure

from setblock.errors import SetBlockError
from setblock.evaluation.operating_point import point_to_json
from setblock.evaluation.result import Result, pareto_front, title_of
from setblock.evaluation.sweeps.result_file import read_results

SUFFIXES = (".png", ".svg", ".pdf")
# Okabe and Ito's colours, which the colour-blind can distinguish, too; black is plain decoding's.
COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#999933", "#882255", "#44AA99", "#AA4499")
_TICKS = [mantissa * 10**exponent for exponent in range(5) for mantissa in (1, 2, 3, 5)]
_MARKERS = ("o", "s", "^", "D", "v", "P", "X", "*")


def family(result: Result) -> str:
    """Return what a colour means: the sampler, or that it is exact mode or plain decoding."""
    return str(point_to_json(result.point)["sampler"]) if result.point.method == "sbd" else result.point.method


def draw_results(results: Sequence[Result], path: Path) -> None:
    """Draw the results of a sweep into a file, plain decoding's first.

    Args:
        path: ends in .png, .svg or .pdf.

    Raises:
        SetBlockError: nobody can say what is right, the name has another ending, or the file can't be written.
    """
    if path.suffix not in SUFFIXES:
        raise SetBlockError(f"a figure must end in one of {', '.join(SUFFIXES)}, not {path.name!r}")
    points = [
        (result, result.mean_passes, 100 * result.accuracy, [100 * each for each in result.accuracy_interval])
        for result in results
        if result.accuracy is not None and result.accuracy_interval is not None
    ]
    if not points:
        raise SetBlockError(f"a figure needs accuracy, and the task has no right answers: {title_of(results)}")
    style: dict[Any, Any] = {"svg.hashsalt": "setblock", "svg.fonttype": "none", "font.size": 9}
    with rc_context({**style, "axes.spines.top": False, "axes.spines.right": False}):
        figure = Figure(figsize=(8.5, 5), layout="constrained")
        axes = figure.subplots()
        axes.axhspan(*points[0][3], color="0.93", zorder=0, label="ntp, 95% interval")
        front = pareto_front(results)
        line = ([each.mean_passes for each in front], [100 * (each.accuracy or 0) for each in front])
        axes.plot(*line, color="0.35", linewidth=1, linestyle="--", label="Pareto front", zorder=2)
        ring: dict[str, Any] = {"markerfacecolor": "none", "markeredgecolor": "0.35", "markeredgewidth": 0.8}
        axes.plot(*line, "o", markersize=13, zorder=2, **ring)
        families = list(dict.fromkeys(map(family, results[1:])))
        sizes = sorted({each.point.block_size or 0 for each in results[1:]})
        for result, passes, accuracy, (low, high) in points:
            is_ntp = result.ntp is None
            colour = "black" if is_ntp else COLOURS[families.index(family(result)) % len(COLOURS)]
            marker = "*" if is_ntp else _MARKERS[sizes.index(result.point.block_size or 0) % len(_MARKERS)]
            at, interval = ([passes], [accuracy]), [[accuracy - low], [high - accuracy]]
            axes.errorbar(*at, yerr=interval, fmt="none", ecolor=colour, alpha=0.25, elinewidth=1, zorder=1)
            axes.plot(*at, marker, color=colour, markersize=9 if is_ntp else 5.5, zorder=3)
        for name in families:
            axes.plot([], [], "o", color=COLOURS[families.index(name) % len(COLOURS)], label=name)
        for size in sizes:
            axes.plot([], [], _MARKERS[sizes.index(size) % len(_MARKERS)], color="0.5", label=f"block size {size}")
        axes.plot([], [], "*", color="black", markersize=9, label="ntp")
        axes.set_xscale("log")
        least, most = min(each[1] for each in points), max(each[1] for each in points)
        ticks = [tick for tick in _TICKS if least / 1.2 <= tick <= most * 1.2]
        axes.xaxis.set_ticks(ticks, [str(tick) for tick in ticks])
        axes.xaxis.set_ticks([], minor=True)
        axes.set(
            xlabel="passes an answer (prefill left out, commits counted; fewer is faster)",
            ylabel="accuracy, %",
            title=title_of(results),
        )
        axes.legend(frameon=False, fontsize=8, loc="center left", bbox_to_anchor=(1, 0.5))
        temporary = path.with_name(f".{path.name}.writing{path.suffix}")
        try:
            figure.savefig(temporary, dpi=140, metadata={"Date": None} if path.suffix == ".svg" else None)
            temporary.replace(path)
        except OSError as error:
            raise SetBlockError(f"can't write {path}: {error.strerror}") from error


def main() -> None:
    """Read, draw."""
    if len(sys.argv) != 3:
        sys.exit(__doc__)
    try:
        draw_results(read_results(Path(sys.argv[1])), Path(sys.argv[2]))
    except SetBlockError as error:
        sys.exit(f"error: {error}")


if __name__ == "__main__":
    main()
