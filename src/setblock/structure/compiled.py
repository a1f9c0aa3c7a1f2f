"""Compiled forms: a cache of grammars for each tokenizer, and the matcher that follows an answer through one.

A matcher does not check the tokens that it receives: it is given only tokens that it allows. llguidance, which may not be
installed, is imported only when it is first needed.
"""

from collections.abc import Sequence
from copy import copy
from dataclasses import dataclass
from functools import cached_property, lru_cache
from threading import Lock
from typing import TYPE_CHECKING
from weakref import WeakKeyDictionary, WeakValueDictionary

import numpy as np
import torch
from torch import Tensor
from transformers import PreTrainedTokenizerBase, PreTrainedTokenizerFast

from setblock.errors import ParameterError, check_installed, prefixed
from setblock.locks import lock_of
from setblock.structure.compile import compile_form
from setblock.structure.kinds import Structure
from setblock.structure.sandbox import Sandbox

if TYPE_CHECKING:
    from llguidance import LLMatcher

KEPT = 32
"""The most compiled grammars of a tokenizer; the least recently used is evicted first. Each takes at most the memory that the
sandbox allows, and ten megabytes that are added while its answers are decoded."""

_grammars: "WeakKeyDictionary[PreTrainedTokenizerBase, Grammars]" = WeakKeyDictionary()
_lock = Lock()


def grammars_of(tokenizer: PreTrainedTokenizerBase) -> "Grammars":
    """Return a tokenizer's compiled grammars. Raise `SetBlockError` if llguidance is not installed or can't read the
    tokenizer."""
    with _lock:
        if tokenizer not in _grammars:
            _grammars[tokenizer] = Grammars(tokenizer)
        return _grammars[tokenizer]


@dataclass(frozen=True, eq=False)
class Compiled:
    """A compiled form. As long as a reference to it exists, `Grammars` finds it without compiling it again."""

    matcher: "LLMatcher"  # before its first token


class Grammars:
    """The compiled grammars of one vocabulary. Thread-safe."""

    def __init__(self, tokenizer: PreTrainedTokenizerBase) -> None:
        check_installed("structured output", "llguidance", extra="structured")
        from llguidance import LLTokenizer

        with lock_of(tokenizer), prefixed("structured output is not possible with this model's tokenizer", ValueError):
            text = _tokenizer_json(tokenizer)
            self.vocabulary = LLTokenizer(text, eos_token=tokenizer.eos_token_id)
        self._added = {each.content: token_id for token_id, each in tokenizer.added_tokens_decoder.items()}
        self._sandbox = Sandbox(text, tokenizer.eos_token_id)
        self._in_use: WeakValueDictionary[Structure, Compiled] = WeakValueDictionary()
        self._recent = lru_cache(KEPT)(self._of)

    def compiled(self, structure: Structure) -> Compiled:
        """Return a form compiled. Raise `ParameterError` if it is not valid, is too complex, or no text of this vocabulary
        satisfies it; a refused form takes no memory afterwards."""
        return self._recent(structure)

    def known(self, structure: Structure) -> Compiled | None:
        """Return a form if it is compiled already, else None."""
        return None if self._in_use.get(structure) is None else self._recent(structure)

    def tried(self, structure: Structure) -> Compiled:
        """Return a form compiled, without a trial here: another process has tried it with the same tokenizer. While the caller
        holds it, `matcher` finds it."""
        if (found := self._in_use.get(structure)) is None:
            found = self._in_use[structure] = Compiled(compile_form(self.vocabulary, structure))
        return found

    @cached_property
    def special(self) -> dict[str, int]:
        """The added tokens, with their ids, that the text of a grammar never has: those that the tokenizer calls special, and
        others that look like them, such as `<tool_call>`."""
        is_special = self.vocabulary.is_special_token
        return {token: token_id for token, token_id in self._added.items() if is_special(token_id)}

    def matcher(self, structure: Structure) -> "LLMatcher":
        """Return a new matcher of a form, before its first token. Errors are those of `compiled`."""
        return self.compiled(structure).matcher.deep_copy()

    def _of(self, structure: Structure) -> Compiled:
        if (found := self._in_use.get(structure)) is not None:
            return found
        if fault := self._sandbox.fault(structure):
            raise ParameterError(fault)
        return self.tried(structure)


def _tokenizer_json(tokenizer: PreTrainedTokenizerBase) -> str:
    """Return the text of a tokenizer's `tokenizer.json` with its added tokens, without padding and truncation."""
    if not isinstance(tokenizer, PreTrainedTokenizerFast):
        raise ValueError("only fast tokenizers are supported")
    backend = copy(tokenizer.backend_tokenizer)
    backend.no_padding()
    backend.no_truncation()
    text: str = backend.to_str()
    return text


class Matcher:
    """The state of one answer in a grammar. Tokens can be appended and dropped."""

    def __init__(self, structure: Structure, tokenizer: PreTrainedTokenizerBase, *, ends: Sequence[int]) -> None:
        """Compile the form, with the errors of `Grammars`. `ends`: the token ids that end an answer."""
        grammars = grammars_of(tokenizer)
        self._matcher = grammars.matcher(structure)
        self._ends, self._own_ends = list(ends), grammars.vocabulary.eos_tokens
        self._beyond = 0  # number of tokens from the one that ended the answer

    def reveal(self, token_ids: Sequence[int]) -> None:
        """Append these tokens to the text."""
        for token_id in token_ids:
            if self._beyond or token_id in self._ends:
                self._beyond += 1
            else:
                self._matcher.consume_token(token_id)

    def retract(self, count: int) -> None:
        """Drop the last `count` tokens."""
        ended = min(count, self._beyond)
        self._beyond -= ended
        if count > ended:
            self._matcher.rollback(count - ended)

    def fill(self, allowed: Tensor) -> None:
        """Write to `allowed`, [V] bool on the CPU, which tokens may come next. The ends of an answer may, if the text is
        complete."""
        can_end = self._matcher.is_accepting()
        bits = np.frombuffer(self._matcher.compute_bitmask(), dtype=np.uint8)
        found = torch.from_numpy(np.unpackbits(bits, count=min(len(allowed), 8 * len(bits)), bitorder="little")).bool()
        allowed.fill_(False)
        allowed[: len(found)] = found
        allowed[self._own_ends] = False  # llguidance allows these if no text can complete the form
        if can_end:
            allowed[self._ends] = True
