"""Pages: each held by whom it was given to, found again by its text, and given up oldest first."""

import random

from hypothesis import given
from hypothesis import strategies as st

from setblock.engine.pages import PagePool

PAGE = 2


class NaiveCache:
    """What every page holds, written down: the whole text up to its end."""

    def __init__(self) -> None:
        self.text_of: dict[int, tuple[int, ...]] = {}

    def longest(self, text: list[int]) -> int:
        """How many of the first pages of a text are there, whoever wrote them."""
        known, count = set(self.text_of.values()), 0
        while (count + 1) * PAGE <= len(text) and tuple(text[: (count + 1) * PAGE]) in known:
            count += 1
        return count


@given(st.integers(1, 12), st.lists(st.tuples(st.booleans(), st.integers(0, 10**6)), max_size=60))
def test_what_is_found_is_what_was_written(total: int, moves: list[tuple[bool, int]]) -> None:
    """Texts come, are written to pages, and go; two letters, so that many have the same prefix."""
    pool, naive = PagePool(total, page_tokens=PAGE), NaiveCache()
    held: list[list[int]] = []
    for comes, seed in moves:
        rng = random.Random(seed)
        if not comes and held:
            pool.release(held.pop(rng.randrange(len(held))))
        elif comes:
            text = [rng.randrange(2) for _ in range(rng.randint(1, 8))]
            pages, keys = pool.find(text)
            assert [naive.text_of[page] for page in pages] == [tuple(text[: (n + 1) * PAGE]) for n in range(len(pages))]
            pool.share(pages)
            missing = pool.pages_for(len(text)) - len(pages)
            if missing > pool.available:
                pool.release(pages)
                continue
            fresh = pool.take(missing)
            assert not any(page in other for other in held for page in fresh)
            for page in fresh:
                naive.text_of.pop(page, None)
            pages = pages + fresh
            held.append(pages)
            for n, key in enumerate(pool.keys_of(text, len(text), known=keys), start=len(keys)):
                pool.cache_page(pages[n], key)
                naive.text_of[pages[n]] = tuple(text[: (n + 1) * PAGE])
            assert len(pool.find(text)[0]) == naive.longest(text) == len(text) // PAGE
        assert pool.total - pool.available == len({page for pages in held for page in pages})
    for pages in held:
        pool.release(pages)
    assert pool.available == total


def test_the_text_not_used_for_longest_goes_first_and_its_end_before_its_beginning() -> None:
    pool = PagePool(4, page_tokens=PAGE)
    texts = {"old": [1, 1, 1, 1], "new": [2, 2, 2, 2]}
    for text in texts.values():
        pages = pool.take(2)
        for page, key in zip(pages, pool.keys_of(text, len(text)), strict=True):
            pool.cache_page(page, key)
        pool.release(pages)

    def found() -> dict[str, int]:
        return {name: len(pool.find(text)[0]) for name, text in texts.items()}

    assert found() == {"old": 2, "new": 2}
    pool.take(1)
    assert found() == {"old": 1, "new": 2}
    pool.take(1)
    assert found() == {"old": 0, "new": 2}
    pool.share(pool.find(texts["new"])[0])
    assert pool.available == 0
