"""Count rows: how many documents, tokens and targets, how much padding, and what was left out.

Knows rows and counts. Knows nothing of how they came to be.
"""

from dataclasses import asdict, dataclass

from setblock.data.census import Census
from setblock.data.packing import RowDataset
from setblock.data.rows import CorpusRows
from setblock.data.stream import RowStream


@dataclass(frozen=True)
class Statistics:
    """Hold what a user wants to know before a long run.

    Attributes:
        rows: how many; None of a stream, which has no end.
        documents, too_long, special, without_targets, kept, tokens, targets: as in `Census`; of a stream, so far.
        padding: share of the rows' tokens that are padding, in 0..1; None of a stream. Unpacked rows have none of their own.
    """

    rows: int | None
    documents: int
    too_long: int
    special: int
    without_targets: int
    kept: int
    tokens: int
    targets: int
    padding: float | None


def statistics_of(rows: RowDataset | RowStream) -> Statistics:
    """Return the statistics of a recipe's rows, none of which is read for them."""
    if isinstance(rows, RowStream):
        return _with(rows.census, rows=None, padding=None)
    assert isinstance(rows.rows, CorpusRows)
    census = rows.rows.census
    return _with(census, rows=len(rows), padding=1 - census.tokens / rows.rows.room)


def _with(census: Census, *, rows: int | None, padding: float | None) -> Statistics:
    counts = {name: value for name, value in asdict(census).items() if name != "first"}
    return Statistics(rows=rows, padding=padding, **counts)
