"""Compile a form for a tokenizer to a grammar, keep it for the next request, and follow an answer through it.

Knows the engine of grammars, llguidance, and imports it when it is first needed. Knows nothing of models or rows. No text that
a matcher receives is checked: only tokens that may come are given to it.
"""

import json
from collections.abc import Mapping, Sequence
from functools import cached_property, lru_cache
from threading import Lock
from typing import TYPE_CHECKING, Any
from weakref import WeakKeyDictionary

import numpy as np
import torch
from torch import Tensor
from transformers import PreTrainedTokenizerBase

from setblock.errors import ParameterError, check_installed, prefixed
from setblock.locks import lock_of
from setblock.structure.kinds import WRITTEN, Choice, Grammar, JsonObject, JsonSchema, Regex, Structure, parts

if TYPE_CHECKING:
    from llguidance import LLMatcher

KEPT = 256
"""Compiled grammars of a tokenizer; the one that was not used for longest is given up first."""

_TRIED = 300
"""Parts of a schema that are looked at, one by one, for the one that is at fault."""

_grammars: "WeakKeyDictionary[PreTrainedTokenizerBase, Grammars]" = WeakKeyDictionary()
_lock = Lock()


def grammars_of(tokenizer: PreTrainedTokenizerBase) -> "Grammars":
    """Return a tokenizer's compiled grammars. Raise `SetBlockError` if llguidance is not installed, or can't read it."""
    with _lock:
        if tokenizer not in _grammars:
            _grammars[tokenizer] = Grammars(tokenizer)
        return _grammars[tokenizer]


class Grammars:
    """Keep compiled grammars over one vocabulary. May be asked from several threads."""

    def __init__(self, tokenizer: PreTrainedTokenizerBase) -> None:
        check_installed("structured output", "llguidance", extra="structured")
        from llguidance.hf import from_tokenizer

        with lock_of(tokenizer), prefixed("structured output is not possible with this model's tokenizer", ValueError):
            self.vocabulary = from_tokenizer(tokenizer)
        self._added = {each.content: token_id for token_id, each in tokenizer.added_tokens_decoder.items()}
        self._kept = lru_cache(KEPT)(self._compiled)

    @cached_property
    def special(self) -> dict[str, int]:
        """Return the added tokens that no text of a grammar is made of, with their ids: those that the tokenizer calls special,
        and others that look like it, such as `<tool_call>`."""
        is_special = self.vocabulary.is_special_token
        return {token: token_id for token, token_id in self._added.items() if is_special(token_id)}

    def matcher(self, structure: Structure) -> "LLMatcher":
        """Return a matcher before its first token, the caller's own, or raise `ParameterError` if the form is not valid,
        too complex, or one that no text of this vocabulary satisfies."""
        return self._kept(structure).deep_copy()

    def _compiled(self, structure: Structure) -> "LLMatcher":
        made, fault = self._tried(_grammar_of(structure))
        if fault:
            name = structure.word
            if isinstance(structure, JsonSchema):
                place, fault = self._at_fault(json.loads(structure.schema), fault)
                name = f"schema at {place}"
            raise ParameterError(f"{name} can't be used: {fault}")
        return made

    def _tried(self, grammar: Mapping[str, Any]) -> tuple["LLMatcher", str]:
        """Return a compiled grammar, and what is wrong with it, if anything."""
        from llguidance import LLMatcher, LLParserLimits

        limits = LLParserLimits(max_lexer_states=50_000, max_grammar_size=200_000, verbose_errors=False)
        made = LLMatcher(self.vocabulary, json.dumps({"grammars": [grammar]}), log_level=0, limits=limits)
        if not made.is_error():
            made.compute_bitmask()
        fault = " ".join(made.get_error().removesuffix("<non-verbose/>").split())
        return made, "no text satisfies it" if fault.startswith("NoExtension") else fault

    def _at_fault(self, schema: Any, fault: str) -> tuple[str, str]:
        """Return the innermost part of a schema that is invalid without the rest: its place, and what is wrong with it."""
        place, tried = "$", 0
        shared = {key: schema[key] for key in ("$defs", "definitions") if isinstance(schema, Mapping) and key in schema}
        inner = list(parts(schema, place))
        while inner:
            where, part = inner.pop()
            tried += 1
            if not isinstance(part, Mapping) or tried > _TRIED:
                continue
            _, found = self._tried({"json_schema": {**shared, **part}})
            if found:
                place, fault, inner = where, found, list(parts(part, where))
        return place, fault


def _grammar_of(form: Structure) -> Any:
    """Return a form in llguidance's notation, an item of its `grammars`."""
    from llguidance import LLMatcher

    match form:
        case JsonSchema(text):
            schema = json.loads(text)
            if isinstance(schema, bool):
                schema = {} if schema else {"enum": []}
            return {"json_schema": {**schema, "x-guidance": {**WRITTEN, **schema.get("x-guidance", {})}}}
        case JsonObject():
            return {"json_schema": {"type": "object", "x-guidance": WRITTEN}}
        case Regex(pattern):
            return json.loads(LLMatcher.grammar_from_regex(pattern))["grammars"][0]
        case Choice(texts):
            return {"lark_grammar": f"start: {' | '.join(json.dumps(each, ensure_ascii=False) for each in texts)}"}
        case Grammar(lark):
            return {"lark_grammar": lark}


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
