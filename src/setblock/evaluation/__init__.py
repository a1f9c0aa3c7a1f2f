"""Evaluate a model: its answers to a task's examples, their comparison with plain decoding, and which setting is safe."""

from typing import TYPE_CHECKING

from setblock.lazy import lazily

if TYPE_CHECKING:
    from setblock.evaluation.calibration import calibrate
    from setblock.evaluation.result import Result
    from setblock.evaluation.run import compare, evaluate, sweep
    from setblock.evaluation.tracing import trace

__all__ = ["Result", "calibrate", "compare", "evaluate", "sweep", "trace"]

__getattr__, __dir__ = lazily(
    __name__, {"calibration": "calibrate", "result": "Result", "run": "compare evaluate sweep", "tracing": "trace"}
)
