"""Say which documents may be used, and report how many were not.

Knows lengths, token ids and the wishes of a recipe. Knows nothing of texts or rows.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

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

    documents: int
    too_long: int
    special: int
    without_targets: int
    kept: int
    tokens: int
    targets: int
    first: dict[str, str]  # of each kind that is not kept whole, the first one's name

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
