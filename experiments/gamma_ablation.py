"""Report from the file of a sweep how gamma trades accuracy for passes, and which gamma is best.

    setblock sweep --grid gamma=0,0.01,0.1,0.2,0.4,0.8,1.5 --grid block_size=4,8,16 --limit 1000 --output runs/gammas.jsonl
    python experiments/gamma_ablation.py runs/gammas.jsonl --out docs/experiments/gamma.md

The optimal point is the fastest that loses no more accuracy than `--most` points on these examples. It is chosen on what it is
reported on, so sweep the validation split for it, and `setblock calibrate` for a setting that is sure to keep that.
"""

import argparse
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

from setblock.decoding.samplers import EntropyBounded
from setblock.errors import SetBlockError
from setblock.evaluation.result import Result, title_of
from setblock.evaluation.sweeps.result_file import read_results
from sweep_figure import draw_results


def main() -> None:
    """Read, print, write."""
    options = parse_options()
    try:
        sweep = read_results(options.sweep)
        rows = gamma_rows(sweep)
        report = "\n".join(report_lines(sweep, rows, options)) + "\n"
        if options.out:
            options.out.parent.mkdir(parents=True, exist_ok=True)
            draw_results([sweep[0], *rows], options.out.with_suffix(".png"))
            options.out.write_text(report, encoding="utf-8")
    except SetBlockError as error:
        sys.exit(f"error: {error}")
    print(report)


def gamma_rows(sweep: Sequence[Result]) -> list[Result]:
    """Return the entropy-bounded rows, by block size and gamma.

    Raises:
        SetBlockError: there are none.
    """
    rows = [row for row in sweep if row.point.method == "sbd" and isinstance(row.point.sampler, EntropyBounded)]
    if not rows:
        raise SetBlockError("the sweep has no entropy-bounded setting, so no gamma")
    return sorted(rows, key=lambda row: (row.point.block_size or 0, gamma_of(row)))


def gamma_of(row: Result) -> float:
    """Return the gamma of such a row."""
    assert isinstance(row.point.sampler, EntropyBounded)
    return row.point.sampler.gamma


def optimal(rows: Sequence[Result], *, most: float) -> Result | None:
    """Return the fastest row that loses at most `most` (a share) of accuracy; None where all lose more."""
    kept = [row for row in rows if sum(row.lost) <= most * row.num_examples + 1e-9]
    return max(kept, key=lambda row: row.nfe_speedup or 0.0, default=None)


def report_lines(sweep: Sequence[Result], rows: Sequence[Result], options: argparse.Namespace) -> Iterator[str]:
    """Yield the report, in Markdown."""
    best = optimal(rows, most=options.most / 100)
    made = sweep[0].made
    yield "# Gamma"
    yield ""
    yield f"{title_of(sweep)}. {made['hardware']['gpu'] or made['hardware']['cpu']}, {made['date']}. Made by"
    yield ""
    yield "```text"
    yield f"python experiments/gamma_ablation.py {' '.join(sys.argv[1:])}"
    yield "```"
    if options.out:
        yield ""
        yield f"![Accuracy against passes]({options.out.with_suffix('.png').name})"
    yield ""
    if best is None:
        yield f"No gamma loses at most {options.most:g} points of accuracy on these examples."
    else:
        yield (
            f"Optimal for at most {options.most:g} points of accuracy lost on these examples: gamma "
            f"{gamma_of(best):g} at block size {best.point.block_size}, {best.accuracy:.1%} at "
            f"{best.nfe_speedup:.2f} times fewer passes (plain decoding: {sweep[0].accuracy:.1%})."
        )
    yield ""
    yield "| block size | gamma | accuracy (95% interval) | points lost | NFE speed-up | block passes | commits | as plain |"
    yield "|---|---|---|---|---|---|---|---|"
    for row in [sweep[0], *rows]:
        low, high = row.accuracy_interval or (0.0, 1.0)
        n = row.num_examples
        where = ("", "plain decoding")
        if row.ntp is not None:
            mark = " **optimal**" if row is best else ""
            where = (str(row.point.block_size), f"{gamma_of(row):g}{mark}")
        yield (
            f"| {where[0]} | {where[1]} | {row.accuracy:.1%} ({low:.1%} to {high:.1%}) | "
            f"{100 * sum(row.lost) / n:.1f} | {row.nfe_speedup:.2f} | "
            f"{sum(row.outcomes.block) / n:.1f} | {sum(row.outcomes.commit) / n:.1f} | "
            f"{row.identical_to_ntp:.1%} |"
        )


def parse_options() -> argparse.Namespace:
    """Return the options of the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("sweep", type=Path, metavar="FILE", help="of `setblock sweep`")
    parser.add_argument("--most", type=float, default=0.5, metavar="POINTS", help="of accuracy that may be lost (0.5)")
    parser.add_argument("--out", type=Path, metavar="FILE", help="write the report there, and the picture beside it")
    return parser.parse_args()


if __name__ == "__main__":
    main()
