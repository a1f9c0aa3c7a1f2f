"""The text of an answer, from its tokens as they become final (`AnswerText`)."""

from collections.abc import Sequence

from transformers import PreTrainedTokenizerBase

from setblock.decoding.answer.stop_strings import first_stop, length_begun
from setblock.decoding.constraints.constraint import TokenConstraint
from setblock.locks import lock_of

_REPLACEMENT = ("\ufffd", "\u00ef\u00bf\u00bd", "<0xEF><0xBF><0xBD>")
"""The spellings of the character U+FFFD in tokenizers of characters, of bytes, and of both. Half a character is decoded
to it, too."""

_MOST_OF_CHARACTER = 4  # tokens of a character at most: it has at most so many bytes
_LONG_WINDOW = 8  # tokens that are decoded again with the next ones, at most, unless a pass made more


class AnswerText(TokenConstraint):
    """An answer's text, built token by token: append-only, whole characters only, cut before a stop string.

    Where it stops doesn't depend on how many tokens come at once.
    """

    def __init__(
        self, tokenizer: PreTrainedTokenizerBase, *, stop: Sequence[str] = (), min_new_tokens: int = 0
    ) -> None:
        """`stop`: stop strings, which are ignored in the first `min_new_tokens` tokens."""
        self._text = ""
        self._tokenizer, self._stop, self._min_new_tokens = tokenizer, tuple(stop), min_new_tokens
        self.is_lazy = not self._stop
        self._token_ids: list[int] = []
        # How many tokens `_text` has, the first token of the window in which the next ones are decoded, and the window's text
        self._read = self._window = 0
        self._known = ""
        self._given = 0

    def read(self, token_ids: Sequence[int], *, final: bool = False) -> None:
        """Read more tokens, up to a stop string. `final`: no more will come, so half a character is decoded, too."""
        if (
            not self._stop
        ):  # they are decoded when the text is asked for: many tokens at once take hardly longer than one
            self._token_ids += token_ids
        for token_id in token_ids if self._stop else ():  # the token that completes a stop string ends the answer
            if self.stop_length is not None:
                return
            self._token_ids.append(token_id)
            self._decode(final=False)
        if final and self.stop_length is None:
            self._decode(final=True)

    @property
    def text(self) -> str:
        """The text of the tokens read so far, without half a character at its end."""
        if not self._stop and self._read < len(self._token_ids):
            self._decode(final=False)
        return self._text

    def take(self, *, final: bool = False) -> str:
        """Return the text that became certain since the last call.

        Half a character and the possible beginning of a stop string are held back, unless nothing more will come
        (`final`).
        """
        if final:
            self.read([], final=True)
        is_whole = final or not self._stop or self.stop_length is not None
        text = self.text
        certain = len(text) - (0 if is_whole else length_begun(text, self._stop))
        piece = text[self._given : certain]
        self._given = max(certain, self._given)
        return piece

    def _decode(self, *, final: bool) -> None:
        # Some tokenizers write a token differently at the beginning of a text, so the last few are decoded again
        with lock_of(self._tokenizer):  # the tokenizer must not be switched while it decodes
            count = len(self._token_ids)
            for end in range(count, max(self._read, count - _MOST_OF_CHARACTER), -1):
                text = self._window_text(end)
                if final or not text.endswith("\ufffd") or self._is_replacement(end):
                    break
            else:  # half a character
                return
            if len(text) <= len(self._known):
                return
            already = len(self._text)
            self._text += text[len(self._known) :]
            if end - self._window > _LONG_WINDOW:
                self._window = self._read
                text = self._window_text(end)
        self._known, self._read = text, end
        if not self._stop or len(self._token_ids) <= self._min_new_tokens:
            return
        if (place := first_stop(self._text, self._stop, already=already)) is not None:
            self._text, self.stop_length = self._text[:place], len(self._token_ids)

    def _window_text(self, end: int) -> str:
        # What is cleaned up, such as a space before a full stop, would depend on which tokens are decoded together
        text: str = self._tokenizer.decode(
            self._token_ids[self._window : end], skip_special_tokens=True, clean_up_tokenization_spaces=False
        )
        return text

    def _is_replacement(self, end: int) -> bool:
        tokens = self._tokenizer.convert_ids_to_tokens(self._token_ids[max(0, end - _MOST_OF_CHARACTER) : end])
        # A model may have more token ids than its tokenizer, which are no text
        return "".join(token or "" for token in tokens).endswith(_REPLACEMENT)
