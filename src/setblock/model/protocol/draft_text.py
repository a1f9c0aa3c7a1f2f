"""Draft text: texts that a model may write again, such as its earlier answers, with an index of what followed a few tokens.

Method `exact` copies drafts from it. Shapes: M tokens in all, U different runs, B rows.
"""

import gzip
import json
import zlib
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import NamedTuple, Protocol

import numpy as np
import torch
from torch import Tensor
from transformers import PreTrainedTokenizerBase

from setblock.errors import SetBlockError
from setblock.locks import lock_of

DRAFT_TEXT_FILE = "draft_text.jsonl"  # name of such texts in a checkpoint
LONGEST_MATCH = 4  # tokens; earlier places that match this many or more count as equally good
# A run that occurs n times is followed c times by one token. The token's level is c / (n + 1) in this many parts, rounded down
LEVELS = 8
_MULTIPLIER = 6364136223846793005  # of a hash modulo 2^64; two runs with one hash would only make a wrong draft


class Runs(NamedTuple):
    """The different runs of a fixed number of tokens, with the place of each run's most frequent next token."""

    keys: Tensor  # [U] int64, their hashes, ascending
    places: Tensor  # [U] int64, the place of that token after the run; the last one of several
    levels: Tensor  # [U] int64, how often that token follows, in `LEVELS` parts


class Found(NamedTuple):
    """Where the ends of B texts occur in the draft text: how many last tokens match (0 for none), the place of the token after
    them, and that token's level. [B] int64 each."""

    matched: Tensor
    place: Tensor
    level: Tensor


class DraftText(NamedTuple):
    """Texts with an index of their runs of 1 to `LONGEST_MATCH` tokens."""

    token_ids: Tensor  # [M] int64, the texts one after the other, each with an id that ends it
    levels: Tensor  # [M] int64, how often each token follows the `LONGEST_MATCH` before it, in `LEVELS` parts
    runs: tuple[Runs, ...]  # of 1, 2, ... tokens

    def to(self, device: torch.device) -> "DraftText":
        """Return the same on a device."""
        runs = (Runs(*(each.to(device) for each in of_length)) for of_length in self.runs)
        return DraftText(self.token_ids.to(device), self.levels.to(device), tuple(runs))

    def find(self, last: Tensor, length: Tensor) -> Found:
        """Return where the longest ends of B texts occur. `last` [B, LONGEST_MATCH] int64 are their last tokens, the very last
        one first, and `length` [B] int64 is how many of these each text has."""
        key, found = torch.zeros_like(length), Found(*(torch.zeros_like(length) for _ in Found._fields))
        for column, runs in enumerate(self.runs):
            key = _extended(key, last[:, column])
            at = torch.searchsorted(runs.keys, key).clamp(max=len(runs.keys) - 1)
            is_here = (runs.keys[at] == key) & (length > column)
            found = Found(
                torch.where(is_here, column + 1, found.matched),
                torch.where(is_here, runs.places[at], found.place),
                torch.where(is_here, runs.levels[at], found.level),
            )
        return found

    def following(self, place: Tensor, count: int) -> tuple[Tensor, Tensor]:
        """Return the tokens at `place` [B] and after it, and their levels, each [B, count] int64. Past the end of the texts,
        the last ones are repeated."""
        steps = torch.arange(count, device=place.device)
        places = (place[:, None] + steps).clamp(max=len(self.token_ids) - 1)
        return self.token_ids[places], self.levels[places]


def indexed(texts: Iterable[Sequence[int]]) -> DraftText:
    """Return texts of token ids with their index, on the CPU. Raise `SetBlockError` for `LONGEST_MATCH` tokens or fewer."""
    token_ids = torch.tensor([token for text in texts for token in text], dtype=torch.long, device="cpu")
    if len(token_ids) <= LONGEST_MATCH:
        raise SetBlockError(f"draft text must have more than {LONGEST_MATCH} tokens, not {len(token_ids)}")
    positions = torch.arange(len(token_ids) - 1, device="cpu")
    runs, key, levels = list[Runs](), torch.zeros_like(positions), torch.zeros_like(token_ids)
    for length in range(1, LONGEST_MATCH + 1):
        key = _extended(key, token_ids.roll(length - 1)[:-1])
        inside = slice(length - 1, None)
        of_length, levels[length:] = _most_frequent(key[inside], token_ids[1:][inside], positions[inside] + 1)
        runs.append(of_length)
    return DraftText(token_ids, levels, tuple(runs))


class Tokenizing(Protocol):
    """What draft texts need of a `LanguageModel`."""

    tokenizer: PreTrainedTokenizerBase
    end_of_text_ids: tuple[int, ...]  # ids that end an answer

    @property
    def vocab_size(self) -> int:
        """The number of logits of a position."""

    @property
    def device(self) -> torch.device:
        """The device of the draft text."""


def draft_text_of(texts: Iterable[str], model: Tokenizing) -> DraftText:
    """Return texts for a model to copy drafts from: its own earlier answers, or another model's answers to similar prompts.
    Raise `SetBlockError` if they have fewer than `LONGEST_MATCH` + 1 tokens, or tokens outside the model's vocabulary."""
    ends, last = model.end_of_text_ids, model.tokenizer.eos_token_id  # preferred: it ends a turn of a chat
    end = [last] if last in ends else list(ends[:1])
    options = {"add_special_tokens": False, "split_special_tokens": True, "verbose": False}
    with lock_of(model.tokenizer):
        coded = [model.tokenizer(text, **options).input_ids for text in texts]
    greatest = max((token for token_ids in coded for token in token_ids), default=0)
    if greatest >= model.vocab_size:
        raise SetBlockError(
            f"draft text has token {greatest}, and the model knows {model.vocab_size}: its tokenizer has more"
        )
    return indexed([*token_ids, *end] for token_ids in coded).to(model.device)


def read_texts(path: Path) -> Iterator[str]:
    """Yield the texts of a JSON Lines file, which may be compressed by gzip (`.gz`). A line is a text, or an object with the
    text in `text` or `completion`, or with `messages`, of which the assistant's are used. Raise `SetBlockError` if the file
    can't be read, or a line has none of these."""
    try:
        content = gzip.decompress(path.read_bytes()) if path.suffix == ".gz" else path.read_bytes()
        text = content.decode("utf-8-sig")
    except (OSError, EOFError, UnicodeError, zlib.error) as error:
        reason = getattr(error, "strerror", None) or "it must be JSON Lines in UTF-8, or such a file packed by gzip"
        raise SetBlockError(f"can't read draft text {path}: {reason}") from error
    for number, line in enumerate(text.split("\n"), start=1):
        if line.strip():
            yield from _texts_in(line, f"draft text {path}, line {number}")


def _texts_in(line: str, where: str) -> list[str]:
    try:
        found = json.loads(line)
    except (ValueError, RecursionError) as error:
        raise SetBlockError(f"{where} is not JSON") from error
    if isinstance(found, dict) and isinstance(messages := found.get("messages"), list):
        said = [each for each in messages if isinstance(each, dict) and each.get("role") == "assistant"]
        texts = [each.get("content") for each in said if each.get("content") is not None or not each.get("tool_calls")]
    else:
        texts = [found.get("text", found.get("completion")) if isinstance(found, dict) else found]
    if not all(isinstance(text, str) for text in texts):
        raise SetBlockError(f"{where} must be a text, or have a text in text, completion or messages")
    found = [str(text) for text in texts]
    if any("\ud800" <= letter <= "\udfff" for text in found for letter in text):
        raise SetBlockError(f"{where} has half of a character (a lone surrogate)")
    return found


def _extended(key: Tensor, token_ids: Tensor) -> Tensor:
    """Return the hashes of the runs with one more token in front."""
    return key * _MULTIPLIER + token_ids + 1


def _most_frequent(key: Tensor, following: Tensor, places: Tensor) -> tuple[Runs, Tensor]:
    """Return the different keys with the tokens that most often follow, and the level of each token that follows."""
    pair, group, count = torch.unique(key * _MULTIPLIER + following, return_inverse=True, return_counts=True)
    _, of_key, total = torch.unique(key, return_inverse=True, return_counts=True)
    levels = LEVELS * count[group] // (total[of_key] + 1)
    last = torch.zeros_like(pair).scatter_reduce_(0, group, places, "amax")
    of_pair = torch.empty_like(pair).scatter_(0, group, key)
    order = torch.from_numpy(np.lexsort((last, count, of_pair)))  # by key, then by count, then by place
    keys = of_pair[order]
    is_best = torch.ones_like(keys, dtype=torch.bool)
    is_best[:-1] = keys[1:] != keys[:-1]
    of_pairs = torch.empty_like(pair).scatter_(0, group, levels)
    return Runs(keys[is_best], last[order][is_best], of_pairs[order][is_best]), levels
