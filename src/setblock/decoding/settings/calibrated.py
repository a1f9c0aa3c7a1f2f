"""Choose what a request gets from its model's calibrations, where its settings leave the operating point open.

A calibrated setting was tested as a whole, so it is taken as a whole: a request that says anything of its operating point
itself gets none of it.
"""

from typing import Protocol

from setblock.decoding.settings.operating_point import at_point, point_from_json
from setblock.decoding.settings.table import POINT, SETTINGS, DecodingSettings, Method
from setblock.errors import ParameterError, SetBlockError
from setblock.model.protocol.facts import CalibratedSetting, SBDFacts


class Trained(Protocol):
    """Hold what a model was trained and calibrated for: an `SBDModel` is one."""

    @property
    def facts(self) -> SBDFacts | None:
        """Return the SBD facts, or None where the model was not trained for blocks."""


def with_calibration(
    model: Trained, settings: DecodingSettings | None = None, *, domain: str | None = None
) -> DecodingSettings:
    """Return the settings at the calibrated point of their method, where there is one and they leave the point open.

    Args:
        settings: by default those of a request that gives none.
        domain: as in `calibration_for`.
    """
    settings = settings or DecodingSettings()
    if not leaves_point_open(settings):
        return settings
    found = calibration_for(model, method=settings.method, domain=domain)
    return settings if found is None else at_calibration(found, settings)


def leaves_point_open(settings: DecodingSettings) -> bool:
    """Return whether settings give nothing of their operating point except, perhaps, the method."""
    return all(getattr(settings, name) == SETTINGS[name].default for name in POINT)


def calibration_for(model: Trained, *, method: Method, domain: str | None = None) -> CalibratedSetting | None:
    """Return the calibrated setting of a method that a request gets, or None where there is none.

    Where no domain is given and the model was calibrated for several, it is the most careful of theirs, the slowest.

    Raises:
        ParameterError: the model was not calibrated for the domain.
    """
    known = () if model.facts is None else model.facts.calibrations
    domains = list(dict.fromkeys(each.domain for each in known))
    if domain is not None and domain not in domains:
        told = f"was calibrated for {', '.join(domains)}" if domains else "was calibrated for none"
        raise ParameterError(f"domain {domain!r} is not known: this model {told}")
    fastest = []
    for name in domains if domain is None else [domain]:
        of_domain = [each for each in known if each.domain == name and each.method == method]
        fastest += sorted(of_domain, key=lambda each: each.nfe_speedup)[-1:]
    return min(fastest, key=lambda each: each.nfe_speedup, default=None)


def at_calibration(found: CalibratedSetting, settings: DecodingSettings) -> DecodingSettings:
    """Return the settings with the operating point of a calibrated setting.

    Raises:
        SetBlockError: this release does not know the point.
    """
    try:
        point = point_from_json(found.point)
    except ParameterError as error:
        raise SetBlockError(
            f"the model's calibrated setting for {found.domain} can't be used: {error}; run `setblock calibrate` again"
        ) from error
    return at_point(point, settings)
