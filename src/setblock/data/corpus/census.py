"""Count which documents are kept, how much of each, and how many were not.

Knows lengths, token ids and the wishes of a recipe. Knows nothing of texts or rows. Counts and
reports what is left out.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from setblock.data.section import TooLong
from setblock.errors import SetBlockError


@dataclass(frozen=True)
class DocumentLimits:
    """Limit what a document may be.

    Attributes:
        longest: tokens that a row or the model's context has room for.
        too_long: what becomes of a longer one.
        drop_special: whether to leave out a document that spells a special token.
        vocabulary: how many ids the model has embeddings for; None: not checked.
        mask_token_id: the id that no document may hold; None: there is no mask token yet.
    """

    longest: int
    too_long: TooLong
    drop_special: bool = False
    vocabulary: int | None = None
    mask_token_id: int | None = None

    def __post_init__(self) -> None:
        if self.mask_token_id is not None and self.vocabulary is not None and self.mask_token_id >= self.vocabulary:
            raise SetBlockError(
                f"the mask token's id {self.mask_token_id} is out of the model's vocabulary, "
                f"0..{self.vocabulary - 1}: the tokenizer is not the model's"
            )

    def length_of(self, length: int, where: str) -> int:
        """Return how many tokens to keep of a document that is too long; 0 if none.

        Raises:
            SetBlockError: that is an error.
        """
        if self.too_long == "error":
            raise SetBlockError(
                f"{where}: the document has {length} tokens, and a row or the model's context has room for {self.longest}: "
                "set data.too_long to drop or truncate"
            )
        return self.longest if self.too_long == "truncate" else 0

    def fault_of(self, ids: np.ndarray | Sequence[int]) -> str:
        """Return what is wrong with token ids [N], if one has no embedding or is the mask token's; else an empty text."""
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
    """Count documents, and what became of them."""

    documents: int = 0
    too_long: int = 0
    special: int = 0
    without_targets: int = 0
    kept: int = 0
    tokens: int = 0
    targets: int = 0
    first: dict[str, str] = field(default_factory=dict)  # of each kind that is not kept whole, the first one's name

    @property
    def whole(self) -> int:
        """Return how many are kept as they are."""
        return self.documents - self.too_long - self.special - self.without_targets

    def judge(
        self,
        limits: DocumentLimits,
        *,
        length: int,
        targets: Callable[[int], int],
        spells_special: bool,
        where: Callable[[], str],
    ) -> int:
        """Return how many tokens are kept of a document, 0 if it is left out; count it either way.

        Args:
            limits: what it must keep to.
            length: how many tokens it has.
            targets: how many of its first tokens carry loss, by how many of them are kept.
            spells_special: see `EncodedDocument`.
            where: names it to a user.

        Raises:
            SetBlockError: it is too long, and that is an error.
        """
        self.documents += 1
        if spells_special and limits.drop_special:
            self._count("special", where)
            return 0
        kept = length
        if length > limits.longest:
            kept = limits.length_of(length, where())
            self._count("too_long", where)
        learned = targets(kept) if kept else 0
        if kept and not learned:
            self._count("without_targets", where)
        if not learned:
            return 0
        self.kept += 1
        self.tokens += kept
        self.targets += learned
        return kept

    def _count(self, what: str, where: Callable[[], str]) -> None:
        setattr(self, what, getattr(self, what) + 1)
        if what not in self.first:
            self.first[what] = where()

    def complaints(self, limits: DocumentLimits) -> list[str]:
        """Return what a user should know of, a line each."""
        became = "truncated" if limits.too_long == "truncate" else "dropped"
        reasons: Mapping[str, str] = {
            "too_long": f"are longer than {limits.longest} tokens and were {became} (data.too_long: {limits.too_long})",
            "special": "spell a special token and were dropped (data.special_tokens: drop)",
            "without_targets": "have nothing that carries loss and were dropped",
        }
        return [
            f"{getattr(self, what)} of {self.documents} documents {reason}; the first: {self.first[what]}"
            for what, reason in reasons.items()
            if getattr(self, what)
        ]
