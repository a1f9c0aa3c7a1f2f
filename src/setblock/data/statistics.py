"""Count rows: how many documents, tokens and targets, how much padding, and what was left out.

Knows rows and counts. Knows nothing of how they came to be.
"""

from dataclasses import dataclass

from setblock.data.census import Census
from setblock.data.corpus_rows import CorpusRows
from setblock.data.packing import RowDataset
from setblock.data.stream import RowStream


@dataclass
class Statistics(Census):
    """Hold what a user wants to know before a long run: the census (of a stream, so far), and the rows.

    Attributes:
        rows: how many; None of a stream, which has no end.
        padding: share of the rows' tokens that are padding, in 0..1; None of a stream. Unpacked rows have no padding.
    """

    rows: int | None = None
    padding: float | None = None


def statistics_of(rows: RowDataset | RowStream) -> Statistics:
    """Return the statistics of a recipe's rows, none of which is read for them."""
    if isinstance(rows, RowStream):
        return Statistics(**vars(rows.census))
    assert isinstance(rows.rows, CorpusRows)
    census = rows.rows.census
    return Statistics(**vars(census), rows=len(rows), padding=1 - census.tokens / rows.rows.room)
