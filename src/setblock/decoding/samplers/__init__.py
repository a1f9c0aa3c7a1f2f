"""The samplers: one rule in each file, which has the rule's name. `SAMPLERS` finds new files automatically.

Classes are imported on first use: `setblock --help` lists the samplers without PyTorch.
"""

from typing import TYPE_CHECKING

from setblock.decoding.samplers.named import SAMPLERS, own_rules
from setblock.lazy import lazily

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

_RULES = {each.module.removeprefix(f"{__name__}."): each.attr for each in own_rules().values()}
__getattr__, __dir__ = lazily(__name__, {"base": "BlockView Dial Memory Sampler Selection at_least_one", **_RULES})
