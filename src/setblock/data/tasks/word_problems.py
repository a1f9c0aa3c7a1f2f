"""Generated arithmetic word problems with worked reasoning, in the manner of GSM8K.

Numbers are small, mostly of one or two digits: a model of a few million parameters should solve nearly all problems, so
that the model's own errors don't hide what block decoding costs. A problem's identity is its family with every number
in it, without names and things, so that a held-out problem is never a training problem with other names.
"""

import random
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from setblock.data.tasks.task import Example, Split, Task, Verdict, drawn

PEOPLE = (
    "Maya Tom Ana Ben Lena Omar Ruth Ivan Nora Sam Zoe Leo Mia Paul Eva Hugo Iris Max Ella Finn "
    "Rosa Karl Lucy Adam Jane Noah Tara Erik Vera Luis"
).split()
THINGS = (
    "apples pears marbles stickers shells cards coins stamps beads buttons pencils books stones "
    "balls flowers cookies candles ribbons toys eggs"
).split()
CONTAINERS = "bags boxes baskets jars crates packs".split()
GOODS = "pens books lamps hats cups plates shirts scarves bowls mugs games belts".split()


@dataclass(frozen=True)
class WordProblem(Example):
    """One problem. Its `answer` is the reasoning, which ends in `#### number`."""

    number: int = 0


Draft = tuple[list[str], int, tuple[object, ...]]  # sentences of the question, answer, numbers of its identity


class _Reasoning(list[str]):
    """The lines of a problem's reasoning."""

    def sum(self, line: str, a: int, operator: str, b: int) -> int:
        """Add a line with a sum, such as `3 + 4 = 7`, in place of its `#`, and return the result."""
        result = {"+": a + b, "-": a - b, "*": a * b, "/": a // b}[operator]
        self.append(line.replace("#", f"{a} {operator} {b} = {result}"))
        return result


def _collection(rng: random.Random, lines: _Reasoning) -> Draft:
    who, thing = rng.choice(PEOPLE), rng.choice(THINGS)
    have = rng.randint(5, 40)
    then = f"Then {who} has # {thing}."
    facts, numbers = [f"{who} has {have} {thing}."], [have]
    for event in rng.sample(("finds", "gives", "buys", "sells"), rng.randint(2, 3)):
        if event == "finds":
            n = change = rng.randint(2, 30)
            facts.append(f"{who} {rng.choice(('finds', 'gets'))} {n} more.")
        elif event == "gives":
            n = change = rng.randint(1, have - 1) if have < 40 else rng.randint(2, 39)
            facts.append(f"{who} {rng.choice(('gives away', 'loses'))} {n} of them.")
        elif event == "buys":
            c, n, box = rng.randint(2, 5), rng.randint(2, 9), rng.choice(CONTAINERS)
            facts.append(f"{who} buys {c} {box} of {n} {thing} each.")
            change = lines.sum(f"The {box} hold # {thing}.", c, "*", n)
            numbers.append(c)
        else:
            n = rng.choice([d for d in (2, 3, 4, 5) if have % d == 0] or [1])
            if n == 1:
                continue
            share = {2: "half", 3: "a third", 4: "a quarter", 5: "a fifth"}[n]
            facts.append(f"{who} sells {share} of the {thing}.")
            change = lines.sum(f"{who} sells # {thing}.", have, "/", n)
        have = lines.sum(then, have, "+" if event in ("finds", "buys") else "-", change)
        numbers += [event, n]  # type: ignore[list-item]
    facts.append(f"How many {thing} does {who} have {rng.choice(('now', 'in the end'))}?")
    return facts, have, tuple(numbers)


def _shopping(rng: random.Random, lines: _Reasoning) -> Draft:
    who, (first, second) = rng.choice(PEOPLE), rng.sample(GOODS, 2)
    a, b, p, q = rng.randint(2, 7), rng.randint(2, 7), rng.randint(2, 9), rng.randint(2, 9)
    facts = [f"{who} buys {a} {first} for {p} dollars each and {b} {second} for {q} dollars each."]
    cost = lines.sum(f"The {first} cost # dollars.", a, "*", p)
    other = lines.sum(f"The {second} cost # dollars.", b, "*", q)
    total = lines.sum("Together they cost # dollars.", cost, "+", other)
    ending = rng.choice(("total", "change", "coupon"))
    if ending == "total":
        return [*facts, f"How many dollars does {who} pay?"], total, (a, b, p, q)
    if ending == "change":
        paid = next(bill for bill in (50, 100, 200) if bill >= total)
        facts.append(f"{who} pays with {paid} dollars. How much change does {who} get?")
        return facts, lines.sum("The change is # dollars.", paid, "-", total), (a, b, p, q, "change")
    off = rng.randint(1, min(9, total - 1))
    facts.append(f"A coupon takes {off} dollars off. How much does {who} pay?")
    return facts, lines.sum(f"With the coupon {who} pays # dollars.", total, "-", off), (a, b, p, q, "coupon", off)


def _wages(rng: random.Random, lines: _Reasoning) -> Draft:
    who = rng.choice(PEOPLE)
    hours, days, rate = rng.randint(2, 6), rng.randint(2, 4), rng.randint(2, 6)
    earned = lines.sum(f"{who} earns # dollars.", lines.sum(f"{who} works # hours.", hours, "*", days), "*", rate)
    spent = rng.randint(2, min(60, earned - 1))
    facts = [
        f"{who} works {hours} hours a day for {days} days and earns {rate} dollars an hour.",
        f"{who} spends {spent} dollars on food.",
        f"How many dollars {rng.choice(('are left', 'does ' + who + ' have left'))}?",
    ]
    return facts, lines.sum("After the food # dollars are left.", earned, "-", spent), (hours, days, rate, spent)


def _comparison(rng: random.Random, lines: _Reasoning) -> Draft:
    (a, b, c), thing = rng.sample(PEOPLE, 3), rng.choice(THINGS)
    counts, numbers = [rng.randint(4, 20)], []
    facts = [f"{a} has {counts[0]} {thing}."]
    for who, other in ((b, a), (c, b)):
        base, relation = counts[-1], rng.choice(("more", "fewer", "times"))
        if relation == "fewer" and base > 3:
            n = rng.randint(1, min(15, base - 1))
            phrase, terms = "fewer than", (base, "-", n)
        elif relation == "times" and base <= 20:
            n = rng.randint(2, 3)
            phrase, terms = "times as many as", (n, "*", base)
        else:
            n = rng.randint(2, 15)
            phrase, terms = "more than", (base, "+", n)
        facts.append(f"{who} has {n} {phrase} {other}.")
        counts.append(lines.sum(f"{who} has # {thing}.", *terms))
        numbers += [relation, n]
    x, y, z = counts
    facts.append(f"How many {thing} do they have {rng.choice(('together', 'in all'))}?")
    two = lines.sum(f"{a} and {b} have # {thing}.", x, "+", y)
    return facts, lines.sum(f"In all they have # {thing}.", two, "+", z), (x, *numbers)


def _sharing(rng: random.Random, lines: _Reasoning) -> Draft:
    who, thing, box = rng.choice(PEOPLE), rng.choice(THINGS), rng.choice(CONTAINERS)
    friends, each = rng.randint(2, 9), rng.randint(2, 9)
    kept = rng.randint(2, 20)
    have = friends * each + kept
    c = rng.choice([d for d in range(2, 10) if have % d == 0] or [1])
    n = have // c
    facts = [f"{who} has {n} {thing}." if c == 1 else f"{who} has {c} {box} with {n} {thing} each."]
    if c > 1:
        lines.sum(f"{who} has # {thing}.", c, "*", n)
    facts.append(f"{who} keeps {kept} and shares the rest equally among {friends} friends.")
    facts.append(f"How many {thing} does each friend get?")
    shared = lines.sum(f"To share there are # {thing}.", have, "-", kept)
    return facts, lines.sum(f"Each friend gets # {thing}.", shared, "/", friends), (c, n, kept, friends)


def _reading(rng: random.Random, lines: _Reasoning) -> Draft:
    who = rng.choice(PEOPLE)
    per_day, days, then_days, then = rng.randint(3, 12), rng.randint(2, 5), rng.randint(2, 8), rng.randint(3, 12)
    pages = per_day * days + then_days * then
    facts = [
        f"{who} reads a book of {pages} pages.",
        f"For {days} days {who} reads {per_day} pages a day.",
        f"After that {who} reads {then} pages a day. How many more days does {who} need?",
    ]
    read = lines.sum(f"In {days} days {who} reads # pages.", days, "*", per_day)
    rest = lines.sum("There are # pages left.", pages, "-", read)
    return facts, lines.sum(f"{who} needs # more days.", rest, "/", then), (per_day, days, then, then_days)


def _travel(rng: random.Random, lines: _Reasoning) -> Draft:
    who, (first, second) = rng.choice(PEOPLE), rng.sample(("car", "bus", "train", "boat", "bike"), 2)
    u, v, s, t = rng.randint(4, 20), rng.randint(4, 20), rng.randint(2, 4), rng.randint(2, 4)
    facts = [
        f"{who} travels {s} hours by {first} at {u} miles an hour, then {t} hours by {second} at {v} miles an hour."
    ]
    one = lines.sum(f"By {first} {who} travels # miles.", s, "*", u)
    other = lines.sum(f"By {second} {who} travels # miles.", t, "*", v)
    if rng.random() < 0.5 or one == other:
        facts.append(f"How many miles does {who} travel?")
        return facts, lines.sum(f"In all {who} travels # miles.", one, "+", other), (u, s, v, t)
    facts.append("How many miles longer is the longer part?")
    return facts, lines.sum("The difference is # miles.", max(one, other), "-", min(one, other)), (u, s, v, t, "longer")


def _baking(rng: random.Random, lines: _Reasoning) -> Draft:
    who, food = rng.choice(PEOPLE), rng.choice(("cookies", "muffins", "rolls", "pies", "cakes"))
    boxes, size, price = rng.randint(2, 9), rng.randint(2, 9), rng.randint(2, 9)
    sold = boxes * size
    eaten, batches = rng.choice([(n, d) for n in range(1, 21) for d in range(2, 10) if (sold + n) % d == 0])
    each = (sold + eaten) // batches
    facts = [
        f"{who} bakes {batches} trays of {each} {food}. The family eats {eaten}.",
        f"{who} puts the rest in boxes of {size} and sells each box for {price} dollars.",
        f"How many dollars does {who} {rng.choice(('get', 'earn'))}?",
    ]
    lines.sum(f"{who} bakes # {food}.", batches, "*", each)
    lines.sum(f"There are # {food} to sell.", sold + eaten, "-", eaten)
    lines.sum("They fill # boxes.", sold, "/", size)
    return facts, lines.sum(f"{who} gets # dollars.", boxes, "*", price), (batches, each, eaten, size, price)


def _saving(rng: random.Random, lines: _Reasoning) -> Draft:
    who, good = rng.choice(PEOPLE), rng.choice(("bike", "phone", "tent", "guitar", "camera", "coat"))
    have, weekly, weeks = rng.randint(2, 30), rng.randint(2, 9), rng.randint(2, 7)
    facts = [f"{who} has {have} dollars and saves {weekly} dollars a week for {weeks} weeks."]
    saved = lines.sum(f"In {weeks} weeks {who} saves # dollars.", weeks, "*", weekly)
    total = lines.sum(f"Then {who} has # dollars.", have, "+", saved)
    if rng.random() < 0.5:
        price = rng.randint(2, total - 1)
        facts.append(f"{who} buys a {good} for {price} dollars. How much money is left?")
        left = lines.sum(f"After the {good} # dollars are left.", total, "-", price)
        return facts, left, (have, weekly, weeks, price, "left")
    price = total + rng.randint(2, 30)
    facts.append(f"A {good} costs {price} dollars. How much more does {who} need?")
    needed = lines.sum(f"For the {good} {who} needs # more dollars.", price, "-", total)
    return facts, needed, (have, weekly, weeks, price, "need")


def _school(rng: random.Random, lines: _Reasoning) -> Draft:
    rooms, rows, seats = rng.randint(2, 4), rng.randint(2, 6), rng.randint(2, 5)
    room = lines.sum("Each room has # seats.", rows, "*", seats)
    empty = rng.randint(1, min(30, rooms * room - 2))
    place = rng.choice(("school", "theater", "library"))
    facts = [
        f"A {place} has {rooms} rooms. Each room has {rows} rows of {seats} seats.",
        f"If {empty} seats are empty, how many people are {rng.choice(('sitting', 'seated'))}?",
    ]
    total = lines.sum(f"The {place} has # seats.", rooms, "*", room)
    return facts, lines.sum("There are # people sitting.", total, "-", empty), (rooms, rows, seats, empty)


def _ages(rng: random.Random, lines: _Reasoning) -> Draft:
    a, b, c = rng.sample(PEOPLE, 3)
    youngest, times, older, years = rng.randint(3, 15), rng.randint(2, 3), rng.randint(2, 20), rng.randint(2, 15)
    facts = [
        f"{a} is {youngest} years old. {b} is {times} times as old as {a}.",
        f"{c} is {older} years older than {b}.",
    ]
    middle = lines.sum(f"{b} is # years old.", times, "*", youngest)
    oldest = lines.sum(f"{c} is # years old.", middle, "+", older)
    if rng.random() < 0.5:
        facts.append(f"How old will {c} be in {years} years?")
        later = lines.sum(f"In {years} years {c} will be # years old.", oldest, "+", years)
        return facts, later, (youngest, times, older, years, "later")
    facts.append(f"How many years older is {c} than {a}?")
    difference = lines.sum("The difference is # years.", oldest, "-", youngest)
    return facts, difference, (youngest, times, older, "difference")


def _garden(rng: random.Random, lines: _Reasoning) -> Draft:
    who, plant = rng.choice(PEOPLE), rng.choice(("roses", "tulips", "beans", "trees", "herbs"))
    rows, each, times = rng.randint(2, 5), rng.randint(2, 8), rng.randint(2, 3)
    more = rng.randint(2, 15)
    facts = [
        f"{who} plants {rows} rows of {each} {plant}, and then {more} more.",
        f"{rng.choice(('Every', 'Each'))} plant needs {times} cups of water a day. How many cups are needed a day?",
    ]
    planted = lines.sum(f"The rows hold # {plant}.", rows, "*", each)
    total = lines.sum(f"With the others there are # {plant}.", planted, "+", more)
    return facts, lines.sum("They need # cups of water a day.", total, "*", times), (rows, each, more, times)


FAMILIES: tuple[Callable[[random.Random, _Reasoning], Draft], ...] = (
    _ages, _baking, _collection, _comparison, _garden, _reading,
    _saving, _school, _sharing, _shopping, _travel, _wages,
)  # fmt: skip


def word_problems(split: Split, seed: int = 0) -> Iterator[WordProblem]:
    """Yield endless distinct problems of one split."""
    return drawn(_write, split, key=f"{split}-{seed}")


def _write(rng: random.Random) -> WordProblem:
    family, lines = rng.choice(FAMILIES), _Reasoning()
    facts, number, numbers = family(rng, lines)
    answer = "\n".join((*lines, f"#### {number}"))
    identity = " ".join(map(str, (family.__name__.removeprefix("_"), *numbers)))
    return WordProblem(" ".join(facts), answer, identity, number)


def answer_in(text: str) -> int | None:
    """Return the number after the last `####` of an answer, or None where there is none."""
    found = re.findall(r"####\s*(-?\d+)", text)
    return int(found[-1]) if found else None


def _judge(problem: WordProblem, answer: str) -> Verdict:
    return Verdict(answer_in(answer) == problem.number)


TASKS = (
    Task("word-problems", "a sum in words, with its reasoning; right if its final number is", word_problems, _judge),
)
