"""What a user is told: the one exception that means "you can mend this", and the base of the library's warnings."""

import difflib
from collections.abc import Iterable


class SetBlockError(ValueError):
    """A user's mistake. Its message is one line that names the value and what would be valid; the command line prints it
    without a traceback."""


class ParameterError(SetBlockError):
    """A parameter out of its range. The command line exits with 2, as for any wrong usage."""


class SetBlockWarning(UserWarning):
    """Something allowed that a user should know of. One line, too."""


def did_you_mean(word: str, known: Iterable[str]) -> str:
    """The known word that is nearest to an unknown one, as a part of a message; empty if none is near."""
    close = difflib.get_close_matches(word, list(known), n=1)
    return f", did you mean {close[0]!r}?" if close else ""
