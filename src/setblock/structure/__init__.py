"""Define structured output: the form of an answer, and which tokens may come next in it (docs/structured-output.md).

Knows notations of forms and tokenizers. Knows nothing of models, blocks or rows.
"""

from setblock.structure.kinds import Choice, Grammar, JsonObject, JsonSchema, Regex, Structure

__all__ = ["Choice", "Grammar", "JsonObject", "JsonSchema", "Regex", "Structure"]
