"""Define the result of one pass of the engine for one request."""

from dataclasses import dataclass

from setblock.decoding.answer.generation import Generation, PassEvent


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
