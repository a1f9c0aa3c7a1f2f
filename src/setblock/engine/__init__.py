"""Decode many requests together, which come and go between passes (docs/engine.md)."""

from typing import TYPE_CHECKING

from setblock.lazy import lazily

if TYPE_CHECKING:
    from setblock.engine.engine import Engine
    from setblock.engine.limits import EngineLimits
    from setblock.engine.progress import Progress
    from setblock.engine.request import Request

__all__ = ["Engine", "EngineLimits", "Progress", "Request"]

_HOMES = {
    "Engine": "setblock.engine.engine",
    "EngineLimits": "setblock.engine.limits",
    "Progress": "setblock.engine.progress",
    "Request": "setblock.engine.request",
}
__getattr__, __dir__ = lazily(__name__, _HOMES)
