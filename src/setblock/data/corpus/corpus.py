"""Keep tokenised documents on disk, choose which of them are used, and make rows of those.

Knows the cache that `datasets` keeps, mixtures, and what is held out. Knows nothing of columns or templates. Arrays of
tokenised data are mapped from a file: a process reads what it is asked for, however many rows there are.
"""

import hashlib
import json
import warnings
from array import array
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import datasets
import numpy as np
from datasets import Features, List, Value
from datasets.exceptions import DatasetGenerationError

from setblock.data.corpus.census import Census, DocumentLimits
from setblock.data.packing import Document, Row, fill, row_of
from setblock.data.texts.encoding import Encoder
from setblock.data.texts.records import AnyRecords
from setblock.errors import SetBlockError, SetBlockWarning

BUCKETS = 1 << 32

FEATURES = Features(
    {
        "token_ids": List(Value("int32")),
        "carries_loss": List(Value("bool")),
        "where": Value("string"),
        "spells_special": Value("bool"),
        "bucket": Value("uint32"),
        "length": Value("int32"),
        "targets": Value("int32"),
    }
)
"""The columns of a document on disk: those of `EncodedDocument`, and two numbers, so that counting reads no tokens."""


def cached(encoder: Encoder, records: AnyRecords) -> datasets.Dataset:
    """Return the documents of one source. They are tokenised once, and kept on disk until the source or the tokenizer changes.

    Raises:
        SetBlockError: a record is not as it should be, the source is empty, or the cache can't be written.
    """
    key = hashlib.sha256(json.dumps([encoder.fingerprint, records.fingerprint]).encode()).hexdigest()[:32]

    def examples() -> Iterator[dict[str, Any]]:
        for document in encoder.documents(records):
            yield {**vars(document), "length": len(document), "targets": sum(document.carries_loss)}

    try:
        # An interrupted build leaves nothing that a later one takes for whole, and of several processes only one builds.
        return datasets.Dataset.from_generator(examples, features=FEATURES, fingerprint=key)
    except DatasetGenerationError as error:
        cause: BaseException | None = error
        while cause is not None and not isinstance(cause, SetBlockError | OSError):
            cause = cause.__cause__
        if isinstance(cause, SetBlockError):
            raise cause from None
        if isinstance(cause, OSError):
            raise SetBlockError(
                f"can't write tokenised documents to {datasets.config.HF_DATASETS_CACHE}: {cause}"
            ) from error
        raise
    except OSError as error:
        raise SetBlockError(
            f"can't write tokenised documents to {datasets.config.HF_DATASETS_CACHE}: {error}"
        ) from error


def mixed(sources: Sequence[datasets.Dataset], weights: Sequence[float], *, seed: int) -> datasets.Dataset:
    """Return an epoch of several sources. Each next document comes from a source drawn by its weight, until all sources have
    been read whole; a source that ends earlier begins again."""
    if len(sources) == 1:
        return sources[0]
    shares = [weight / sum(weights) for weight in weights]
    return datasets.interleave_datasets(list(sources), shares, seed=seed, stopping_strategy="all_exhausted")


class Corpus(Sequence[Document]):
    """Hold the documents that are kept, in order, read from disk one by one.

    Attributes:
        indices: int64 [D], the number of each in `documents`.
        lengths: int [D], how many tokens are kept of each.
        fingerprint: a hash of what is kept, in its order, whatever file it came from.
        census: what became of all.
    """

    def __init__(
        self, documents: datasets.Dataset, limits: DocumentLimits, *, held_out: float = 0.0, take_held_out: bool = False
    ) -> None:
        """Decide what is kept.

        Args:
            documents: see `FEATURES`.
            limits: what they must keep to.
            held_out: share of the documents that is held out.
            take_held_out: whether this is the corpus of those, or of the others.

        Raises:
            SetBlockError: see `DocumentLimits`; or nothing is left.
        """
        self.documents = documents.with_format("numpy")
        columns = documents.select_columns(["length", "targets", "spells_special", "bucket"]).with_format("numpy")[:]
        mine = np.flatnonzero((columns["bucket"] < held_out * BUCKETS) == take_held_out)
        lengths, targets = columns["length"][mine], columns["targets"][mine]
        is_special = columns["spells_special"][mine] & limits.drop_special
        is_long = ~is_special & (lengths > limits.longest)
        if is_long.any() and limits.too_long == "error":
            first = int(mine[is_long.argmax()])
            raise SetBlockError(
                f"{self._where(first)}: the document has {columns['length'][first]} tokens, and a row or the model's context "
                f"has room for {limits.longest}: set data.too_long to drop or truncate"
            )
        kept = np.where(is_special, 0, lengths)
        kept[is_long] = limits.longest if limits.too_long == "truncate" else 0
        for place in np.flatnonzero(is_long & (kept > 0)):
            targets[place] = self.documents[int(mine[place])]["carries_loss"][: limits.longest].sum()
        is_empty = (kept > 0) & (targets == 0)
        kept[is_empty] = 0
        is_kept = kept > 0
        left_out = {"too_long": is_long, "special": is_special, "without_targets": is_empty}
        self.census = Census(
            documents=len(mine),
            **{name: int(which.sum()) for name, which in left_out.items()},
            kept=int(is_kept.sum()),
            tokens=int(kept.sum()),
            targets=int(targets[is_kept].sum()),
            first={name: self._where(mine[which.argmax()]) for name, which in left_out.items() if which.any()},
        )
        complaints = self.census.complaints(limits)
        if not is_kept.any():
            which = "to evaluate on " if take_held_out else ""
            why = "; ".join(complaints) or f"{len(documents)} are too few to hold out a share of {held_out}"
            raise SetBlockError(f"data: no documents {which}are left: {why}")
        for complaint in complaints:
            warnings.warn(f"data: {complaint}", SetBlockWarning, stacklevel=2)
        self.indices, self.lengths = mine[is_kept], kept[is_kept].astype(np.int64)
        identity = np.stack([columns["bucket"][self.indices].astype(np.int64), self.lengths])
        self.fingerprint = hashlib.blake2b(identity.tobytes(), digest_size=8).hexdigest()

    def __len__(self) -> int:
        return len(self.indices)

    def __getitem__(self, index: Any) -> Any:
        document, length = self.documents[int(self.indices[index])], int(self.lengths[index])
        return Document(document["token_ids"][:length].tolist(), document["carries_loss"][:length].tolist())

    def _where(self, index: int) -> str:
        return str(self.documents[int(index)]["where"])


def refuse_ids(documents: datasets.Dataset, limits: DocumentLimits) -> None:
    """Raise `SetBlockError` if a document holds an id that `DocumentLimits` does not allow. Reads every id once, as arrays."""
    if any(limits.fault_of(chunk.flatten().to_numpy()) for chunk in documents.data.column("token_ids").chunks):
        for document in documents:  # one of them, to be named
            limits.refuse_ids(document["token_ids"], document["where"])


@dataclass(eq=False, repr=False, kw_only=True)
class CorpusRows(Sequence[Row]):
    """Make a row when it is asked for.

    Attributes:
        census: what became of the corpus's documents.
        fingerprint: a hash of the documents that are kept, in their order.
        starts: int64 [R + 1], where the documents of each row begin in `order`.
        order: int64 [D], the documents of all rows, by number.
        lengths: int64 [D], how many tokens are kept of each.
    """

    documents: datasets.Dataset
    census: Census
    fingerprint: str
    starts: np.ndarray
    order: np.ndarray
    lengths: np.ndarray
    row_length: int | None
    pad_token_id: int

    def __post_init__(self) -> None:
        self._tokens = self.documents.with_format("numpy", columns=["token_ids", "carries_loss"])

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
            documents=corpus.documents,
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
        return len(self) * self.row_length if self.row_length else self.census.tokens

    def __len__(self) -> int:
        return len(self.starts) - 1

    def __getitem__(self, index: Any) -> Any:
        documents = []
        for place in self._places(index):
            document, length = self._tokens[int(self.order[place])], int(self.lengths[place])
            documents.append(Document(document["token_ids"][:length], document["carries_loss"][:length]))
        row_length = self.row_length or len(documents[0])
        return row_of(documents, row_length=row_length, pad_token_id=self.pad_token_id)

    def where(self, index: int) -> list[str]:
        """Name the record of each document of a row."""
        return [str(self.documents[int(self.order[place])]["where"]) for place in self._places(index)]

    def _places(self, index: int) -> range:
        return range(int(self.starts[index]), int(self.starts[index + 1]))
