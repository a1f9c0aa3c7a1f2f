"""Say how many passes follow a decision without another one, and what rows are fed in them.

Knows numbers of rows and tokens. To decide, and to look for drafts that are refused, takes time too. So where many rows were
decided for alike, one after another, some passes do the same without a decision.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from setblock.decoding.drafts.gains import DraftChoice


@dataclass
class Rests:
    """Hold what was decided lately for passes of one kind over about as many rows."""

    refused: int = 0  # rows whose drafts were not worth their cost, since the last one that was
    taken: int = (
        0  # of recent rows, how many more took all that they were offered than did not, which count for several
    )
    # Where passes have padding: how many tokens of a row they have lately, how many rows were decided for since, and whether
    # any of these was fed a block. With copies alone, what pays differs from pass to pass
    width: int = 0
    alike: int = 0
    has_blocks: bool = False
    passes: int = 1  # how many passes may follow without a decision, if any may

    def after(self, chosen: Sequence[DraftChoice], offered: Sequence[DraftChoice], *, is_padded: bool) -> int:
        """Return how many passes follow this decision without another one."""
        some = sum(bool(each.tokens) for each in offered)
        self.refused = 0 if any(each.tokens for each in chosen) else self.refused + some
        whole = sum(choice == offer for choice, offer in zip(chosen, offered, strict=True) if offer.tokens)
        self.taken = min(_TAKEN, max(0, self.taken + whole - _ODD * (some - whole)))
        width, has_blocks = 1 + max(each.tokens for each in chosen), any(each.fed for each in chosen)
        if is_padded and width <= _ALIKE * self.width and self.width <= _ALIKE * width:
            self.alike, self.has_blocks = self.alike + some, self.has_blocks or has_blocks
        else:
            self.alike, self.has_blocks, self.width = some, has_blocks, width
        rests = self.refused >= _REFUSED or self.taken >= _TAKEN or self._is_steady
        self.passes = min(2 * self.passes + 1, _LONGEST) if rests else 1
        return self.passes if rests else 0

    def repeated(self, offered: Sequence[DraftChoice]) -> list[DraftChoice]:
        """Return what rows are fed of what they are `offered` in such a pass."""
        if not self._is_steady:
            return list(offered)
        room = self.width - 1
        return [DraftChoice(min(each.drafted, room), min(each.fed, max(0, room - each.drafted))) for each in offered]

    @property
    def _is_steady(self) -> bool:
        return self.has_blocks and self.alike >= _REFUSED


# Rows that all refused what they were offered, nearly all took it, or were in passes of about one width, before passes rest. So
# many rows that take all make up for one that does not
_REFUSED, _TAKEN, _ODD = 64, 32, 9
_ALIKE = 1.25  # times as wide as another one may a pass be that is taken to be like it
_LONGEST = 7  # passes that follow without a decision; the first time about half as many
