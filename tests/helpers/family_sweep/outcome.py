"""What became of a case."""

from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from typing import Any

from setblock.errors import SetBlockError


@dataclass
class Outcome:
    """What became of a case.

    Attributes:
        name: of the case; `family` is its model type.
        status: `right`, `refused`, `not covered` or `wrong`.
        reason: why it is not right.
        plan: how its attention is called.
        limits: what it is right in, but refuses beyond.
        refused_paths: the ways of running it that are refused, with why; in all others it is right.
    """

    name: str
    family: str
    status: str
    reason: str = ""
    plan: str = ""
    limits: str = ""
    refused_paths: dict[str, str] = field(default_factory=dict)

    def to_json(self) -> dict[str, Any]:
        """Without what is empty."""
        return {key: value for key, value in asdict(self).items() if value}


class WrongError(Exception):
    """A model says something else than it should."""


def refusable(outcome: Outcome, path: str, check: Callable[[], None]) -> None:
    """A way of running a model may be refused, with a reason."""
    try:
        check()
    except SetBlockError as error:
        outcome.refused_paths[path] = str(error).splitlines()[0]
    except Exception as error:
        error.add_note(path)
        raise
