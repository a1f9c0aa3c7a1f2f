"""The sampler options: from a name and KEY=VALUE pairs to a sampler, and back for the report."""

from collections.abc import Iterable, Sequence
from dataclasses import MISSING, Field, fields
from typing import TYPE_CHECKING, Any, get_type_hints

from setblock.decoding.settings import DecodingSettings, Method
from setblock.errors import ParameterError, did_you_mean

if TYPE_CHECKING:
    from setblock.decoding.samplers import Sampler

# The keys of `samplers.SAMPLERS`, which can't be imported for --help without PyTorch; a test holds them together.
SAMPLER_NAMES = (
    "entropy-bounded",
    "entropy-threshold",
    "confidence-threshold",
    "factor",
    "fixed-count",
    "left-to-right",
    "confident-prefix",
    "adaptive-confidence",
    "distance-penalty",
    "spaced",
    "dilated",
    "klass",
    "credit-decoding",
)


def chosen_sampler(
    name: str | None, *, options: Sequence[str], gamma: float | None, method: Method
) -> "Sampler | None":
    """The sampler that was asked for: by its name, or the method's own with other parameters.

    Args:
        name: its name; None for the method's own.
        options: its parameters, `key=value` each.
        gamma: its gamma, if given apart from the others.
        method: what decides the sampler that has no name.

    Returns:
        None where nothing was asked for.

    Raises:
        ParameterError: there is no such sampler or parameter, or a value is not valid.
    """
    if name is None and not options and gamma is None:
        return None
    from setblock.decoding.defaults import sampler_for
    from setblock.decoding.samplers import SAMPLERS
    from setblock.decoding.samplers.named import name_of

    default = sampler_for(DecodingSettings(method=method))
    if name is not None and name not in SAMPLERS:
        raise ParameterError(
            f"sampler must be one of {', '.join(SAMPLERS)}, not {name!r}{did_you_mean(name, SAMPLERS)}"
        )
    kind: Any = type(default) if name is None else SAMPLERS[name]
    name = name or name_of(default)
    parameters = {field.name: field for field in fields(kind)}
    if gamma is not None and "gamma" not in parameters:
        raise ParameterError(f"sampler {name} has no gamma; {_told(parameters)}")
    values = {} if gamma is None else {"gamma": gamma}
    for text in options:
        key, value = _parameter(name, text, parameters)
        if key in values:
            raise ParameterError(f"{key} of sampler {name} is given more than once")
        values[key] = _converted(key, value, get_type_hints(kind)[key])
    missing = [key for key, field in parameters.items() if _is_required(field) and key not in values]
    if missing:
        raise ParameterError(f"sampler {name} needs --sampler-option {missing[0]}=VALUE")
    sampler: Sampler = kind(**values)
    return sampler


def sampler_json(settings: DecodingSettings) -> dict[str, Any]:
    """What a report's JSON says of the sampler: all None in method `ntp`, which has none."""
    from setblock.decoding.defaults import sampler_for
    from setblock.decoding.samplers.named import name_of, options_of

    if settings.method == "ntp":
        return {"sampler": None, "sampler_options": None, "gamma": None}
    sampler = sampler_for(settings)
    values = options_of(sampler)
    return {"sampler": name_of(sampler), "sampler_options": values, "gamma": values.get("gamma")}


def sampler_text(settings: DecodingSettings) -> str:
    """The sampler and its parameters in a few words."""
    from setblock.decoding.defaults import sampler_for
    from setblock.decoding.samplers.named import name_of, options_of

    sampler = sampler_for(settings)
    values = ", ".join(f"{key} {_shown(value)}" for key, value in options_of(sampler).items())
    return f"{name_of(sampler)} ({values})" if values else name_of(sampler)


def _parameter(name: str, text: str, parameters: dict[str, Field[Any]]) -> tuple[str, str]:
    key, equals, value = text.partition("=")
    if not equals:
        raise ParameterError(f"--sampler-option must be KEY=VALUE, not {text!r}")
    key = key.strip().replace("-", "_")
    if key not in parameters:
        raise ParameterError(f"sampler {name} has no {key!r}{did_you_mean(key, parameters)}; {_told(parameters)}")
    return key, value


def _converted(key: str, text: str, kind: Any) -> Any:
    from pydantic import TypeAdapter, ValidationError

    try:
        return TypeAdapter(kind).validate_python(text)
    except ValidationError as error:
        raise ParameterError(f"--sampler-option {key}: {error.errors()[0]['msg']}, not {text!r}") from error


def _is_required(field: Field[Any]) -> bool:
    return field.default is MISSING and field.default_factory is MISSING


def _shown(value: Any) -> str:
    return f"{value:g}" if isinstance(value, float) else str(value)


def _told(parameters: Iterable[str]) -> str:
    return f"it has {', '.join(parameters) or 'no parameters'}"
