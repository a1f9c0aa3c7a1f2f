"""Compile a form for a tokenizer to a grammar, keep it for the next request, and follow an answer through it.

No text that
a matcher receives is checked: only tokens that may come are given to it.
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
"""Compiled grammars of a tokenizer; the one that was not used for longest is given up first. Each takes at most the memory that
the sandbox allows, and ten megabytes that come with its answers."""

_grammars: "WeakKeyDictionary[PreTrainedTokenizerBase, Grammars]" = WeakKeyDictionary()
_lock = Lock()


def grammars_of(tokenizer: PreTrainedTokenizerBase) -> "Grammars":
    """Return a tokenizer's compiled grammars. Raise `SetBlockError` if llguidance is not installed, or can't read it."""
    with _lock:
        if tokenizer not in _grammars:
            _grammars[tokenizer] = Grammars(tokenizer)
        return _grammars[tokenizer]


@dataclass(frozen=True, eq=False)
class Compiled:
    """A compiled form. While someone holds it, it is found again without being compiled."""

    matcher: "LLMatcher"  # before its first token


class Grammars:
    """Keep compiled grammars over one vocabulary. May be asked from several threads."""

    def __init__(self, tokenizer: PreTrainedTokenizerBase) -> None:
        check_installed("structured output", "llguidance", extra="structured")
        from llguidance import LLTokenizer

        with lock_of(tokenizer), prefixed("structured output is not possible with this model's tokenizer", ValueError):
            text = _tokenizer_json(tokenizer)
            self.vocabulary = LLTokenizer(text, eos_token=tokenizer.eos_token_id)
        self._added = {each.content: token_id for token_id, each in tokenizer.added_tokens_decoder.items()}
        self._sandbox = Sandbox(text, tokenizer.eos_token_id)
        self._held: WeakValueDictionary[Structure, Compiled] = WeakValueDictionary()
        self._kept = lru_cache(KEPT)(self._of)

    def compiled(self, structure: Structure) -> Compiled:
        """Return a form compiled, or raise `ParameterError` if it is not valid, too complex, or one that no text of this
        vocabulary satisfies. What is refused leaves nothing behind."""
        return self._kept(structure)

    def known(self, structure: Structure) -> Compiled | None:
        """Return a form that is compiled already."""
        return None if self._held.get(structure) is None else self._kept(structure)

    def tried(self, structure: Structure) -> Compiled:
        """Return a form compiled, without a trial here: another process has tried it with the same tokenizer. While the caller
        holds it, `matcher` finds it."""
        if (held := self._held.get(structure)) is None:
            held = self._held[structure] = Compiled(compile_form(self.vocabulary, structure))
        return held

    @cached_property
    def special(self) -> dict[str, int]:
        """Return the added tokens that no text of a grammar is made of, with their ids: those that the tokenizer calls special,
        and others that look like it, such as `<tool_call>`."""
        is_special = self.vocabulary.is_special_token
        return {token: token_id for token, token_id in self._added.items() if is_special(token_id)}

    def matcher(self, structure: Structure) -> "LLMatcher":
        """Return a matcher before its first token, the caller's own. Errors are those of `compiled`."""
        return self.compiled(structure).matcher.deep_copy()

    def _of(self, structure: Structure) -> Compiled:
        if (held := self._held.get(structure)) is not None:
            return held
        if fault := self._sandbox.fault(structure):
            raise ParameterError(fault)
        return self.tried(structure)


def _tokenizer_json(tokenizer: PreTrainedTokenizerBase) -> str:
    """Return a tokenizer as the text of a `tokenizer.json`, with its added tokens; without padding and truncation."""
    if not isinstance(tokenizer, PreTrainedTokenizerFast):
        raise ValueError("only fast tokenizers are supported")
    backend = copy(tokenizer.backend_tokenizer)
    backend.no_padding()
    backend.no_truncation()
    text: str = backend.to_str()
    return text


class Matcher:
    """Walk through a grammar, back too."""

    def __init__(self, structure: Structure, tokenizer: PreTrainedTokenizerBase, *, ends: Sequence[int]) -> None:
        """Take a form's grammar; errors are those of `Grammars`. `ends` are the token ids that end an answer."""
        grammars = grammars_of(tokenizer)
        self._matcher = grammars.matcher(structure)
        self._ends, self._own_ends = list(ends), grammars.vocabulary.eos_tokens
        self._beyond = 0  # tokens that were received from the one on that ended the answer

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
        """Say what may come next: `allowed` [V] bool on the CPU is written to. An end is, where the text may end."""
        can_end = self._matcher.is_accepting()
        bits = np.frombuffer(self._matcher.compute_bitmask(), dtype=np.uint8)
        found = torch.from_numpy(np.unpackbits(bits, count=min(len(allowed), 8 * len(bits)), bitorder="little")).bool()
        allowed.fill_(False)
        allowed[: len(found)] = found
        allowed[self._own_ends] = False  # of a text that can't be finished, the engine allows these
        if can_end:
            allowed[self._ends] = True
