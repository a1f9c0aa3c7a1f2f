"""The shapes of records, and reading their content: a chat, a prompt and its completion, or a text.

Chats come in three shapes: with `messages` as in OpenAI's API, with ShareGPT's `conversations`, and with Alpaca's
`instruction` and `output`.
"""

import json
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from itertools import chain
from typing import Any

from setblock.chat.messages import chat_of
from setblock.data.section import SourceSection
from setblock.data.texts.records import SourceRecord
from setblock.errors import SetBlockError, shown


@dataclass(frozen=True)
class RecordShape:
    """The shape of a record: `messages`, `conversations`, `prompt and completion`, `instruction and output` or `text`,
    and the columns that hold it."""

    name: str
    columns: tuple[str, ...]

    @property
    def is_chat(self) -> bool:
        """Return whether records of this shape are rendered by a chat template."""
        return self.name in ("messages", "conversations", "instruction and output")


_SHAPES = {
    "messages": ("messages",),
    "conversations": ("conversations",),
    "prompt and completion": ("prompt", "completion"),
    "instruction and output": ("instruction", "output"),
    "text": ("text",),
}
"""The usual columns of each shape, by its name. The keys of a section that name other columns are these with
`_column`."""

_ROLES = {"human": "user", "gpt": "assistant"} | {role: role for role in ("user", "assistant", "system", "tool")}
"""The roles by ShareGPT's names for them."""


def shaped(section: SourceSection, records: Iterable[SourceRecord]) -> tuple[RecordShape, Iterator[SourceRecord]]:
    """Return the shape whose columns a section names, or else the one whose usual columns the first record has,
    together with all records. Raise `SetBlockError` if there is no record, or no such shape."""
    records = iter(records)
    first = next(records, None)
    if first is None:
        raise SetBlockError(f"data source {section.source} holds no documents: it must hold at least one")
    records = chain([first], records)
    for name, usual in _SHAPES.items():
        columns = [each for column in usual if (each := getattr(section, f"{column}_column", None)) is not None]
        if len(columns) == len(usual):
            return RecordShape(name, tuple(columns)), records
    if first.fault is not None:  # it shows no columns
        first, records = _first_whole(records)
    found = [RecordShape(name, usual) for name, usual in _SHAPES.items() if first.columns.keys() >= set(usual)]
    if len(found) == 1:
        return found[0], records
    names = ", ".join(first.columns) or "none"
    if found:
        shapes = " as well as ".join(shape.name for shape in found)
        raise SetBlockError(f"{first.where}: its columns hold {shapes}; name the column to learn")
    raise SetBlockError(
        f"{first.where}: no messages, prompt and completion, or text among its columns ({names}); "
        "name them with messages_column, prompt_column and completion_column, or text_column"
    )


def _first_whole(records: Iterator[SourceRecord]) -> tuple[SourceRecord, Iterator[SourceRecord]]:
    """Return the first record without a fault, or the very first if all have one, and all records."""
    seen = []
    for record in records:
        seen.append(record)
        if record.fault is None or len(seen) == 1000:
            break
    whole = next((each for each in seen if each.fault is None), None)
    if whole is None:
        raise SetBlockError(f"{seen[0].where}: {seen[0].fault}")
    return whole, chain(seen, records)


def values_of(record: SourceRecord, shape: RecordShape) -> list[Any]:
    """Return the content of a record: a `Chat`, a prompt and its completion, or a text. Raise `SetBlockError` if a
    column is missing, or has something else."""
    if record.fault is not None:
        raise SetBlockError(record.fault)
    is_list = shape.is_chat and len(shape.columns) == 1
    for column in shape.columns:
        if column not in record.columns:
            raise SetBlockError(f"no column {column!r} among {', '.join(record.columns) or 'none'}")
        if not is_list and not isinstance(record.columns[column], str):
            value = json.dumps(record.columns[column], default=str)[:40]
            raise SetBlockError(f"column {column!r} must hold text, not {value}")
    values = [record.columns[column] for column in shape.columns]
    if not shape.is_chat:
        return values
    messages, is_sharegpt = values[0], False
    if is_list and isinstance(messages, list | tuple):
        is_sharegpt = any(isinstance(each, Mapping) and "from" in each for each in messages)
        messages = [_turn(each) for each in messages]
    elif not is_list:
        requested, answer = values
        more = record.columns.get("input")
        messages = [
            {"role": "user", "content": f"{requested}\n\n{more}" if more else requested},
            {"role": "assistant", "content": answer},
        ]
    if (is_sharegpt or not is_list) and (system := record.columns.get("system")):
        messages = [{"role": "system", "content": system}, *messages]
    return [chat_of(messages, record.columns.get("tools"))]


def _turn(turn: Any) -> Any:
    """Return a ShareGPT turn, with `from` and `value`, as a message; anything else unchanged."""
    if not isinstance(turn, Mapping) or not turn.keys() >= {"from", "value"}:
        return turn
    if turn["from"] not in _ROLES:
        raise SetBlockError(f"from must be one of {', '.join(_ROLES)}, not {shown(turn['from'])}")
    others = {key: each for key, each in turn.items() if key not in ("from", "value")}
    return {**others, "role": _ROLES[turn["from"]], "content": turn["value"]}
