"""Define a request to the engine, and what a pass does to it."""

from collections.abc import Sequence
from dataclasses import dataclass

from setblock.decoding.answer.generation import Generation, PassEvent
from setblock.decoding.settings.table import DecodingSettings
from setblock.errors import SetBlockError


class QueueFull(SetBlockError):  # noqa: N818  # a state of the engine, and nothing wrong with the request
    """Report that the queue is full. The same request can be submitted again later."""


@dataclass(frozen=True)
class Request:
    """Ask for one answer. Several samples of a prompt are several requests.

    Attributes:
        id: the name of the request, unique among unfinished requests.
        prompt: token ids.
        settings: how to decode, with n = 1.
    """

    id: str
    prompt: Sequence[int]
    settings: DecodingSettings


@dataclass(frozen=True)
class Progress:
    """Hold the result of one pass for one request.

    Attributes:
        id: the id of the request.
        text: the text that became final; may be empty.
        event: the tokens that the pass revealed. None if it fed only a part of the prompt, or the request was cancelled.
        generation: the finished answer, in a request's last progress only.
    """

    id: str
    text: str
    event: PassEvent | None
    generation: Generation | None
