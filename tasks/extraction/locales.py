"""Read how each locale writes dates, times, amounts and telephone numbers, from `locales.yaml`.

Knows the file's form. Knows nothing of values, nor of who draws among the forms.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import yaml

TEST_LOCALE = "pt_BR"
"""It is in no message of another split."""


@dataclass(frozen=True)
class Locale:
    """Describe how people of one place write in an English message.

    Attributes:
        currency: its ISO code.
        amounts: forms of an amount, `{n}` being the number.
        point: what stands before the cents.
        group: what stands between thousands.
        dates: forms of a date.
        times: forms of a time of day.
        phones: telephone numbers; each `#` is a digit.
        domain: how web addresses end.
    """

    currency: str
    amounts: tuple[str, ...]
    point: str
    group: str
    dates: tuple[str, ...]
    times: tuple[str, ...]
    phones: tuple[str, ...]
    domain: str


@cache
def locales() -> dict[str, Locale]:
    """Return all locales, by Faker's names."""
    content: dict[str, Any] = yaml.safe_load(Path(__file__).with_name("locales.yaml").read_text(encoding="utf-8"))
    return {name: _locale(values, content["forms"]) for name, values in content["locales"].items()}


def _locale(values: Mapping[str, Any], forms: Mapping[str, list[str]]) -> Locale:
    """Return a locale; what it lists are forms, or names of lists of them."""
    lists = {key: each for key, each in values.items() if isinstance(each, list)}
    listed = {key: tuple(form for each in named for form in forms.get(each, [each])) for key, named in lists.items()}
    return Locale(**{**values, **listed})
