"""Define a piece of a stage: what is run and saved separately, and what several stages need.

Knows devices and models. Knows nothing of what is measured.
"""

from collections.abc import Callable, Iterator
from typing import Any

from setblock.model.sbd_model import SBDModel

Piece = Callable[[], dict[str, Any]]
Pieces = Iterator[tuple[str, Piece]]


def once(make: Callable[[], SBDModel]) -> Callable[[], SBDModel]:
    """Return a model that is made when it is first asked for, and not at all where all of its pieces are there."""
    made: list[SBDModel] = []

    def get() -> SBDModel:
        if not made:
            made.append(make())
        return made[0]

    return get
