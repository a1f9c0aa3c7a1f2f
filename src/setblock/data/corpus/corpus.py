"""Tokenised documents on disk, the choice of those that are used, and the rows made of them.

Contains the cache (by `datasets`), mixtures, and held-out documents. Arrays of tokenised data are mapped from a file: a
process reads only the rows that it uses, however many there are.
"""

import hashlib
import json
from array import array
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import datasets
import numpy as np
from datasets import Features, List, Value
from datasets.exceptions import DatasetGenerationError

from setblock.data.packing import Document, Row, fill, row_of
from setblock.data.section import DataSection
from setblock.data.texts.encoding import Encoder
from setblock.data.texts.records import records_of
from setblock.data.texts.shapes import shaped
from setblock.errors import SetBlockError, warn


@dataclass(frozen=True)
class DocumentLimits:
    """The limits of a document."""

    context_length: int  # tokens that the model's context has room for
    vocabulary: int | None = None  # how many ids the model has embeddings for; None: not checked
    mask_token_id: int | None = None  # the id that no document may hold; None: there is no mask token yet

    def longest(self, section: DataSection) -> int:
        """Return the most tokens that a document of a section may have."""
        return min(self.context_length, section.row_length or self.context_length)

    def fault_of(self, ids: np.ndarray | Sequence[int]) -> str:
        """Return a description of what is wrong with token ids [N], if one has no embedding or is the mask token's;
        else an empty text."""
        largest = int(np.max(ids, initial=0))
        if self.vocabulary is not None and largest >= self.vocabulary:
            known = f"0..{self.vocabulary - 1}"
            return f"token id {largest} is out of the model's vocabulary, {known}: the tokenizer is not the model's"
        if self.mask_token_id is not None and self.mask_token_id in ids:
            spelled = f"the document spells the mask token (id {self.mask_token_id}), which no text may contain"
            return f"{spelled}; set data.special_tokens to drop"
        return ""

    def refuse_ids(self, ids: np.ndarray | Sequence[int], where: str) -> None:
        """Raise `SetBlockError` for a fault of token ids [N]; `where` names their document."""
        if fault := self.fault_of(ids):
            raise SetBlockError(f"{where}: {fault}")


@dataclass
class Census:
    """Counts of documents, by what became of them."""

    documents: int
    too_long: int
    special: int
    without_targets: int
    kept: int
    tokens: int
    targets: int
    first: dict[str, str]  # the first document's name, for each kind that is not kept whole

    def complaints(self, section: DataSection, limits: DocumentLimits) -> list[str]:
        """Return what to report to a user, one line each."""
        became, longest = "truncated" if section.too_long == "truncate" else "dropped", limits.longest(section)
        reasons: Mapping[str, str] = {
            "too_long": f"are longer than {longest} tokens and were {became} (data.too_long: {section.too_long})",
            "special": "spell a special token and were dropped (data.special_tokens: drop)",
            "without_targets": "have nothing that carries loss (of chats: no message of role assistant) and were dropped",
        }
        return [
            f"{getattr(self, what)} of {self.documents} documents {reasons[what]}; the first: {where}"
            for what, where in self.first.items()
        ]


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
"""The columns of a document on disk. `where` names its record to a user, `spells_special` says whether its own text
spells a special token, and the last two are numbers of tokens, so that counting does not read the tokens. `bucket` is a
hash of the tokens. It alone decides whether a document is held out for evaluation, so that equal documents are always
on the same side."""


def cached(encoder: Encoder, limits: DocumentLimits) -> datasets.Dataset:
    """Return the documents of one source, tokenised once and kept on disk until the source or the tokenizer changes. Raise
    `SetBlockError` for a bad record, an id that the limits forbid, no document at all, or a cache that can't be written."""
    records = records_of(encoder.section)
    key = hashlib.sha256(json.dumps([encoder.fingerprint, records.fingerprint]).encode()).hexdigest()[:32]
    try:
        # A later build must not take an interrupted one for complete, and only one of several processes builds.
        documents = datasets.Dataset.from_generator(
            lambda: encoder.documents(*shaped(encoder.section, records)), features=FEATURES, fingerprint=key
        )
    except (DatasetGenerationError, OSError) as error:
        cause = error.__cause__ if isinstance(error, DatasetGenerationError) else error
        if isinstance(cause, SetBlockError):
            raise cause from None
        if isinstance(cause, OSError):
            where = datasets.config.HF_DATASETS_CACHE
            raise SetBlockError(f"can't write tokenised documents to {where}: {cause}") from error
        raise
    # Check every id once, as arrays
    if any(limits.fault_of(chunk.flatten().to_numpy()) for chunk in documents.data.column("token_ids").chunks):
        for document in documents:  # one of them, to be named
            limits.refuse_ids(document["token_ids"], document["where"])
    return documents


def mixed(sizes: Sequence[int], weights: Sequence[float], *, seed: int) -> np.ndarray:
    """Return an epoch of several sources of these sizes: int64 [D], the documents' indices in the joined sources. Each
    document comes from a source drawn by its weight, until all sources have been read once; a source that ends earlier
    begins again."""
    ends = np.cumsum([0, *sizes])
    if len(sizes) == 1:
        return np.arange(ends[-1])
    sources = [datasets.Dataset.from_dict({"number": range(a, b)}) for a, b in pairwise(ends)]
    shares = [weight / sum(weights) for weight in weights]
    drawn = datasets.interleave_datasets(sources, shares, seed=seed, stopping_strategy="all_exhausted")
    return np.asarray(drawn.with_format("numpy")["number"][:])


@dataclass(eq=False, repr=False, kw_only=True)
class CorpusRows(Sequence[Row]):
    """A sequence of rows, each made on access."""

    documents: datasets.Dataset
    census: Census  # what became of the documents
    fingerprint: str  # a hash of the documents that are kept, in their order, whatever file they came from
    starts: np.ndarray  # int64 [R + 1], where the documents of each row begin in `order`
    order: np.ndarray  # int64 [D], the documents of all rows, by number
    lengths: np.ndarray  # int64 [D], how many tokens are kept of each
    row_length: int | None
    pad_token_id: int

    def __post_init__(self) -> None:
        self._tokens = self.documents.with_format("numpy", columns=["token_ids", "carries_loss"])

    @property
    def padding(self) -> float:
        """Return the share of the rows' tokens that are padding, in 0..1. Unpacked rows have no padding."""
        return 1 - self.census.tokens / (len(self) * self.row_length) if self.row_length else 0.0

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


def packed_rows(
    section: DataSection,
    limits: DocumentLimits,
    sources: Mapping[str, Sequence[datasets.Dataset]],
    *,
    pad_token_id: int,
) -> dict[str, CorpusRows]:
    """Choose documents (see `FEATURES`), and pack them as the section says. `sources` are the documents of each of its
    sources, `train`, and of its texts to evaluate on, `evaluation`. Return the rows to train on and those to evaluate
    on, if any, under the same names. Raise `SetBlockError` as `DocumentLimits` does, or if no document is left."""
    made = {}
    for part, own in section.parts.items():
        documents = datasets.concatenate_datasets(list(sources[part]))
        sizes, weights = [len(each) for each in sources[part]], [source.weight for source in own.sources]
        epoch = mixed(sizes, weights, seed=own.seed)
        for name in (part, "evaluation") if own.evaluation_fraction else (part,):
            chosen, lengths, fingerprint, census = _chosen(documents, epoch, own, limits, take_held_out=name != part)
            order, starts = array("q"), array("q", [0])
            rows = fill(lengths, row_length=own.row_length) if own.row_length else ([i] for i in range(len(chosen)))
            for row in rows:
                order.extend(row)
                starts.append(len(order))
            packed = np.array(order)
            made[name] = CorpusRows(
                documents=documents,
                census=census,
                fingerprint=fingerprint,
                starts=np.array(starts),
                order=chosen[packed],
                lengths=lengths[packed],
                row_length=own.row_length,
                pad_token_id=pad_token_id,
            )
    return made


def _chosen(
    documents: datasets.Dataset, epoch: np.ndarray, section: DataSection, limits: DocumentLimits, *, take_held_out: bool
) -> tuple[np.ndarray, np.ndarray, str, Census]:
    """Return the numbers of an epoch's documents that are kept, int64 [D], how many tokens are kept of each, a hash of
    what is kept, and the counts of all documents. Either only held-out documents are chosen, or only the others."""
    held_out, longest = section.evaluation_fraction or 0.0, limits.longest(section)
    columns = documents.select_columns(["length", "targets", "spells_special", "bucket"]).with_format("numpy")[:]
    mine = epoch[(columns["bucket"][epoch] < held_out * 2**32) == take_held_out]  # a bucket is a uint32
    lengths, targets = columns["length"][mine], columns["targets"][mine]
    is_special = columns["spells_special"][mine] & (section.special_tokens == "drop")
    is_long = ~is_special & (lengths > longest)
    if is_long.any() and section.too_long == "error":
        first = int(mine[is_long.argmax()])
        raise SetBlockError(
            f"{documents[first]['where']}: the document has {columns['length'][first]} tokens, and a row or the model's "
            f"context has room for {longest}: set data.too_long to drop or truncate"
        )
    kept = np.where(is_special, 0, lengths)
    kept[is_long] = longest if section.too_long == "truncate" else 0
    for place in np.flatnonzero(is_long & (kept > 0)):
        targets[place] = sum(documents[int(mine[place])]["carries_loss"][:longest])
    is_empty = (kept > 0) & (targets == 0)
    kept[is_empty] = 0
    is_kept = kept > 0
    left_out = {"too_long": is_long, "special": is_special, "without_targets": is_empty}
    census = Census(
        documents=len(mine),
        **{name: int(which.sum()) for name, which in left_out.items()},
        kept=int(is_kept.sum()),
        tokens=int(kept.sum()),
        targets=int(targets[is_kept].sum()),
        first={name: documents[int(mine[which.argmax()])]["where"] for name, which in left_out.items() if which.any()},
    )
    complaints = census.complaints(section, limits)
    if not is_kept.any():
        which = "to evaluate on " if take_held_out else ""
        why = "; ".join(complaints) or f"{len(epoch)} are too few to hold out a share of {held_out}"
        raise SetBlockError(f"data: no documents {which}are left: {why}")
    for complaint in complaints:
        warn(f"data: {complaint}")
    chosen, lengths = mine[is_kept], kept[is_kept].astype(np.int64)
    identity = np.stack([columns["bucket"][chosen].astype(np.int64), lengths])
    return chosen, lengths, hashlib.blake2b(identity.tobytes(), digest_size=8).hexdigest(), census
