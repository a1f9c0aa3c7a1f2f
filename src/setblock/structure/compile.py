"""Compiling a form to a grammar of llguidance, and finding the wrong part of a schema.

Imports no PyTorch, so that the process of `sandbox.py` starts fast. llguidance, which may not be installed, is imported only
when it is first needed.
"""

import json
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from setblock.errors import ParameterError
from setblock.structure.kinds import WRITTEN, Choice, Grammar, JsonObject, JsonSchema, Regex, Structure, parts

if TYPE_CHECKING:
    from llguidance import LLMatcher, LLTokenizer

_TRIED = 300
"""The most parts of a schema that are compiled, one by one, to find the wrong one."""


def compile_form(vocabulary: "LLTokenizer", structure: Structure) -> "LLMatcher":
    """Return a matcher of a form, before its first token. Raise `ParameterError` if the form is not valid, is too complex, or
    no text of this vocabulary satisfies it."""
    made, fault = _tried(vocabulary, _grammar_of(structure))
    if fault:
        name = structure.word
        if isinstance(structure, JsonSchema):
            place, fault = _at_fault(vocabulary, json.loads(structure.schema), fault)
            name = f"schema at {place}"
        raise ParameterError(f"{name} can't be used: {fault}")
    return made


def _tried(vocabulary: "LLTokenizer", grammar: Mapping[str, Any]) -> tuple["LLMatcher", str]:
    """Return a compiled grammar, and what is wrong with it: an empty text if nothing is."""
    from llguidance import LLMatcher, LLParserLimits

    # A state of the lexer takes half a kilobyte. States are added while answers are decoded, and stay as long as the grammar
    limits = LLParserLimits(max_lexer_states=20_000, max_grammar_size=200_000, verbose_errors=False)
    made = LLMatcher(vocabulary, json.dumps({"grammars": [grammar]}), log_level=0, limits=limits)
    if not made.is_error():
        made.compute_bitmask()
    fault = " ".join(made.get_error().removesuffix("<non-verbose/>").split())
    return made, "no text satisfies it" if fault.startswith("NoExtension") else fault


def _at_fault(vocabulary: "LLTokenizer", schema: Any, fault: str) -> tuple[str, str]:
    """Return the place of the innermost part of a schema that is invalid by itself, and what is wrong with it."""
    place, tried = "$", 0
    shared = {key: schema[key] for key in ("$defs", "definitions") if isinstance(schema, Mapping) and key in schema}
    inner = list(parts(schema, place))
    while inner:
        where, part = inner.pop()
        tried += 1
        if not isinstance(part, Mapping) or tried > _TRIED:
            continue
        _, found = _tried(vocabulary, {"json_schema": {**shared, **part}})
        if found:
            place, fault, inner = where, found, list(parts(part, where))
    return place, fault


def _grammar_of(form: Structure) -> Any:
    """Return a form in llguidance's notation: an item of its list `grammars`."""
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
