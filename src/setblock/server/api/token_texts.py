"""The texts and bytes of single tokens, and their places in an answer."""

import json
import re
from collections.abc import Sequence
from functools import cache
from typing import Any

from transformers import PreTrainedTokenizerBase
from transformers.convert_slow_tokenizer import bytes_to_unicode

from setblock.decoding.answer.detokenize import AnswerText

_BYTES = {character: byte for byte, character in bytes_to_unicode().items()}


class TokenTexts:
    """The texts of the tokens of one vocabulary, special tokens included."""

    def __init__(self, tokenizer: PreTrainedTokenizerBase) -> None:
        self._tokenizer = tokenizer
        self._added: dict[int, str] = {
            token_id: each.content for token_id, each in tokenizer.added_tokens_decoder.items()
        }
        decoder = getattr(getattr(tokenizer, "backend_tokenizer", None), "decoder", None)
        self._steps = [] if decoder is None else _steps(json.loads(decoder.__getstate__()))
        self._kinds = {step["type"] for step in self._steps}
        self.bytes, self.text = cache(self._bytes), cache(self._text)

    def name(self, token_id: int) -> str:
        """Return a token as OpenAI's completions name it: its text, or its bytes if these are no whole characters."""
        found = self.bytes(token_id)
        try:
            return found.decode()
        except UnicodeDecodeError:
            return "bytes:" + "".join(f"\\x{byte:02x}" for byte in found)

    def names(self, token_ids: Sequence[int]) -> list[str]:
        """Return the names of different tokens, all different: a token with the same text as one before it is named by its
        id."""
        names: dict[str, int] = {}
        for token_id in token_ids:
            names[f"token_id:{token_id}" if self.name(token_id) in names else self.name(token_id)] = token_id
        return list(names)

    def offsets(self, token_ids: Sequence[int], text: str) -> list[int]:
        """Return where the text of each token of an answer begins in the answer's `text`, in characters. For the second half of
        a character that is where the character begins. For a token that `text` leaves out it is where the token would be."""
        answer, offsets = AnswerText(self._tokenizer), []
        for token_id in token_ids:
            own, start = self.text(token_id), len(answer.text)
            answer.read([token_id])
            if answer.text[start:].endswith(own):  # there may be an incomplete character before it
                start = len(answer.text) - len(own)
            offsets.append(min(start, len(text)))
        return offsets

    def _text(self, token_id: int) -> str:
        """Return the text of a token, half a character as U+FFFD."""
        return self.bytes(token_id).decode(errors="replace")

    def _bytes(self, token_id: int) -> bytes:
        """Return the bytes of a token."""
        if token_id in self._added:
            return self._added[token_id].encode()
        token: str | None = self._tokenizer.convert_ids_to_tokens(token_id)
        if token is None:  # models may have more ids than their tokenizers
            return b""
        if "ByteLevel" in self._kinds:
            return bytes(_BYTES[each] for each in token) if _BYTES.keys() >= {*token} else token.encode()
        if "ByteFallback" in self._kinds and re.fullmatch("<0x[0-9A-F]{2}>", token):
            return bytes([int(token[1:-1], 16)])
        if not self._kinds & {"Metaspace", "Replace"}:
            return str(self._tokenizer.decode([token_id])).encode()
        for step in self._steps:
            if step["type"] == "Metaspace":
                token = token.replace(step["replacement"], " ")
            elif step["type"] == "Replace" and "String" in step["pattern"]:
                token = token.replace(step["pattern"]["String"], step["content"])
        return token.encode()


def _steps(decoder: dict[str, Any]) -> list[dict[str, Any]]:
    """Return the steps of a tokenizer's decoder, one after the other."""
    if decoder["type"] != "Sequence":
        return [decoder]
    return [step for each in decoder["decoders"] for step in _steps(each)]
