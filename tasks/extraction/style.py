"""Write dates, times, amounts and numbers as one writer does.

Knows forms of the locale. Knows nothing of what a value means.
"""

import datetime
import random
from dataclasses import dataclass, field

from .locales import Locale

MONTHS = "January February March April May June July August September October November December".split()
WEEKDAYS = "Monday Tuesday Wednesday Thursday Friday Saturday Sunday".split()
WORDS = "zero one two three four five six seven eight nine ten eleven twelve".split()
_SHORT_MONTHS = [month if len(month) < 5 else "Sept" if month == "September" else month[:3] for month in MONTHS]
_SECOND_FORM = 0.12  # share of dates that are in another form than the message's others


@dataclass
class Style:
    """Hold one writer's habits, drawn once for a message.

    Attributes:
        locale: where the writer is from.
        rng: draws the habits, and their exceptions.
        convention: the order in dates made of numbers between slashes, hyphens or dots, once one has been written whose day
            could be its month.
    """

    locale: Locale
    rng: random.Random
    convention: str | None = None
    _date: str = field(init=False)
    _time: str = field(init=False)
    _amount: str = field(init=False)
    _groups: bool = field(init=False)
    _drops_zero_cents: bool = field(init=False)

    def __post_init__(self) -> None:
        self._date = self.rng.choice(self.locale.dates)
        self._time = self.rng.choice(self.locale.times)
        self._amount = self.rng.choice(self.locale.amounts)
        self._groups = self.rng.random() < 0.7
        self._drops_zero_cents = self.rng.random() < 0.5

    def date(self, value: datetime.date) -> str:
        """Return a date: `3rd of May 2026`, `05/03/2026`, ..."""
        form = self._date
        if self.rng.random() < _SECOND_FORM:
            form = self.rng.choice([each for each in self.locale.dates if "{mon" in each])
        numbers = "{mon" not in form and not form.startswith("{y}")
        if numbers:
            self.convention = "month/day/year" if form.startswith("{m") else "day/month/year"
        d = value.day
        nth = f"{d}{'th' if 10 < d < 14 else {1: 'st', 2: 'nd', 3: 'rd'}.get(d % 10, 'th')}"
        month, mon = MONTHS[value.month - 1], _SHORT_MONTHS[value.month - 1]
        numbered: dict[str, object] = {"d": d, "dd": f"{d:02}", "m": value.month, "mm": f"{value.month:02}", "nth": nth}
        named = {"month": month, "mon": mon, "weekday": WEEKDAYS[value.weekday()]}
        return form.format(**numbered, **named, y=value.year, yy=f"{value.year % 100:02}")

    def dates(self, first: datetime.date, last: datetime.date) -> str:
        """Return a period from one date to a later one; what they share is written once where the form names the month."""
        if "{mon" in self._date and first.year == last.year and self.rng.random() < 0.6:
            first_month, last_month = MONTHS[first.month - 1], MONTHS[last.month - 1]
            if self._date.startswith(("{m", "{weekday}, {m")):
                until = str(last.day) if first.month == last.month else f"{last_month} {last.day}"
                return f"{first_month} {first.day} to {until}, {last.year}"
            since = str(first.day) if first.month == last.month else f"{first.day} {first_month}"
            return f"{since} to {last.day} {last_month} {last.year}"
        return f"{self.date(first)} to {self.date(last)}"

    def time(self, value: datetime.time) -> str:
        """Return a time of day: `14:30`, `2.30 p.m.`, `14h30`, ..."""
        half = "am" if value.hour < 12 else "pm"
        hour = value.hour % 12 or 12
        text = self._time.replace("{p.m.}", f"{half[0]}.m.")
        if value.minute == 0 and text.startswith("{h}") and self.rng.random() < 0.5:
            text = text.replace(":{M}", "").replace(".{M}", "")
        return text.format(
            h=hour, H=value.hour, HH=f"{value.hour:02}", M=f"{value.minute:02}", pm=half, PM=half.upper()
        )

    def amount(self, value: float) -> str:
        """Return an amount of money: `$1,234.50`, `1.234,50 EUR`."""
        whole = value == int(value)
        # Without cents, a dot between thousands would read as a point.
        unclear = self._groups and self.locale.group == "." and value >= 1000
        number = self.decimal(value, 0 if whole and self._drops_zero_cents and not unclear else 2)
        return self._amount.format(n=number)

    def decimal(self, value: float, places: int) -> str:
        """Return a number with so many decimal places."""
        text = f"{value:,.{places}f}"
        group = self.locale.group if self._groups else ""
        return text.translate({ord(","): group, ord("."): self.locale.point})

    def quantity(self, value: int) -> str:
        """Return a whole number that may have thousands."""
        return self.decimal(value, 0)
