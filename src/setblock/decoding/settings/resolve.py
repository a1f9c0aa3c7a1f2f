"""Turn names and values into settings, for every caller, and fill in what a request's settings leave open.

Knows the table of settings, and samplers by name. Knows nothing of command lines, HTTP or other libraries.
"""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from setblock.decoding.samplers.named import name_of, options_of, parameters_of, sampler_named
from setblock.decoding.settings.table import HYPERPARAMETERS, POINT, SETTINGS, DecodingSettings, with_current_names
from setblock.errors import ParameterError, SetBlockError, did_you_mean

if TYPE_CHECKING:
    from setblock.decoding.samplers.base import Sampler
    from setblock.model.protocol.sbd_config import SBDModelConfig


def requested_settings(
    requested: Mapping[str, Any],
    *,
    base: DecodingSettings | None = None,
    available: Collection[str] = tuple(SETTINGS),
    told: str = "parameter",
) -> DecodingSettings:
    """Return the settings of `base` with what is asked for. Raise `ParameterError` if a name or a value is not valid.

    Args:
        asked: settings by their names in the table; `sampler` may be a name. Hyperparameters of the sampler are a mapping under
            `sampler_options`, or are next to it. Without a sampler they replace those of the one in `base`,
            or of the method's own. What is None is as if it were not there.
        base: by default the settings of a request that says nothing.
        offered: the settings that may be asked for.
        told: what an error calls a name that is not known.
    """
    if base is not None and not isinstance(base, DecodingSettings):
        raise ParameterError(f"settings must be DecodingSettings, not {base!r}")
    given = {name: value for name, value in with_current_names(requested).items() if value is not None}
    chosen, options = given.pop("sampler", None), dict(given.pop("sampler_options", {}))
    values = {name: given.pop(name) for name in available if name in given and name in SETTINGS}
    settings = replace(base or DecodingSettings(), **values)
    hyperparameters, before = [*options, *given], {}
    if hasattr(chosen, "select"):
        if hyperparameters:
            raise ParameterError(
                f"{hyperparameters[0]} must be set in the sampler object, or give the sampler by its name"
            )
        return replace(settings, sampler=chosen)
    if chosen is None:
        if not hyperparameters:
            return settings
        sampler = sampler_for(settings)
        chosen, before = name_of(sampler), options_of(sampler)
    for name, value in given.items():
        if name in options:
            raise ParameterError(f"{name} is given more than once")
        if name not in HYPERPARAMETERS and name not in (own := parameters_of(chosen)):
            known = list(dict.fromkeys([*available, "sampler"]))
            raise ParameterError(
                f"{told} {name!r} is not known{did_you_mean(name, [*known, *own])}; there are {', '.join(known)}, and of "
                f"sampler {chosen} {', '.join(own) or 'none'}"
            )
        options[name] = value
    return replace(settings, sampler=sampler_named(chosen, before | options))


def sampler_told(settings: DecodingSettings) -> dict[str, Any]:
    """Return a sampler as the words that ask for it, `sampler` and `sampler_options`; both are None in method `ntp`."""
    if settings.method == "ntp":
        return {"sampler": None, "sampler_options": None}
    sampler = sampler_for(settings)
    return {"sampler": name_of(sampler), "sampler_options": options_of(sampler)}


DEFAULT_MAX_NEW_TOKENS = 256
DEFAULT_BLOCK_SIZE = 16
DRAFT_GAMMA = float("inf")  # a draft is the whole block: what is checked in vain costs no pass (docs/exact.md)


def resolved(
    settings: DecodingSettings, sbd_config: "SBDModelConfig | None", *, has_draft_text: bool = False
) -> DecodingSettings:
    """Return the settings with those of the operating point decided: what is open follows from the model, and what has no
    effect in the method is as where nothing is said. The block size is 1 in method `ntp`. `has_draft_text`: whether the model
    has a text to copy drafts from. Raise `SetBlockError` for method `sbd` if the model was never trained for blocks."""
    method = settings.method
    if sbd_config is None and method == "sbd":
        raise SetBlockError(
            "method 'sbd' needs a model that was trained for blocks, and this one has no mask token: use method 'exact' or "
            "'ntp', or fine-tune it with `setblock train`"
        )
    prompt_lookup = prompt_lookup_for(sbd_config, settings, has_draft_text=has_draft_text)
    # Copies may be longer than the blocks that were trained, where how much is fed of either is decided pass by pass
    is_resolved = method == "exact" and settings.drafts == "adaptive" and prompt_lookup > 0
    trained = () if sbd_config is None or is_resolved else sbd_config.block_sizes
    found: dict[str, Any] = {
        "sampler": sampler_for(settings),
        "block_size": settings.block_size or usual_block_size(trained),
        "prompt_lookup": prompt_lookup,
        "branches": _branches_for(sbd_config, settings),
    }
    found |= {name: SETTINGS[name].default for name in POINT if not SETTINGS[name].acts_in(method)}
    return replace(settings, **found | ({"block_size": 1} if method == "ntp" else {}))


def usual_block_size(trained: Sequence[int]) -> int:
    """Return the largest of the block sizes that a model was trained with, at most 16."""
    return min(DEFAULT_BLOCK_SIZE, max(trained, default=DEFAULT_BLOCK_SIZE))


def prompt_lookup_for(
    sbd_config: "SBDModelConfig | None", settings: DecodingSettings, *, has_draft_text: bool = False
) -> int:
    """Return how many tokens must match before method `exact` copies a draft from the text, or from a draft text."""
    if settings.prompt_lookup is not None:
        return settings.prompt_lookup
    if sbd_config is None or (sbd_config.noisy_adapter and settings.drafts == "adaptive"):
        return 1  # a model never trained for blocks has no other drafts, and adaptive drafts use what pays
    if sbd_config.noisy_adapter:
        return 2  # an adapter on the future block drafts less well (docs/real-model.md)
    # Short matches mislead a model that drafts well (docs/log.md). But who gives it a draft text wants that used
    return 2 if has_draft_text else 0


def _branches_for(sbd_config: "SBDModelConfig | None", settings: DecodingSettings) -> int:
    is_constrained = settings.constraints or settings.structure is not None  # who guides is asked behind one draft only
    if sbd_config is None or settings.method != "exact" or is_constrained:
        return 0
    if settings.branches is not None:
        return settings.branches
    return 8 if settings.drafts == "adaptive" else 0  # further places are rarely reached


def sampler_for(settings: DecodingSettings) -> "Sampler":
    """Return the sampler that the request asks for, else its method's: drafts may be careless, since errors are
    repaired, and what nothing checks has no gaps (docs/gaps.md)."""
    from setblock.decoding.samplers import EntropyBounded, EntropyPrefix

    return settings.sampler or (EntropyBounded(DRAFT_GAMMA) if settings.method == "exact" else EntropyPrefix())
