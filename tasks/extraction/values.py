"""Draw values by type: people, companies, addresses, dates, amounts and the rest that a message may say.

Knows Faker, locales and splits: a person's or company's name is of one split, by a hash of it. Knows nothing of messages.
"""

import random
import re
import unicodedata
from collections.abc import Callable
from datetime import date, datetime, time, timedelta
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

from setblock.data.tasks.task import Split, split_of
from setblock.errors import SetBlockError

from .locales import locales

if TYPE_CHECKING:
    from faker import Faker

Value = Any
"""A str, int, float, bool, date, time, or a list of texts or of goods."""

_FIRST_DAY, _DAYS = date(2023, 1, 1), 6 * 365
_COINED_SHARE = 0.25  # of the people in messages to train on


@lru_cache
def _faker(locale: str) -> "Faker":
    try:
        from faker import Faker
    except ImportError as error:
        raise SetBlockError(
            "the task extraction draws its names from Faker, which is missing: pip install 'faker>=40'"
        ) from error
    faker = Faker(locale)
    if locale == "it_IT":  # Faker reads these cities from a set, whose order is another one in each process
        (places,) = (provider for provider in faker.get_providers() if hasattr(provider, "cities"))
        places.cities = sorted(places.cities)
    return faker


@lru_cache
def _goods() -> tuple[str, ...]:
    return tuple(Path(__file__).with_name("goods.txt").read_text(encoding="utf-8").splitlines())


class Values:
    """Draw the values of one message.

    Args:
        locale: one of `locales()`.
        split: names are of this split.

    Attributes:
        names: of the people and companies drawn so far.
    """

    def __init__(self, locale: str, split: Split, rng: random.Random) -> None:
        self.locale = locales()[locale]
        self.split = split
        self.rng = rng
        self.today = _FIRST_DAY + timedelta(days=rng.randrange(_DAYS))
        self.faker = _faker(locale)
        self.faker.seed_instance(rng.getrandbits(64))
        self.names: list[str] = []
        self._taken: set[str] = set()

    def draw(self, type_: str, options: str, other: Callable[[str], Value]) -> Value:
        """Return a value.

        Args:
            type_: the method that draws it.
            options: its options in the kind's file, such as `3..25` of a date.
            other: gives the value of another field of the same message.
        """
        value: Value = getattr(self, f"_{type_}")(options, other)
        return value

    def person(self) -> str:
        """Return a first and a last name, neither of which the message has had."""
        while True:
            first, last = self.faker.first_name(), self.faker.last_name()
            # A model that knows the usual names writes one of them where a message has another: it learns to copy from names
            # that nobody has.
            if self.split == "train" and self.rng.random() < _COINED_SHARE:
                first, last = _coined(first, self.faker.first_name()), _coined(last, self.faker.last_name())
            if not {first, last} & self._taken and self._is_ours(f"{first} {last}"):
                self._taken |= {first, last}
                self.names.append(f"{first} {last}")
                return self.names[-1]

    def _is_ours(self, name: str) -> bool:
        return split_of(name) == self.split

    def _person(self, options: str, other: Callable[[str], Value]) -> str:
        return self.person()

    def _people(self, options: str, other: Callable[[str], Value]) -> list[str]:
        return [self.person() for _ in range(self._between(options))]

    def _company(self, options: str, other: Callable[[str], Value]) -> str:
        while not self._is_ours(name := _one_line(self.faker.company())) or name in self._taken:
            pass
        self._taken.add(name)
        self.names.append(name)
        return name

    def _city(self, options: str, other: Callable[[str], Value]) -> str:
        return _one_line(self.faker.city())

    def _address(self, options: str, other: Callable[[str], Value]) -> str:
        street, place = _one_line(self.faker.street_address()), _one_line(self.faker.city())
        code = _one_line(self.faker.postcode())
        first = self.locale.domain in ("com", "co.uk", "ie", "com.br")
        return f"{street}, {place} {code}" if first else f"{street}, {code} {place}"

    def _phone(self, options: str, other: Callable[[str], Value]) -> str:
        return self._filled(self.rng.choice(self.locale.phones))

    def _email(self, options: str, other: Callable[[str], Value]) -> str:
        first, _, last = other(options).rpartition(" ")
        local = self.rng.choice((f"{slug(first)}.{slug(last)}", f"{slug(first)[:1]}.{slug(last)}", slug(last)))
        domain = self.rng.choice(
            (f"{slug(self.faker.last_name())}.{self.locale.domain}", "mail.example", "post.example")
        )
        return f"{local}@{domain}"

    def _site(self, options: str, other: Callable[[str], Value]) -> str:
        return f"{self.rng.choice(('www.', 'https://', ''))}{slug(other(options))[:18]}.{self.locale.domain}"

    def _iban(self, options: str, other: Callable[[str], Value]) -> str:
        iban: str = self.faker.iban()
        return " ".join(re.findall(".{1,4}", iban)) if self.rng.random() < 0.5 else iban

    def _currency(self, options: str, other: Callable[[str], Value]) -> str:
        return self.locale.currency

    def _code(self, options: str, other: Callable[[str], Value]) -> str:
        return self._filled(self.rng.choice([each.strip() for each in options.split(";")]))

    def _filled(self, pattern: str) -> str:
        drawn = {"#": "0123456789", "@": "ABCDEFGHJKLMNPRSTUVWXYZ"}
        text = "".join(self.rng.choice(drawn[each]) if each in drawn else each for each in pattern)
        return text if pattern[0] != "#" or text[0] != "0" else f"4{text[1:]}"

    def _choice(self, options: str, other: Callable[[str], Value]) -> str:
        left = [each for each in map(str.strip, options.split(";")) if each not in self._taken]
        chosen = self.rng.choice(left)
        self._taken.add(chosen)
        return chosen

    def _several(self, options: str, other: Callable[[str], Value]) -> list[str]:
        return self.rng.sample([each.strip() for each in options.split(";")], self.rng.randint(2, 4))

    def _goods(self, options: str, other: Callable[[str], Value]) -> list[dict[str, Value]]:
        goods = self.rng.sample(_goods(), self.rng.choice((1, 2, 2, 3)))
        counts = (1, 2, 3, 4, 5, 6, 8, 10, 12, 15, 20, 24, 25, 30, 40, 50, 100)
        return [{"name": each, "quantity": self.rng.choice(counts), "price": self.money(2, 160)} for each in goods]

    def _sum(self, options: str, other: Callable[[str], Value]) -> float:
        return round(float(sum(each["quantity"] * each["price"] for each in other(options))), 2)

    def _amount(self, options: str, other: Callable[[str], Value]) -> float:
        range_, _, step = options.partition(" step ")
        low, high = map(int, range_.split(".."))
        return float(self.rng.randrange(low, high + 1, int(step))) if step else self.money(low, high)

    def money(self, low: float, high: float) -> float:
        """Return an amount: small ones are likelier, and so are those that end like prices."""
        value = low * (high / low) ** self.rng.random()
        cents = self.rng.choice((0, 0, 0, 50, 90, 99, 95, *[self.rng.randrange(100)] * 5))
        return round(int(value) + cents / 100, 2)

    def _share(self, options: str, other: Callable[[str], Value]) -> float:
        return round(float(other(options)) * self.rng.choice((0.05, 0.07, 0.19, 0.2, 0.21, 0.22, 0.25)), 2)

    def _plus(self, options: str, other: Callable[[str], Value]) -> float:
        return round(float(sum(other(each) for each in options.split())), 2)

    def _decimal(self, options: str, other: Callable[[str], Value]) -> float:
        low, high = map(float, options.split(".."))
        return round(self.rng.uniform(low, high), 1)

    def _number(self, options: str, other: Callable[[str], Value]) -> int:
        return self._between(options)

    _quantity = _number

    def _between(self, options: str) -> int:
        range_, _, step = options.partition(" step ")
        low, high = map(int, range_.split(".."))
        return self.rng.randrange(low, high + 1, int(step or 1))

    def _between_dates(self, options: str, other: Callable[[str], Value]) -> int:
        first, last = map(other, options.split())
        return int((last - first).days)

    def _flag(self, options: str, other: Callable[[str], Value]) -> bool:
        return self.rng.random() < 0.5

    def _date(self, options: str, other: Callable[[str], Value]) -> date:
        range_, _, after = options.partition(" after ")
        return (other(after) if after else self.today) + timedelta(days=self._between(range_))

    def _time(self, options: str, other: Callable[[str], Value]) -> time:
        range_, _, after = options.partition(" after ")
        low, high = map(int, range_.split(".."))
        minutes = self.rng.randrange(low * 60, high * 60 + 1, self.rng.choice((60, 30, 30, 15, 5)))
        if not after:
            return time(minutes // 60, minutes % 60)
        later = datetime.combine(self.today, other(after)) + timedelta(minutes=minutes)
        return later.time()


def _coined(one: str, other: str) -> str:
    """Return a name that begins as one does and ends as another."""
    return one[: (len(one) + 1) // 2] + other[len(other) // 2 :]


def slug(text: str) -> str:
    """Return a text as part of an address: lower-case ASCII letters and digits."""
    plain = text.replace("ß", "ss").replace("ł", "l").replace("Ł", "L").replace("ø", "o")
    return re.sub(r"[^a-z0-9]", "", unicodedata.normalize("NFKD", plain).encode("ascii", "ignore").decode().lower())


def _one_line(text: str) -> str:
    return ", ".join(line.strip() for line in text.splitlines())
