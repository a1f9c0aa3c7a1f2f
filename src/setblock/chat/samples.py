"""Sample chats that chat templates are probed with: a user's turn, tools, an answer that may call them, and a result."""

from collections.abc import Sequence
from typing import Any

NAME, SECOND_NAME, KEY, VALUE = "name_of_a_tool", "second_name", "key_of_it", "value_of_it"
ARGUMENTS = {KEY: VALUE}
"""The arguments of every call."""

_PARAMETERS = {"type": "object", "properties": {KEY: {"type": "string"}}, "required": [KEY]}
_ID = "000000000"

TOOLS: list[dict[str, Any]] = [
    {"type": "function", "function": {"name": name, "description": "-", "parameters": _PARAMETERS}}
    for name in (NAME, SECOND_NAME)
]
USER: dict[str, Any] = {"role": "user", "content": "?"}
RESULT: dict[str, Any] = {"role": "tool", "name": NAME, "tool_call_id": _ID, "content": "-"}


def assistant(
    content: str = "", reasoning: str | None = None, *, calls: Sequence[str] = (), arguments: Any = None
) -> dict[str, Any]:
    """Return an assistant's message with calls of the tools named in `calls`, each with the same `arguments`: an object,
    or JSON in a text."""
    made = [{"type": "function", "id": _ID, "function": {"name": name, "arguments": arguments}} for name in calls]
    thoughts = {} if reasoning is None else {"reasoning_content": reasoning, "reasoning": reasoning}
    return {"role": "assistant", "content": content, **thoughts, **({"tool_calls": made} if made else {})}
