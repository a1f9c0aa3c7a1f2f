"""Refuse unknown names of tasks.

Knows names. Imports nothing heavy, so that the command line can refuse a name before it loads anything.
"""

import difflib
from collections.abc import Iterable

from setblock.errors import ParameterError

_MOST = 5
_ALL_TOLD = 20


def unknown_task(name: str, known: Iterable[str]) -> ParameterError:
    """Return the error for a name that is none of the `known` ones: it lists those near it, or all where none is and
    they are few."""
    known = sorted(known)
    told = f"; near it: {', '.join(near)}" if (near := near_names(name, known)) else ""
    if not near and len(known) <= _ALL_TOLD:
        told = f"; there are {', '.join(known)}"
    return ParameterError(f"there is no task {name!r}{told}")


def near_names(name: str, known: Iterable[str]) -> list[str]:
    """Return at most five names that `name` may have been meant as, the likeliest first: spelled alike, or one within
    the other.

    Case, and whether words are joined by `-` or `_`, make no difference.
    """
    spelled: dict[str, str] = {}
    for each in known:
        spelled.setdefault(_plain(each), each)
    wanted = _plain(name)
    alike = difflib.get_close_matches(wanted, spelled, n=_MOST, cutoff=0.7)
    within = sorted((each for each in spelled if wanted and (wanted in each or each in wanted)), key=len)
    return [spelled[each] for each in dict.fromkeys(alike + within)][:_MOST]


def _plain(name: str) -> str:
    return name.lower().replace("-", "_")
