"""Make the rows of a corpus, from arrays that say which documents each row holds.

Knows documents on disk, and indices of them. Knows nothing of where they come from. Arrays of tokenised data are mapped from a
file: a process reads what it is asked for, however many rows there are.
"""

from array import array
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import datasets
import numpy as np

from setblock.data.corpus.census import Census
from setblock.data.corpus.corpus import Corpus
from setblock.data.documents import Document
from setblock.data.packing import Row, fill, row_of


class CorpusRows(Sequence[Row]):
    """Make a row when it is asked for.

    Attributes:
        census: what became of the corpus's documents.
        fingerprint: a hash of the documents that are kept, in their order.
        starts: int64 [R + 1], where the documents of each row begin in `order`.
        order: int64 [D], the documents of all rows, by number.
        lengths: int64 [D], how many tokens are kept of each.
    """

    def __init__(
        self,
        documents: datasets.Dataset,
        *,
        census: Census,
        fingerprint: str,
        starts: np.ndarray,
        order: np.ndarray,
        lengths: np.ndarray,
        row_length: int | None,
        pad_token_id: int,
    ) -> None:
        self._documents = documents.with_format("numpy", columns=["token_ids", "carries_loss"])
        self._where = documents
        self.census = census
        self.fingerprint = fingerprint
        self.starts = starts
        self.order = order
        self.lengths = lengths
        self._row_length = row_length
        self._pad_token_id = pad_token_id

    @classmethod
    def of(cls, corpus: Corpus, *, row_length: int | None, pad_token_id: int) -> "CorpusRows":
        """Pack a corpus; None for `row_length`: a row for each document."""
        order, starts = array("q"), array("q", [0])
        if row_length is None:
            order.extend(range(len(corpus)))
            starts.extend(range(1, len(corpus) + 1))
        else:
            for row in fill(range(len(corpus)), size=corpus.lengths.__getitem__, row_length=row_length):
                order.extend(row)
                starts.append(len(order))
        packed = np.array(order)
        return cls(
            corpus.documents,
            census=corpus.census,
            fingerprint=corpus.fingerprint,
            starts=np.array(starts),
            order=corpus.indices[packed],
            lengths=corpus.lengths[packed],
            row_length=row_length,
            pad_token_id=pad_token_id,
        )

    def save(self, stem: Path, *, numbers: np.ndarray) -> None:
        """Write the arrays into files whose names begin with `stem`; `numbers` [N] renames the documents."""
        for name, values in (("starts", self.starts), ("order", numbers[self.order]), ("lengths", self.lengths)):
            np.save(stem.with_name(f"{stem.name}-{name}.npy"), values)

    @staticmethod
    def arrays(stem: Path) -> dict[str, np.ndarray]:
        """Map the arrays that `save` wrote. Raises OSError or ValueError where a file is missing or broken."""
        return {
            name: np.load(stem.with_name(f"{stem.name}-{name}.npy"), mmap_mode="r")
            for name in ("starts", "order", "lengths")
        }

    @property
    def room(self) -> int:
        """Return how many tokens the rows have room for, all together."""
        return len(self) * self._row_length if self._row_length else self.census.tokens

    def __len__(self) -> int:
        return len(self.starts) - 1

    def __getitem__(self, index: Any) -> Any:
        documents = []
        for place in self._places(index):
            document, length = self._documents[int(self.order[place])], int(self.lengths[place])
            documents.append(Document(document["token_ids"][:length], document["carries_loss"][:length]))
        row_length = self._row_length or len(documents[0])
        return row_of(documents, row_length=row_length, pad_token_id=self._pad_token_id)

    def where(self, index: int) -> list[str]:
        """Name the record of each document of a row."""
        return [str(self._where[int(self.order[place])]["where"]) for place in self._places(index)]

    def _places(self, index: int) -> range:
        return range(int(self.starts[index]), int(self.starts[index + 1]))
