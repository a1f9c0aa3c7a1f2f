"""Define structured output: the form of an answer, and which tokens may come next in it (docs/structured-output.md)."""

from setblock.structure.kinds import Choice, Grammar, JsonObject, JsonSchema, Regex, Structure

__all__ = ["Choice", "Grammar", "JsonObject", "JsonSchema", "Regex", "Structure"]
