"""What a checkpoint was calibrated to: settings that keep a tolerance, found by `setblock calibrate`, as plain data.

Knows the record and whether it is well formed. Knows nothing of samplers, nor of how a record is used.
"""

from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields
from typing import Any

from setblock.errors import SetBlockError


@dataclass(frozen=True)
class CalibratedSetting:
    """The setting of one method for one domain.

    Attributes:
        domain: what it was calibrated on: a task's name, or one given to a file of prompts.
        point: the operating point, as `setblock.decoding.operating_point` writes it.
        tolerance: what it keeps, in words.
        tested: whether that was shown by a test; exact mode keeps it by what it is.
        nfe_speedup: on the examples of the test.
        num_examples: how many these were.
        fingerprint: of the model, to tell weights that were changed since.
    """

    domain: str
    point: Mapping[str, Any]
    tolerance: str
    tested: bool
    nfe_speedup: float
    num_examples: int
    fingerprint: str

    @property
    def method(self) -> str:
        """Of the point."""
        return str(self.point["method"])


_KINDS: dict[str, Any] = {
    "domain": str,
    "point": dict,
    "tolerance": str,
    "tested": bool,
    "nfe_speedup": (int, float),
    "num_examples": int,
    "fingerprint": str,
}
assert _KINDS.keys() == {field.name for field in fields(CalibratedSetting)}


def calibrations_to_json(calibrations: tuple[CalibratedSetting, ...]) -> list[dict[str, Any]]:
    """As `config.json` holds them."""
    return [asdict(each) for each in calibrations]


def calibrations_from_json(recorded: Any) -> tuple[CalibratedSetting, ...]:
    """What `calibrations_to_json` gave.

    Raises:
        SetBlockError: it is no such list.
    """
    if not isinstance(recorded, list):
        raise SetBlockError(f"calibrations must be a list, not {type(recorded).__name__}")
    return tuple(map(_calibration, recorded))


def _calibration(recorded: Any) -> CalibratedSetting:
    if not isinstance(recorded, dict) or recorded.keys() != _KINDS.keys():
        raise SetBlockError(f"each of calibrations must be an object with the keys {', '.join(_KINDS)}")
    for name, kind in _KINDS.items():
        if not isinstance(recorded[name], kind):
            raise SetBlockError(f"{name} of calibrations is not valid: {recorded[name]!r}")
    if not isinstance(recorded["point"].get("method"), str):
        raise SetBlockError("point of calibrations must name a method")
    return CalibratedSetting(**recorded)
