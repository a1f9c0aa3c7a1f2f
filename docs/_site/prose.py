"""Measure the prose of a page: the length of its sentences, and words that pages do not use.

    python docs/_site/prose.py README.md docs/exact.md

Tables, code, headings and comments are left out. `tests/test_prose.py` holds pages to the limits.
"""

import re
import sys
from dataclasses import dataclass
from pathlib import Path

LONGEST = 35
MEAN = 17
WORDS = [
    tuple(line.split("\t"))
    for line in (Path(__file__).parent / "words.txt").read_text(encoding="utf-8").splitlines()
    if not line.startswith("#")
]
"""Pairs of a regular expression and what to write instead."""

NOT_PROSE = re.compile(r"^```.*?^```$|<!--.*?-->|^\|.*?$|^#.*?$|^    .*?$|^---$", re.MULTILINE | re.DOTALL)
ITEM = re.compile(r"^\s*(?:[-*]|\d+\.)\s+", re.MULTILINE)
ABBREVIATION = re.compile(r"\b(e\.g|i\.e|et al|eqs?|vs|approx|no|cf|fig)\.", re.IGNORECASE)
END = re.compile(r"(?<=[.!?])[)\"*_]*\s+(?=[\"(*_`\[]*[A-Z0-9`\[])")


@dataclass(frozen=True)
class Prose:
    """Hold what a page says, sentence by sentence."""

    sentences: tuple[str, ...]

    @property
    def lengths(self) -> list[int]:
        """Return the words of each sentence."""
        return [len(words(sentence)) for sentence in self.sentences]

    @property
    def mean(self) -> float:
        """Return the mean number of words in a sentence."""
        return sum(self.lengths) / max(1, len(self.sentences))

    @property
    def too_long(self) -> list[str]:
        """Return the sentences of more words than a reader keeps in mind."""
        return [sentence for sentence in self.sentences if len(words(sentence)) > LONGEST]

    @property
    def avoided(self) -> list[str]:
        """Return the words found that pages do not use, each with what to write instead."""
        return [
            f"{match[0]!r} (write: {instead}) in: {sentence}"
            for sentence in self.sentences
            for pattern, instead in WORDS
            for match in re.finditer(pattern, sentence, re.IGNORECASE)
        ]


def prose_of(page: str) -> Prose:
    """Return the prose of a Markdown page."""
    text = NOT_PROSE.sub("\n", page)
    text = re.sub(r"!?\[([^\]]*)\]\([^)]*\)", r"\1", text)  # a link is its text
    text = re.sub(r"`[^`]*`", "`code`", text)
    text = ITEM.sub("\n\n", text)
    sentences: list[str] = []
    for paragraph in re.split(r"\n\s*\n", text):
        line = ABBREVIATION.sub(r"\1", " ".join(paragraph.split()))
        sentences += [sentence for sentence in END.split(line) if len(words(sentence)) > 1]
    return Prose(tuple(sentences))


def words(sentence: str) -> list[str]:
    """Return what counts as a word: whatever has a letter or a digit."""
    return [word for word in sentence.split() if re.search(r"\w", word)]


def main() -> None:
    """Print a line for each page, then what is wrong with it."""
    total: list[str] = []
    for name in sys.argv[1:]:
        page = Path(name).read_text(encoding="utf-8")
        prose = prose_of(page)
        total += prose.sentences
        print(
            f"{name}: {len(page.split())} words, {len(prose.sentences)} sentences of {prose.mean:.1f} words, "
            f"longest {max(prose.lengths, default=0)}, {len(prose.too_long)} over {LONGEST}, {len(prose.avoided)} avoided words"
        )
        if len(sys.argv) == 2:
            print(*[f"  {len(words(each))} words: {each}" for each in prose.too_long], sep="\n")
            print(*[f"  {each}" for each in prose.avoided], sep="\n")
    together = Prose(tuple(total))
    print(f"together: {len(total)} sentences of {together.mean:.1f} words, {len(together.too_long)} over {LONGEST}")


if __name__ == "__main__":
    main()
