"""Turn the tools of a chat into what the prompt and the answer need.

Knows OpenAI's words. Knows nothing of templates or grammars but that there are such.
"""

import json
from collections.abc import Sequence
from typing import Annotated, Any, Literal

from pydantic import Field

from setblock.errors import SetBlockError
from setblock.section import Section
from setblock.server.http.errors import bad_request
from setblock.structure.calls import CallForm
from setblock.structure.kinds import Grammar, JsonSchema, close

MAX_TOOLS = 128


class Function(Section):
    """Describe a function that may be called. Its arguments are held to the schema, strict or not."""

    name: Annotated[str, Field(pattern=r"^[a-zA-Z0-9_-]{1,64}$")]
    description: str | None = None
    parameters: dict[str, Any] | None = None
    strict: bool | None = None


class Tool(Section):
    """Describe a tool."""

    type: Literal["function"]
    function: Function


class Named(Section):
    """Hold the name of a function."""

    name: str


class NamedTool(Section):
    """Name the one tool that is to be called."""

    type: Literal["function"]
    function: Named


class CalledFunction(Section):
    """Hold a function with arguments, which are JSON in a text."""

    name: str
    arguments: str


class ToolCall(Section):
    """Hold a call in a message that comes back."""

    id: str | None = None
    type: Literal["function"] = "function"
    function: CalledFunction
    index: int | None = None

    def plain(self) -> dict[str, Any]:
        """Return the call as chat templates take it, with the arguments as an object."""
        try:
            arguments = json.loads(self.function.arguments or "{}")
        except (ValueError, RecursionError) as error:
            raise bad_request("arguments of a tool call must be JSON", param="messages") from error
        return {"id": self.id, "type": self.type, "function": {"name": self.function.name, "arguments": arguments}}


ToolChoice = Literal["none", "auto", "required"] | NamedTool


def callable_tools(tools: Sequence[Tool] | None, choice: ToolChoice | None) -> Sequence[Tool]:
    """Return the tools that an answer may call, or raise `ApiError` if the choice is among tools that are not there."""
    if not tools and choice not in (None, "none", "auto"):
        raise bad_request("tool_choice needs tools", param="tool_choice")
    return tools if tools and choice != "none" else ()


def calls_grammar(form: CallForm, tools: Sequence[Tool], choice: ToolChoice | None, *, parallel: bool) -> Grammar:
    """Return what an answer with tools is held to. Raise `ApiError` for a schema that is not valid, or a wrong name."""
    parameters: dict[str, Any] = {}
    for number, tool in enumerate(tools):
        name, schema = tool.function.name, tool.function.parameters
        if name in parameters:
            raise bad_request(f"tools must have different names, and {name!r} occurs twice", param="tools")
        try:
            parameters[name] = json.loads(JsonSchema(schema or {"type": "object", "properties": {}}).schema)
            close(parameters[name])
        except SetBlockError as error:
            raise bad_request(f"tools.{number}.function.parameters: {error}", param="tools") from error
    allowed = parameters
    if isinstance(choice, NamedTool):
        wanted = choice.function.name
        if wanted not in parameters:
            told = f"tool_choice must name one of {', '.join(parameters)}, not {wanted!r}"
            raise bad_request(told, param="tool_choice")
        allowed, parallel = {wanted: parameters[wanted]}, False
    try:
        return form.grammar(allowed, required=choice not in (None, "auto"), parallel=parallel)
    except SetBlockError as error:
        raise bad_request(f"tools: {error}", param="tools") from error
