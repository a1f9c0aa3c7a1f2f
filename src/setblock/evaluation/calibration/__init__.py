"""Calibrate: find the fastest setting that loses no more than is tolerated, with a statistical guarantee.

    tolerance.py        what may be lost, how surely, and whether what was seen shows that less is lost
    pvalues.py          the exact tests behind that
    learn_then_test.py  which setting of a sweep is chosen
    checkpoint.py       where the result is written

docs/calibration.md says what is guaranteed and how. `setblock.decoding.settings.calibrated` is what a
request makes of the result.
"""

from setblock.evaluation.calibration.learn_then_test import Calibration, calibrate, check_enough
from setblock.evaluation.calibration.tolerance import Tolerance, tolerance_of

__all__ = ["Calibration", "Tolerance", "calibrate", "check_enough", "tolerance_of"]
