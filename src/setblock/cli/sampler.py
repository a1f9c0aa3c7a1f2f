"""Describe the sampler in reports."""

from typing import Any

from setblock.decoding.settings import DecodingSettings


def sampler_json(settings: DecodingSettings) -> dict[str, Any]:
    """Return what a report's JSON says of the sampler: all None in method `ntp`, which has none."""
    from setblock.decoding.asked import sampler_told

    told = sampler_told(settings)
    return {**told, "gamma": (told["sampler_options"] or {}).get("gamma")}


def sampler_text(settings: DecodingSettings) -> str:
    """Return the sampler and its parameters in a few words."""
    from setblock.decoding.asked import sampler_told

    told = sampler_told(settings)
    values = ", ".join(f"{key} {_shown(value)}" for key, value in told["sampler_options"].items())
    return f"{told['sampler']} ({values})" if values else str(told["sampler"])


def _shown(value: Any) -> str:
    return f"{value:g}" if isinstance(value, float) else str(value)
