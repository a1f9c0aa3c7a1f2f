"""The messages and tools of a chat in one form, whether they come from a client of OpenAI's API, a file, or Python."""

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from setblock.errors import SetBlockError, check_length, shown

_MOST_NESTED = 100  # depth of nested lists and objects; real JSON has a few levels


@dataclass(frozen=True)
class Chat:
    """A chat whose messages have a `role` and a text as `content`, and no nulls.

    Attributes:
        messages: as chat templates take them. The arguments of calls are as they were given, JSON in a text or an object
            (`arguments_of`).
        tools: what may be called, as chat templates take it; None where there is nothing.
        not_learned: the indices of the assistant's messages that have `weight` 0, OpenAI's mark for an answer not to learn.
    """

    messages: list[dict[str, Any]]
    tools: list[dict[str, Any]] | None = None
    not_learned: frozenset[int] = frozenset()


def chat_of(messages: Any, tools: Any = None) -> Chat:
    """Return a chat in one form. The messages' `content` is a text, or parts of type `text` as in OpenAI's API, which
    are joined; with `tool_calls` it may be null or missing. Each tool is a function in OpenAI's form. For anything
    else, raise `SetBlockError`, which names the message or the tool."""
    if not isinstance(messages, list | tuple) or not messages:
        raise SetBlockError("messages must be a list of at least one message")
    read = [_message(message, f"message {number}") for number, message in enumerate(messages, start=1)]
    not_learned = set()
    for index, message in enumerate(read):
        weight = message.pop("weight", 1)
        if weight not in (0, 1):
            raise SetBlockError(f"weight of message {index + 1} must be 0 or 1, not {shown(weight)}")
        if weight == 0 and message["role"] == "assistant":
            not_learned.add(index)
    return Chat(read, _tools(tools), frozenset(not_learned))


def text_of(content: Any) -> str:
    """Return the text of a message that is given in parts, or as a text. Raise `SetBlockError` if it is something else."""
    if isinstance(content, list | tuple) and all(_is_text_part(part) for part in content):
        return "".join(part["text"] for part in content)
    if not isinstance(content, str):
        raise SetBlockError("must be a text, or parts of type 'text'; no images, audio or files")
    return content


def arguments_of(call: Mapping[str, Any]) -> dict[str, Any]:
    """Return the arguments of a call in a `Chat` as an object."""
    given = call["function"]["arguments"]
    arguments: dict[str, Any] = json.loads(given or "{}") if isinstance(given, str) else given
    return arguments


def without_nulls(value: Any) -> Any:
    """Return a value without the null keys of its objects, at any depth: Arrow gives each object the keys of all
    others."""
    if isinstance(value, Mapping):
        return {key: without_nulls(each) for key, each in value.items() if each is not None}
    return [without_nulls(each) for each in value] if isinstance(value, list | tuple) else value


def strings_of(value: Any, *, keys: bool = True) -> Iterator[str]:
    """Yield every text inside a value, the keys of objects too."""
    if isinstance(value, str):
        yield value
    elif isinstance(value, Mapping):
        yield from strings_of(list(value) if keys else [], keys=keys)
        yield from strings_of(list(value.values()), keys=keys)
    elif isinstance(value, list | tuple):
        yield from (text for each in value for text in strings_of(each, keys=keys))


def check_text(value: Any, name: str, *, depth: int = 0) -> None:
    """Raise `SetBlockError` for an unpaired UTF-16 surrogate, which no tokenizer takes, or a text too long for one,
    anywhere in a value; and for a value that is nested too deep."""
    if depth > _MOST_NESTED:
        raise SetBlockError(f"{name} must not be nested more than {_MOST_NESTED} deep")
    if isinstance(value, str):
        check_length(name, value)
        try:
            value.encode()
        except UnicodeEncodeError as error:
            place = error.start
            raise SetBlockError(f"{name} must be valid Unicode, and has {value[place]!r} at {place}") from error
    elif isinstance(value, Mapping):
        for pair in value.items():
            for each in pair:
                check_text(each, name, depth=depth + 1)
    elif isinstance(value, list | tuple):
        for each in value:
            check_text(each, name, depth=depth + 1)


def _message(message: Any, where: str) -> dict[str, Any]:
    if not isinstance(message, Mapping) or not isinstance(message.get("role"), str):
        raise SetBlockError(f"{where} must be an object with a role, such as user or assistant, and content")
    read = {key: each for key, each in message.items() if each is not None}
    calls = read.pop("tool_calls", [])
    if not isinstance(calls, list | tuple):
        raise SetBlockError(f"tool_calls of {where} must be a list, not {shown(calls)}")
    if calls:
        read["tool_calls"] = [_call(call, f"a call in {where}") for call in calls]
    if "content" not in read and not calls:
        raise SetBlockError(f"{where} has no content: give it a text")
    try:
        read["content"] = text_of(read.get("content", ""))
    except SetBlockError as error:
        expected = f"must be a text, or parts of type 'text', not {shown(read['content'])}"
        raise SetBlockError(f"content of {where} {expected}") from error
    check_text(read["content"], f"content of {where}")
    check_text(read, where)
    return read


def _call(call: Any, where: str) -> dict[str, Any]:
    function = call.get("function", call) if isinstance(call, Mapping) else None
    if not isinstance(function, Mapping) or not isinstance(function.get("name"), str):
        raise SetBlockError(f"{where} must have a function with a name and arguments, not {shown(call)}")
    arguments = function.get("arguments")
    arguments = {} if arguments is None else arguments
    try:
        read = json.loads(arguments or "{}") if isinstance(arguments, str) else arguments
    except (ValueError, RecursionError):
        read = None
    if not isinstance(read, Mapping):
        raise SetBlockError(f"arguments of {where} must be a JSON object, or a text of one, not {shown(arguments)}")
    check_text(read, f"arguments of {where}")
    others = {} if function is call else {key: each for key, each in call.items() if each is not None}
    return {**others, "type": others.get("type", "function"), "function": {**function, "arguments": arguments}}


def _tools(tools: Any) -> list[dict[str, Any]] | None:
    if isinstance(tools, str):  # as many data sets have them
        try:
            tools = json.loads(tools or "[]")
        except (ValueError, RecursionError) as error:
            raise SetBlockError(f"tools must be a list, or JSON of one, not {shown(tools)}") from error
    if not tools:
        return None
    if not isinstance(tools, list | tuple):
        raise SetBlockError(f"tools must be a list, not {shown(tools)}")
    read = []
    for number, tool in enumerate(tools, start=1):
        function = tool.get("function", tool) if isinstance(tool, Mapping) else None
        if not isinstance(function, Mapping) or not isinstance(function.get("name"), str):
            raise SetBlockError(f"tool {number} must be a function with a name and parameters, not {shown(tool)}")
        check_text(tool, f"tool {number}")
        others = {} if function is tool else {key: each for key, each in tool.items() if each is not None}
        kept = {key: each for key, each in function.items() if each is not None}
        read.append({**others, "type": others.get("type", "function"), "function": kept})
    return read


def _is_text_part(part: Any) -> bool:
    return isinstance(part, Mapping) and part.get("type") == "text" and isinstance(part.get("text"), str)
