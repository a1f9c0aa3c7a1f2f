"""Continuous batching: requests that start and end between passes are decoded together (docs/engine.md)."""

from typing import TYPE_CHECKING

from setblock.lazy import lazily

if TYPE_CHECKING:
    from setblock.engine.engine import Engine
    from setblock.engine.limits import EngineLimits
    from setblock.engine.request import Progress, Request

__all__ = ["Engine", "EngineLimits", "Progress", "Request"]

__getattr__, __dir__ = lazily(__name__, {"engine": "Engine", "limits": "EngineLimits", "request": "Progress Request"})
