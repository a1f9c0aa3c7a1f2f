"""What a pass of the engine did for one request."""

from dataclasses import dataclass

from setblock.decoding.events import PassEvent
from setblock.decoding.generation import Generation


@dataclass(frozen=True)
class Progress:
    """What one pass added to one request.

    Attributes:
        id: the request's.
        text: text that became certain; may be empty.
        event: what the pass did to the answer; None where it fed but a part of the prompt, or where the request was cancelled.
        generation: the finished answer, on a request's last progress only.
    """

    id: str
    text: str
    event: PassEvent | None
    generation: Generation | None
