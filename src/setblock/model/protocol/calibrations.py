"""Hold what a checkpoint was calibrated to: settings that keep a tolerance, found by `setblock calibrate`, as plain
data.

Knows the record and whether it is well formed. Knows nothing of samplers, nor of how a record is used.
"""

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

from pydantic import ConfigDict, TypeAdapter, ValidationError

from setblock.errors import SetBlockError


@dataclass(frozen=True)
class CalibratedSetting:
    """Hold the setting of one method for one domain.

    Attributes:
        domain: what it was calibrated on: a task's name, or one given to a file of prompts.
        point: the operating point, as `setblock.decoding.settings.operating_point` writes it.
        tolerance: what it keeps, in words.
        tested: whether that was shown by a test; exact mode keeps it by what it is.
        nfe_speedup: on the examples of the test.
        num_examples: how many these were.
        fingerprint: of the model, to detect weights that were changed since.
    """

    domain: str
    point: Mapping[str, Any]
    tolerance: str
    tested: bool
    nfe_speedup: float
    num_examples: int
    fingerprint: str

    __pydantic_config__ = ConfigDict(extra="forbid")

    @property
    def method(self) -> str:
        """Return the method of the point."""
        return str(self.point["method"])


_RECORDS = TypeAdapter(tuple[CalibratedSetting, ...])


def calibrations_to_json(calibrations: tuple[CalibratedSetting, ...]) -> list[dict[str, Any]]:
    """Return the calibrations in the form of `config.json`."""
    return [asdict(each) for each in calibrations]


def calibrations_from_json(recorded: Any) -> tuple[CalibratedSetting, ...]:
    """Return what `calibrations_to_json` wrote.

    Raises:
        SetBlockError: it is no such list.
    """
    try:
        found = _RECORDS.validate_json(json.dumps(recorded), strict=True)
    except ValidationError as error:
        problem = error.errors()[0]
        where = ".".join(map(str, ("calibrations", *problem["loc"])))
        raise SetBlockError(f"{where} is not valid: {problem['msg']}, not {problem['input']!r}") from error
    for each in found:
        if not isinstance(each.point.get("method"), str):
            raise SetBlockError("point of calibrations must name a method")
    return found
