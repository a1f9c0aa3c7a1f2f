"""Stop strings: where the first one begins in a text, and how much of a text may become one.

`AnswerText` cuts an answer there.
"""

from collections.abc import Sequence


def first_stop(text: str, stop: Sequence[str], *, already: int) -> int | None:
    """Return where the first of the stop strings begins in `text`, or None. The first `already` characters contain none."""
    found = [text.find(each, max(0, already - len(each) + 1)) for each in stop]
    return min((place for place in found if place >= 0), default=None)


def length_begun(text: str, stop: Sequence[str]) -> int:
    """Return the length of the longest end of `text` that is the beginning of a stop string: it is not given out yet."""
    return max((n for each in stop for n in range(1, len(each)) if text.endswith(each[:n])), default=0)
