"""A reader of growing answers that separates calls of tools from text."""

import re
from collections.abc import Generator, Iterator, Sequence
from dataclasses import dataclass
from typing import Literal

from setblock.structure.call_grammar import Calls

_IS_MARK = "\ud800-\udfff"
_SPACE = " \t\r\n"


@dataclass(frozen=True)
class Piece:
    """A piece of an answer: of its `text`, or of a call, numbered from 0, with its `name` or its next `arguments`."""

    kind: Literal["text", "name", "arguments"]
    text: str
    call: int = 0


class CallReader:
    """A reader that separates calls from text as marked text comes."""

    def __init__(self, calls: Calls, *, whole: bool = False) -> None:
        """`whole`: return the pieces of a call once it is complete, instead of as they come."""
        self.complete = 0  # number of complete calls
        self.is_cut = False  # whether the answer ended within a call
        self._calls, self._form, self._holds_calls = calls, calls.form, whole
        self._buffer = ""  # marked text that is not read yet
        self._leading: str | None = ""  # white space at the beginning of the answer; None once something follows it
        self._is_final = self._is_stopped = False
        self._pieces = self._separated()

    def read(self, marked: str, *, final: bool = False, is_stopped: bool = False) -> list[Piece]:
        """Append marked text, and return the pieces that became certain.

        Args:
            marked: text with marks, as `CallForm.marked` returns it.
            final: whether nothing more will come.
            is_stopped: whether the answer ends in a stop text. An incomplete call before it is text. If the answer ends at its
                limit instead, an incomplete call is the beginning of a call.
        """
        self._buffer, self._is_final, self._is_stopped = self._buffer + marked, final, is_stopped
        pieces = [*iter(lambda: next(self._pieces), None)]
        if final:
            pieces.append(Piece("text", self._leading or ""))
        return [piece for piece in pieces if piece.text]

    def _separated(self) -> Iterator[Piece | None]:
        """Yield pieces, and None when more text is needed."""
        raw, before = yield from self._to_mark() if self._form.mark else self._to_head()
        tails = [self._form.marked(each) for each in (self._form.after, self._calls.again) if each is not None]
        tail = None
        while tail is None or tail != tails[0]:
            tail = yield from self._call(raw, before, tails)
            if tail is None:
                break
            raw, before = tail, ""
        while True:
            yield self._text(len(self._buffer))
            yield None

    def _call(self, raw: str, before: str, tails: list[str]) -> Generator[Piece | None, None, str | None]:
        """Read a call. `raw` is what was read of it already, and `before` is what comes before its name. Return which of
        `tails` follows, or None if the call is not complete."""
        heads = {f"{before}{name}{self._form.marked(self._form.between)}": name for name in self._calls.parameters}
        head = yield from self._one_of(list(heads))
        pieces = [] if head is None else [Piece("name", heads[head], self.complete)]
        raw, is_over, end_of_object = raw + (head or ""), head is None, _EndOfObject()
        while not is_over:
            end, is_over = end_of_object.find(self._buffer)
            pieces.append(Piece("arguments", self._take(end), self.complete))
            raw += pieces[-1].text
            if not self._holds_calls:
                yield from self._call_pieces(pieces)
                pieces = []
            if not is_over:
                if self._is_final:
                    break
                yield None
        tail = (yield from self._one_of(tails)) if head is not None and is_over else None
        if tail is None:
            self.is_cut = True
        if head is None or (tail is None and self._holds_calls and self._is_stopped):
            self._buffer, pieces = raw + self._buffer, []
        elif tail is None:
            self._buffer = ""  # it has only the beginning of a tail
        else:
            self.complete += 1
        yield from self._call_pieces(pieces)
        return tail

    def _to_mark(self) -> Generator[Piece | None, None, tuple[str, str]]:
        """Read up to the mark. Return the mark, and what comes between it and the name."""
        mark, before = self._form.marked(self._form.mark or ""), self._form.marked(self._form.before)
        lead, _, rest = before.partition(mark)
        while (place := self._buffer.find(mark)) < 0:
            yield self._text(len(self._buffer) - self._partial(lead + mark, mark))
            yield None
        if self._buffer[:place].endswith(lead):
            place -= len(lead)
        yield self._text(place)
        return self._take(self._buffer.index(mark) + len(mark)), rest

    def _to_head(self) -> Generator[Piece | None, None, tuple[str, str]]:
        """Read up to a call at the beginning of the answer or after its reasoning. Return what was read of the call, and what
        comes before the name."""
        form, end = self._form, self._form.marked(self._form.reasoning_end or "")
        heads = [form.before + name + form.between for name in self._calls.parameters]
        may_begin = may_continue = True
        while True:
            if may_begin:
                spaces = len(self._buffer) - len(self._buffer.lstrip(_SPACE))
                rest = self._buffer[spaces:]
                if any(map(rest.startswith, heads)):
                    yield self._text(spaces)
                    return "", form.before
                if not self._is_final and any(head.startswith(rest) for head in heads):
                    yield None
                    continue
            place = self._buffer.find(end) if end and may_continue else -1
            may_begin = place >= 0
            length = place + len(end) if may_begin else len(self._buffer) - self._partial(end)
            if end not in self._form.marks.values() and re.search(f"[{_IS_MARK}]", self._buffer[:length]):
                may_begin = may_continue = False  # the grammar has no special token before an end that is text
            yield self._text(length)
            if not may_begin:
                yield None

    def _one_of(self, texts: Sequence[str]) -> Generator[Piece | None, None, str | None]:
        """Read the longest of these texts that comes next, and return it. None if none comes."""
        while True:
            found = [each for each in texts if self._buffer.startswith(each)]
            may_come = not self._is_final and any(each.startswith(self._buffer) for each in texts if each not in found)
            if not may_come:
                longest = max(found, key=len, default=None)
                self._take(len(longest or ""))
                return longest
            yield None

    def _partial(self, *texts: str) -> int:
        """Return how many characters at the end of the buffer may be the beginning of one of these texts."""
        begun = (n for each in texts for n in range(1, len(each)) if self._buffer.endswith(each[:n]))
        return 0 if self._is_final else max(begun, default=0)

    def _call_pieces(self, pieces: list[Piece]) -> list[Piece]:
        """Return the pieces of a call. An answer with nothing but white space before them has no text."""
        self._leading = None if pieces else self._leading
        return pieces

    def _text(self, length: int) -> Piece:
        """Read this many characters, and return them as a piece of text. White space at the beginning of an answer is held
        until other text comes."""
        text = self._form.shown(self._take(length))
        if self._leading is None:
            return Piece("text", text)
        text = self._leading + text
        self._leading = None if text.strip() else text
        return Piece("text", text if self._leading is None else "")

    def _take(self, length: int) -> str:
        read, self._buffer = self._buffer[:length], self._buffer[length:]
        return read


class _EndOfObject:
    """A search for the end of a JSON object, as its text comes."""

    def __init__(self) -> None:
        self._depth, self._in_string, self._is_escaped = 0, False, False

    def find(self, text: str) -> tuple[int, bool]:
        """Return how many characters of the next text belong to the object, and whether the object ends there."""
        for place, each in enumerate(text):
            if self._in_string:
                self._in_string, self._is_escaped = (
                    self._is_escaped or each != '"',
                    each == "\\" and not self._is_escaped,
                )
                continue
            self._in_string, self._depth = each == '"', self._depth + (each in "{[") - (each in "}]")
            if self._depth == 0:
                return place + 1, True
        return len(text), False
