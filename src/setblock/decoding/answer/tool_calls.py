"""The tool calls in an answer, read from its tokens as they come."""

from collections.abc import Sequence

from transformers import PreTrainedTokenizerBase

from setblock.decoding.answer.detokenize import AnswerText
from setblock.decoding.answer.generation import FinishReason
from setblock.structure.call_form import OTHER
from setblock.structure.call_grammar import Calls
from setblock.structure.call_reader import CallReader, Piece


class AnswerReader:
    """A reader that separates tool calls from text as the tokens of an answer come. Calls are marked by special tokens,
    not by their text."""

    def __init__(self, calls: Calls, tokenizer: PreTrainedTokenizerBase, *, stop: Sequence[str] = ()) -> None:
        """`stop`: the stop texts of the request. With any, a call is returned only once it is complete: an answer that
        a stop text ends within a call doesn't make the call."""
        self._tokenizer, self._marks = tokenizer, calls.form.marks
        self._text, self._given = AnswerText(tokenizer, stop=stop), 0
        # The special tokens in the text that has not been read yet: start, end, mark
        self._places: list[tuple[int, int, str]] = []
        self._reader = CallReader(calls, whole=bool(stop))

    @property
    def has_called(self) -> bool:
        """Whether the answer made calls, and was not cut within one."""
        return self._reader.complete > 0 and not self._reader.is_cut

    def read(self, token_ids: Sequence[int], *, finish_reason: FinishReason | None = None) -> list[Piece]:
        """Return the pieces that became certain. `token_ids`: the next tokens, without an end-of-text. `finish_reason`:
        if given, no more will come."""
        run: list[int] = []
        for token_id in token_ids:
            if token_id in self._marks:
                self._text.read(run)
                self._read_mark(token_id)
                run = []
            else:
                run.append(token_id)
        self._text.read(run)
        is_final = finish_reason is not None
        marked = self._marked(self._text.take(final=is_final))
        return self._reader.read(marked, final=is_final, is_stopped=finish_reason == "stop")

    def _read_mark(self, token_id: int) -> None:
        if self._text.stop_length is not None:
            return
        self._text.read([token_id])
        shown, end = self._tokenizer.decode([token_id], skip_special_tokens=True), len(self._text.text)
        if self._text.stop_length is None or not shown:  # otherwise it completed a stop text
            self._places.append((end - len(shown), end, self._marks[token_id]))

    def _marked(self, text: str) -> str:
        """Return the next text with marks in place of the tokens of calls. Other special tokens get a mark before their
        text."""
        marked, place, certain = "", self._given, self._given + len(text)
        while self._places and self._places[0][1] <= certain:
            start, end, mark = self._places.pop(0)
            marked += self._text.text[place:start] + mark
            place = start if mark == OTHER else end
        self._given = certain
        return marked + self._text.text[place:certain]
