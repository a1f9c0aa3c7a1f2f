"""The pages of the key-value cache: their allocation and their reuse for texts with the same prefix.

What is committed to the cache is exactly what plain decoding would have put there, whichever request did it. So a full page of
committed tokens may serve every request whose text has the same prefix. A cached page that no request holds stays until its
space is needed; the page that was released first is evicted first.
"""

from array import array
from collections import OrderedDict
from collections.abc import Iterator, Sequence
from hashlib import blake2b
from itertools import takewhile


class PagePool:
    """A pool of `total` pages of `page_tokens` positions each."""

    def __init__(self, total: int, *, page_tokens: int) -> None:
        self.total, self.page_tokens = total, page_tokens
        self._free = list(reversed(range(total)))
        self._holders = [0] * total
        self._key_of: dict[int, bytes] = {}  # of the pages that may be shared
        self._page_of: dict[bytes, int] = {}
        # Cached pages that no request holds, in the order in which they were released
        self.evictable: OrderedDict[int, None] = OrderedDict()

    @property
    def available(self) -> int:
        """Return the number of pages that can be taken."""
        return len(self._free) + len(self.evictable)

    def pages_for(self, tokens: int) -> int:
        """Return how many pages this number of positions takes."""
        return -(-tokens // self.page_tokens)

    def take(self, count: int) -> list[int]:
        """Allocate `count` of the available pages. What they held is lost."""
        assert count <= self.available
        pages = []
        for _ in range(count):
            if self._free:
                page = self._free.pop()
            else:
                page, _ = self.evictable.popitem(last=False)
                del self._page_of[self._key_of.pop(page)]
            self._holders[page] = 1
            pages.append(page)
        return pages

    def extend(self, pages: Sequence[list[int]], ends: Sequence[int]) -> bool:
        """Allocate what is missing to the pages of several texts up to their `ends`. Return False, with nothing allocated, if
        too few are available."""
        missing = [self.pages_for(end) - len(each) for each, end in zip(pages, ends, strict=True)]
        if sum(count for count in missing if count > 0) > self.available:
            return False
        for each, count in zip(pages, missing, strict=True):
            if count > 0:
                each += self.take(count)
        return True

    def share(self, pages: Sequence[int]) -> None:
        """Add a holder to pages that `find` has found."""
        for page in pages:
            self._holders[page] += 1
            self.evictable.pop(page, None)

    def release(self, pages: Sequence[int]) -> None:
        """Remove a holder from the pages of a text. The last pages are evicted first: without the first they are useless."""
        for page in reversed(pages):
            self._holders[page] -= 1
            assert self._holders[page] >= 0
            if self._holders[page] == 0:
                if page in self._key_of:
                    self.evictable[page] = None
                else:
                    self._free.append(page)

    def clear(self) -> None:
        """Free the cached pages that no request holds."""
        self.release(self.take(self.available))

    def find(self, token_ids: Sequence[int]) -> tuple[list[int], list[bytes]]:
        """Return the cached pages of the longest prefix of a text, in whole pages, and their keys."""
        keys = list(takewhile(self._page_of.__contains__, self.keys_of(token_ids, len(token_ids))))
        return [self._page_of[key] for key in keys], keys

    def keys_of(self, token_ids: Sequence[int], end: int, *, known: Sequence[bytes] = ()) -> Iterator[bytes]:
        """Yield the keys of a text's full pages up to `end`, after those of the first pages, which are `known`. A key is the
        hash of its page's tokens and of the key of the page before it, so of all tokens up to its end."""
        key = known[-1] if known else b""
        for start in range(len(known) * self.page_tokens, end - self.page_tokens + 1, self.page_tokens):
            tokens = array("q", token_ids[start : start + self.page_tokens])
            key = blake2b(key + tokens.tobytes(), digest_size=16).digest()
            yield key

    def cache_page(self, page: int, key: bytes) -> None:
        """Cache a held page whose tokens are all committed, unless a page with the same key is cached."""
        if key not in self._page_of and page not in self._key_of:
            self._page_of[key], self._key_of[page] = page, key
