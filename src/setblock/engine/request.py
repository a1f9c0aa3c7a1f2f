"""Define a request to the engine."""

from collections.abc import Sequence
from dataclasses import dataclass

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
