"""Collect the samplers: one rule in each file, which has the rule's name. `SAMPLERS` finds new files automatically.

Classes are imported on first use: `setblock --help` lists the samplers without PyTorch.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from setblock.decoding.samplers.named import SAMPLERS

if TYPE_CHECKING:  # for type checkers and editors; at run time `__getattr__` finds them
    from setblock.decoding.samplers.base import BlockView, Dial, Memory, Sampler, Selection, at_least_one
    from setblock.decoding.samplers.confidence_threshold import ConfidenceThreshold
    from setblock.decoding.samplers.entropy_bounded import EntropyBounded
    from setblock.decoding.samplers.entropy_prefix import EntropyPrefix
    from setblock.decoding.samplers.factor import Factor
    from setblock.decoding.samplers.fixed_count import FixedCount

__all__ = [
    "SAMPLERS",
    "BlockView",
    "ConfidenceThreshold",
    "Dial",
    "EntropyBounded",
    "EntropyPrefix",
    "Factor",
    "FixedCount",
    "Memory",
    "Sampler",
    "Selection",
    "at_least_one",
]


def __getattr__(name: str) -> Any:
    base = import_module(f"{__name__}.base")
    if name in __all__ and hasattr(base, name):  # before the rules are imported: their files may ask for these
        return getattr(base, name)
    if not name.startswith("_"):
        for kind in SAMPLERS.in_this_package().values():
            if kind.__name__ == name:
                return kind
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
