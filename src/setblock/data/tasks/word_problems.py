"""Generate arithmetic word problems with worked reasoning, in the manner of GSM8K.

Knows how to write a problem, its reasoning and its answer, and which answers are right. Knows nothing of tokenizers or
models. Numbers are small, mostly of one or two digits: a model of a few million parameters shall solve nearly all problems, so
that what block decoding costs is not hidden behind what the model can't do at all.

A problem's identity is its family with every number in it, names and things left out. So a held-out problem is never a
training problem with other names: the splits share no such skeleton at all.
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
    """Hold one problem. Its `answer` is the reasoning, which ends in `#### number`."""

    number: int = 0


Draft = tuple[str, list[str], int, tuple[object, ...]]  # question, reasoning lines, answer, numbers of its identity


def _collection(rng: random.Random) -> Draft:
    who, thing = rng.choice(PEOPLE), rng.choice(THINGS)
    have = rng.randint(5, 40)
    facts, lines, numbers = [f"{who} has {have} {thing}."], [], [have]
    for event in rng.sample(("finds", "gives", "buys", "sells"), rng.randint(2, 3)):
        if event == "finds":
            n = rng.randint(2, 30)
            facts.append(f"{who} {rng.choice(('finds', 'gets'))} {n} more.")
            lines.append(f"Then {who} has {have} + {n} = {have + n} {thing}.")
            have += n
        elif event == "gives":
            n = rng.randint(1, have - 1) if have < 40 else rng.randint(2, 39)
            facts.append(f"{who} {rng.choice(('gives away', 'loses'))} {n} of them.")
            lines.append(f"Then {who} has {have} - {n} = {have - n} {thing}.")
            have -= n
        elif event == "buys":
            c, n, box = rng.randint(2, 5), rng.randint(2, 9), rng.choice(CONTAINERS)
            facts.append(f"{who} buys {c} {box} of {n} {thing} each.")
            lines.append(f"The {box} hold {c} * {n} = {c * n} {thing}.")
            lines.append(f"Then {who} has {have} + {c * n} = {have + c * n} {thing}.")
            have += c * n
            numbers.append(c)
        else:
            n = rng.choice([d for d in (2, 3, 4, 5) if have % d == 0] or [1])
            if n == 1:
                continue
            share = {2: "half", 3: "a third", 4: "a quarter", 5: "a fifth"}[n]
            facts.append(f"{who} sells {share} of the {thing}.")
            lines.append(f"{who} sells {have} / {n} = {have // n} {thing}.")
            lines.append(f"Then {who} has {have} - {have // n} = {have - have // n} {thing}.")
            have -= have // n
        numbers += [event, n]  # type: ignore[list-item]
    facts.append(f"How many {thing} does {who} have {rng.choice(('now', 'in the end'))}?")
    return " ".join(facts), lines, have, tuple(numbers)


def _shopping(rng: random.Random) -> Draft:
    who, (first, second) = rng.choice(PEOPLE), rng.sample(GOODS, 2)
    a, b, p, q = rng.randint(2, 7), rng.randint(2, 7), rng.randint(2, 9), rng.randint(2, 9)
    total = a * p + b * q
    facts = [f"{who} buys {a} {first} for {p} dollars each and {b} {second} for {q} dollars each."]
    lines = [
        f"The {first} cost {a} * {p} = {a * p} dollars.",
        f"The {second} cost {b} * {q} = {b * q} dollars.",
        f"Together they cost {a * p} + {b * q} = {total} dollars.",
    ]
    ending = rng.choice(("total", "change", "coupon"))
    if ending == "total":
        facts.append(f"How many dollars does {who} pay?")
        return " ".join(facts), lines, total, (a, b, p, q)
    if ending == "change":
        paid = next(bill for bill in (50, 100, 200) if bill >= total)
        facts.append(f"{who} pays with {paid} dollars. How much change does {who} get?")
        lines.append(f"The change is {paid} - {total} = {paid - total} dollars.")
        return " ".join(facts), lines, paid - total, (a, b, p, q, "change")
    off = rng.randint(1, min(9, total - 1))
    facts.append(f"A coupon takes {off} dollars off. How much does {who} pay?")
    lines.append(f"With the coupon {who} pays {total} - {off} = {total - off} dollars.")
    return " ".join(facts), lines, total - off, (a, b, p, q, "coupon", off)


def _wages(rng: random.Random) -> Draft:
    who = rng.choice(PEOPLE)
    hours, days, rate = rng.randint(2, 6), rng.randint(2, 4), rng.randint(2, 6)
    worked, earned = hours * days, hours * days * rate
    spent = rng.randint(2, min(60, earned - 1))
    facts = [
        f"{who} works {hours} hours a day for {days} days and earns {rate} dollars an hour.",
        f"{who} spends {spent} dollars on food.",
        f"How many dollars {rng.choice(('are left', 'does ' + who + ' have left'))}?",
    ]
    lines = [
        f"{who} works {hours} * {days} = {worked} hours.",
        f"{who} earns {worked} * {rate} = {earned} dollars.",
        f"After the food {earned} - {spent} = {earned - spent} dollars are left.",
    ]
    return " ".join(facts), lines, earned - spent, (hours, days, rate, spent)


def _comparison(rng: random.Random) -> Draft:
    (a, b, c), thing = rng.sample(PEOPLE, 3), rng.choice(THINGS)
    x, facts, lines, numbers = rng.randint(4, 20), [], [], []
    facts.append(f"{a} has {x} {thing}.")
    counts = [x]
    for who, other in ((b, a), (c, b)):
        base, relation = counts[-1], rng.choice(("more", "fewer", "times"))
        if relation == "fewer" and base > 3:
            n = rng.randint(1, min(15, base - 1))
            facts.append(f"{who} has {n} fewer than {other}.")
            lines.append(f"{who} has {base} - {n} = {base - n} {thing}.")
            counts.append(base - n)
        elif relation == "times" and base <= 20:
            n = rng.randint(2, 3)
            facts.append(f"{who} has {n} times as many as {other}.")
            lines.append(f"{who} has {n} * {base} = {n * base} {thing}.")
            counts.append(n * base)
        else:
            n = rng.randint(2, 15)
            facts.append(f"{who} has {n} more than {other}.")
            lines.append(f"{who} has {base} + {n} = {base + n} {thing}.")
            counts.append(base + n)
        numbers += [relation, n]
    x, y, z = counts
    facts.append(f"How many {thing} do they have {rng.choice(('together', 'in all'))}?")
    lines.append(f"{a} and {b} have {x} + {y} = {x + y} {thing}.")
    lines.append(f"In all they have {x + y} + {z} = {x + y + z} {thing}.")
    return " ".join(facts), lines, x + y + z, (counts[0], *numbers)


def _sharing(rng: random.Random) -> Draft:
    who, thing, box = rng.choice(PEOPLE), rng.choice(THINGS), rng.choice(CONTAINERS)
    friends, each = rng.randint(2, 9), rng.randint(2, 9)
    total = friends * each
    kept = rng.randint(2, 20)
    sizes = [d for d in range(2, 10) if (total + kept) % d == 0] or [1]
    c = rng.choice(sizes)
    n = (total + kept) // c
    if c == 1:
        facts = [f"{who} has {n} {thing}."]
        lines = []
    else:
        facts = [f"{who} has {c} {box} with {n} {thing} each."]
        lines = [f"{who} has {c} * {n} = {c * n} {thing}."]
    facts.append(f"{who} keeps {kept} and shares the rest equally among {friends} friends.")
    facts.append(f"How many {thing} does each friend get?")
    lines.append(f"To share there are {c * n} - {kept} = {total} {thing}.")
    lines.append(f"Each friend gets {total} / {friends} = {each} {thing}.")
    return " ".join(facts), lines, each, (c, n, kept, friends)


def _reading(rng: random.Random) -> Draft:
    who = rng.choice(PEOPLE)
    per_day, days, then_days, then = rng.randint(3, 12), rng.randint(2, 5), rng.randint(2, 8), rng.randint(3, 12)
    read, rest = per_day * days, then_days * then
    facts = [
        f"{who} reads a book of {read + rest} pages.",
        f"For {days} days {who} reads {per_day} pages a day.",
        f"After that {who} reads {then} pages a day. How many more days does {who} need?",
    ]
    lines = [
        f"In {days} days {who} reads {days} * {per_day} = {read} pages.",
        f"There are {read + rest} - {read} = {rest} pages left.",
        f"{who} needs {rest} / {then} = {then_days} more days.",
    ]
    return " ".join(facts), lines, then_days, (per_day, days, then, then_days)


def _travel(rng: random.Random) -> Draft:
    who, (first, second) = rng.choice(PEOPLE), rng.sample(("car", "bus", "train", "boat", "bike"), 2)
    u, v, s, t = rng.randint(4, 20), rng.randint(4, 20), rng.randint(2, 4), rng.randint(2, 4)
    far = u * s + v * t
    facts = [
        f"{who} travels {s} hours by {first} at {u} miles an hour, then {t} hours by {second} at {v} miles an hour."
    ]
    lines = [
        f"By {first} {who} travels {s} * {u} = {u * s} miles.",
        f"By {second} {who} travels {t} * {v} = {v * t} miles.",
    ]
    if rng.random() < 0.5 or u * s == v * t:
        facts.append(f"How many miles does {who} travel?")
        lines.append(f"In all {who} travels {u * s} + {v * t} = {far} miles.")
        return " ".join(facts), lines, far, (u, s, v, t)
    longer, shorter = max(u * s, v * t), min(u * s, v * t)
    facts.append("How many miles longer is the longer part?")
    lines.append(f"The difference is {longer} - {shorter} = {longer - shorter} miles.")
    return " ".join(facts), lines, longer - shorter, (u, s, v, t, "longer")


def _baking(rng: random.Random) -> Draft:
    who, food = rng.choice(PEOPLE), rng.choice(("cookies", "muffins", "rolls", "pies", "cakes"))
    boxes, size, price = rng.randint(2, 9), rng.randint(2, 9), rng.randint(2, 9)
    sold = boxes * size
    divisors = [(n, d) for n in range(1, 21) for d in range(2, 10) if (sold + n) % d == 0]
    eaten, batches = rng.choice(divisors)
    each = (sold + eaten) // batches
    facts = [
        f"{who} bakes {batches} trays of {each} {food}. The family eats {eaten}.",
        f"{who} puts the rest in boxes of {size} and sells each box for {price} dollars.",
        f"How many dollars does {who} {rng.choice(('get', 'earn'))}?",
    ]
    lines = [
        f"{who} bakes {batches} * {each} = {sold + eaten} {food}.",
        f"There are {sold + eaten} - {eaten} = {sold} {food} to sell.",
        f"They fill {sold} / {size} = {boxes} boxes.",
        f"{who} gets {boxes} * {price} = {boxes * price} dollars.",
    ]
    return " ".join(facts), lines, boxes * price, (batches, each, eaten, size, price)


def _saving(rng: random.Random) -> Draft:
    who, good = rng.choice(PEOPLE), rng.choice(("bike", "phone", "tent", "guitar", "camera", "coat"))
    have, weekly, weeks = rng.randint(2, 30), rng.randint(2, 9), rng.randint(2, 7)
    total = have + weekly * weeks
    facts = [f"{who} has {have} dollars and saves {weekly} dollars a week for {weeks} weeks."]
    lines = [
        f"In {weeks} weeks {who} saves {weeks} * {weekly} = {weeks * weekly} dollars.",
        f"Then {who} has {have} + {weeks * weekly} = {total} dollars.",
    ]
    if rng.random() < 0.5:
        price = rng.randint(2, total - 1)
        facts.append(f"{who} buys a {good} for {price} dollars. How much money is left?")
        lines.append(f"After the {good} {total} - {price} = {total - price} dollars are left.")
        return " ".join(facts), lines, total - price, (have, weekly, weeks, price, "left")
    price = total + rng.randint(2, 30)
    facts.append(f"A {good} costs {price} dollars. How much more does {who} need?")
    lines.append(f"For the {good} {who} needs {price} - {total} = {price - total} more dollars.")
    return " ".join(facts), lines, price - total, (have, weekly, weeks, price, "need")


def _school(rng: random.Random) -> Draft:
    rooms, rows, seats = rng.randint(2, 4), rng.randint(2, 6), rng.randint(2, 5)
    room = rows * seats
    total = rooms * room
    empty = rng.randint(1, min(30, total - 2))
    place = rng.choice(("school", "theater", "library"))
    facts = [
        f"A {place} has {rooms} rooms. Each room has {rows} rows of {seats} seats.",
        f"If {empty} seats are empty, how many people are {rng.choice(('sitting', 'seated'))}?",
    ]
    lines = [
        f"Each room has {rows} * {seats} = {room} seats.",
        f"The {place} has {rooms} * {room} = {total} seats.",
        f"There are {total} - {empty} = {total - empty} people sitting.",
    ]
    return " ".join(facts), lines, total - empty, (rooms, rows, seats, empty)


def _ages(rng: random.Random) -> Draft:
    a, b, c = rng.sample(PEOPLE, 3)
    youngest, times, older, years = rng.randint(3, 15), rng.randint(2, 3), rng.randint(2, 20), rng.randint(2, 15)
    middle = youngest * times
    oldest = middle + older
    facts = [
        f"{a} is {youngest} years old. {b} is {times} times as old as {a}.",
        f"{c} is {older} years older than {b}.",
    ]
    lines = [f"{b} is {times} * {youngest} = {middle} years old.", f"{c} is {middle} + {older} = {oldest} years old."]
    if rng.random() < 0.5:
        facts.append(f"How old will {c} be in {years} years?")
        lines.append(f"In {years} years {c} will be {oldest} + {years} = {oldest + years} years old.")
        return " ".join(facts), lines, oldest + years, (youngest, times, older, years, "later")
    facts.append(f"How many years older is {c} than {a}?")
    lines.append(f"The difference is {oldest} - {youngest} = {oldest - youngest} years.")
    return " ".join(facts), lines, oldest - youngest, (youngest, times, older, "difference")


def _garden(rng: random.Random) -> Draft:
    who, plant = rng.choice(PEOPLE), rng.choice(("roses", "tulips", "beans", "trees", "herbs"))
    rows, each, times = rng.randint(2, 5), rng.randint(2, 8), rng.randint(2, 3)
    planted = rows * each
    more = rng.randint(2, 15)
    facts = [
        f"{who} plants {rows} rows of {each} {plant}, and then {more} more.",
        f"{rng.choice(('Every', 'Each'))} plant needs {times} cups of water a day. How many cups are needed a day?",
    ]
    lines = [
        f"The rows hold {rows} * {each} = {planted} {plant}.",
        f"With the others there are {planted} + {more} = {planted + more} {plant}.",
        f"They need {planted + more} * {times} = {(planted + more) * times} cups of water a day.",
    ]
    return " ".join(facts), lines, (planted + more) * times, (rows, each, more, times)


FAMILIES: dict[str, Callable[[random.Random], Draft]] = {
    "ages": _ages,
    "baking": _baking,
    "collection": _collection,
    "comparison": _comparison,
    "garden": _garden,
    "reading": _reading,
    "saving": _saving,
    "school": _school,
    "sharing": _sharing,
    "shopping": _shopping,
    "travel": _travel,
    "wages": _wages,
}


def word_problems(split: Split, seed: int = 0) -> Iterator[WordProblem]:
    """Yield endless distinct problems of one split."""
    return drawn(_write, split, key=f"{split}-{seed}")


def _write(rng: random.Random) -> WordProblem | None:
    name, draft = rng.choice(tuple(FAMILIES.items()))
    question, lines, number, numbers = draft(rng)
    if not lines:
        return None
    answer = "\n".join((*lines, f"#### {number}"))
    return WordProblem(question, answer, identity=" ".join(map(str, (name, *numbers))), number=number)


_FINAL_NUMBER = re.compile(r"####\s*(-?\d+)")


def answer_in(text: str) -> int | None:
    """Return the number after the last `####` of an answer, or None where there is none."""
    found = _FINAL_NUMBER.findall(text)
    return int(found[-1]) if found else None


def _judge(problem: WordProblem, answer: str) -> Verdict:
    return Verdict(answer_in(answer) == problem.number)


TASKS = (
    Task("word-problems", "a sum in words, with its reasoning; right if its final number is", word_problems, _judge),
)
