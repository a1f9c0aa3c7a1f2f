"""What all tests share: a small tokenizer and prompts to give to random models."""

import copy
import gc
import itertools
from collections import Counter, defaultdict
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import settings

if TYPE_CHECKING:  # xdist's controller reads this file before its workers start: PyTorch is imported where it is used
    from transformers import PreTrainedTokenizerBase

    from setblock.data.packing import Document
    from setblock.data.tasks.word_problems import WordProblem

for name, examples in (("usual", 20), ("nightly", 40)):
    settings.register_profile(name, deadline=None, max_examples=examples, derandomize=True)


LONGEST = ("training/test_fsdp.py", "decoding/test_pairs.py", "decoding/test_compiled.py")
"""Files that take longest: they are begun first, so that no worker is left with one of them at the end."""


def pytest_configure(config: pytest.Config) -> None:
    if hasattr(config.option, "loadscopereorder"):
        config.option.loadscopereorder = False  # xdist's order is that of the number of tests in a file
    settings.load_profile("usual" if "not nightly" in config.option.markexpr else "nightly")


def pytest_collection_finish() -> None:
    """Leave all that is there by now out of garbage collections. Each run of the trainer does one, half a second long else."""
    gc.collect()
    gc.freeze()


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Of a test marked `in_turn`, leave to the nightly run all but a part of its parameters' combinations, in which each value
    of each parameter is: with modes A, B, C and families 1, 2, 3, ... those are A1, C2, B3, ... Notebooks are guides."""
    tests = defaultdict[str, list[pytest.Function]](list)
    items.sort(key=lambda item: next((n for n, name in enumerate(LONGEST) if item.path.match(name)), len(LONGEST)))
    for item in items:
        if item.path.suffix == ".ipynb":
            item.add_marker(pytest.mark.readme)
        if isinstance(item, pytest.Function) and item.get_closest_marker("in_turn"):
            tests[item.nodeid.partition("[")[0]].append(item)
    for cases in tests.values():
        given = [names_of(mark) for mark in cases[0].iter_markers("parametrize")]
        of_fixtures = [[name] for name in cases[0].callspec.params if not any(name in names for names in given)]
        numbers = [numbers_of(cases, names) for names in given + of_fixtures]
        last = sorted(max(each) for each in numbers)
        # Whatever the value of one parameter is, the others' numbers add up to all that may be missing to a multiple of this.
        step = 1 + sum(last[:-1])
        for case, *of_case in zip(cases, *numbers, strict=True):
            if sum(of_case) % step:
                case.add_marker(pytest.mark.nightly)


LEFT_OUT = pytest.StashKey[Counter[str]]()
"""How many tests `-m` left out, by their markers; of a worker of xdist, in what it sends to the controller."""


def pytest_deselected(items: list[pytest.Item]) -> None:
    names = ("families", "nightly", "readme", "servers")
    for item in items:
        marker = next((name for name in names if item.get_closest_marker(name)), "others")
        item.config.stash.setdefault(LEFT_OUT, Counter())[marker] += 1


def pytest_sessionfinish(session: pytest.Session) -> None:
    if (output := getattr(session.config, "workeroutput", None)) is not None:
        output["left_out"] = dict(session.config.stash.get(LEFT_OUT, Counter()))


@pytest.hookimpl(optionalhook=True)
def pytest_testnodedown(node: Any) -> None:
    """Take the numbers of one worker: each collects, and leaves out, the same."""
    node.config.stash[LEFT_OUT] = Counter(getattr(node, "workeroutput", {}).get("left_out", {}))


def pytest_terminal_summary(terminalreporter: Any, config: pytest.Config) -> None:
    if left_out := config.stash.get(LEFT_OUT, None):
        counts = ", ".join(f"{name} {count:,}" for name, count in sorted(left_out.items()))
        terminalreporter.write_line(f"left out: {counts}")


def names_of(mark: pytest.Mark) -> list[str]:
    """The parameters that a mark gives together."""
    return [name.strip() for name in mark.args[0].split(",")] if isinstance(mark.args[0], str) else [*mark.args[0]]


def numbers_of(cases: list[pytest.Function], names: list[str]) -> list[int]:
    """Of parameters that are given together, the number of their values in each case. `callspec.indices` numbers the cases."""
    values = [tuple(id(case.callspec.params[name]) for name in names) for case in cases]
    first = list(dict.fromkeys(values))
    return [first.index(each) for each in values]


@pytest.fixture(scope="session", autouse=True)
def _one_thread() -> None:
    import torch

    torch.set_num_threads(1)


@pytest.fixture
def longest_drafts(monkeypatch: pytest.MonkeyPatch) -> None:
    """Draft all that adaptive drafts may have, branches included, so that schedules and counts of passes depend on no clock. A
    test that only needs the same drafts in each run sets `drafts="fixed"` instead."""
    from setblock.decoding.drafts.draft_length import DraftLength, DraftLengths, PassShape, RowDraft

    def longest(self: DraftLengths, rows: Sequence[RowDraft], shape: PassShape) -> list[DraftLength]:
        return [DraftLength(len(row.reached), row.size) for row in rows]

    monkeypatch.setattr(DraftLengths, "choose", longest)


@pytest.fixture
def lay_heads_innermost(monkeypatch: pytest.MonkeyPatch) -> Callable[[], None]:
    """Make attention's results lie in memory as [B, Q, H, D], as a GPU gives them in float32; from the call on."""
    from torch.nn import functional

    attend = functional.scaled_dot_product_attention
    return lambda: monkeypatch.setattr(
        functional,
        "scaled_dot_product_attention",
        lambda *args, **how: attend(*args, **how).transpose(1, 2).contiguous().transpose(1, 2),
    )


# Fixed texts, so that what random models make of them does not change with the generator of word problems.
TEXTS = (
    "Question: Tom has 12 apples and buys 3 bags of 4 apples each. How many apples does he have now?\nAnswer:",
    "Question: Ana reads 15 pages a day for 6 days, and then 7 pages more. How many pages has she read?\nAnswer:",
    "Question: A school has 5 rooms with 8 rows of 4 seats. How many people can sit in the school?\nAnswer:",
    "Question: Ivan saves 20 dollars a week. A bike costs 340 dollars. How many weeks does he have to save?\nAnswer:",
    " The bags hold 3 * 4 = 12 apples.\nThen Tom has 12 + 12 = 24 apples.\n#### 24",
    " In 6 days Ana reads 6 * 15 = 90 pages.\nThen she has read 90 + 7 = 97 pages.\n#### 97",
    " Each room has 8 * 4 = 32 seats.\nThe school has 5 * 32 = 160 seats.\n#### 160",
    " Ivan needs 340 / 20 = 17 weeks.\n#### 17",
)


@pytest.fixture(scope="session")
def problems() -> "list[WordProblem]":
    from setblock.data.tasks.word_problems import word_problems

    return list(itertools.islice(word_problems("train"), 60))


@pytest.fixture(scope="session")
def trained_tokenizer() -> "PreTrainedTokenizerBase":
    """Shared: tests that change their tokenizer take `tokenizer`."""
    from setblock.data.tokenizer import train_tokenizer

    return train_tokenizer(TEXTS, vocab_size=300)


@pytest.fixture
def tokenizer(trained_tokenizer: "PreTrainedTokenizerBase") -> "PreTrainedTokenizerBase":
    return copy.deepcopy(trained_tokenizer)


@pytest.fixture(scope="session")
def prompts(trained_tokenizer: "PreTrainedTokenizerBase") -> list[list[int]]:
    """Token ids of three prompts of different lengths."""
    return [trained_tokenizer(text).input_ids[:n] for text, n in zip(TEXTS, (9, 23, 40), strict=False)]


@pytest.fixture(scope="session")
def documents(trained_tokenizer: "PreTrainedTokenizerBase") -> "list[Document]":
    """Six short documents."""
    from setblock.data.packing import Document
    from setblock.data.texts.encoding import encode_records

    pairs = zip(TEXTS[:4], TEXTS[4:], strict=True)
    whole = list(encode_records(trained_tokenizer, ({"prompt": a, "completion": b} for a, b in pairs))) * 2
    return [
        Document(d.token_ids[-n:], d.carries_loss[-n:]) for d, n in zip(whole, (19, 33, 8, 26, 14, 21), strict=False)
    ]
