"""Settings from names and values (`requested_settings`), and values for those that are left open (`resolved`).

The command line, the server and all other callers use it.
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
    noun: str = "parameter",
) -> DecodingSettings:
    """Return the settings of `base` with those requested. Raise `ParameterError` if a name or a value is not valid.

    Args:
        requested: settings by their names in the table; `sampler` may be a name. Hyperparameters of the sampler are a
            mapping under `sampler_options`, or entries of their own. Without a sampler they replace those of the
            sampler in `base`, or of the method's default one. Entries that are None are ignored.
        base: by default the settings of a request without settings.
        available: the settings that may be requested.
        noun: what an error calls an unknown name, such as "parameter".
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
                f"{noun} {name!r} is not known{did_you_mean(name, [*known, *own])}; there are {', '.join(known)}, and of "
                f"sampler {chosen} {', '.join(own) or 'none'}"
            )
        options[name] = value
    return replace(settings, sampler=sampler_named(chosen, before | options))


def sampler_to_dict(settings: DecodingSettings) -> dict[str, Any]:
    """Return a sampler's name as `sampler` and its hyperparameters as `sampler_options`; None in method `ntp`."""
    if settings.method == "ntp":
        return {"sampler": None, "sampler_options": None}
    sampler = sampler_for(settings)
    return {"sampler": name_of(sampler), "sampler_options": options_of(sampler)}


DEFAULT_MAX_NEW_TOKENS = 256
DEFAULT_BLOCK_SIZE = 16
DRAFT_GAMMA = float("inf")  # a draft is the whole block: checking wrong tokens costs no extra pass (docs/exact.md)


def resolved(
    settings: DecodingSettings, sbd_config: "SBDModelConfig | None", *, has_draft_text: bool = False
) -> DecodingSettings:
    """Return the settings with those of the operating point resolved: open ones follow from the model, and those
    without effect in the method are at their defaults. The block size is 1 in method `ntp`. `has_draft_text`: whether
    the model has a text to copy drafts from. Raise `SetBlockError` for method `sbd` if the model was never trained for
    blocks."""
    method = settings.method
    if sbd_config is None and method == "sbd":
        raise SetBlockError(
            "method 'sbd' needs a model that was trained for blocks, and this one has no mask token: use method 'exact' or "
            "'ntp', or fine-tune it with `setblock train`"
        )
    prompt_lookup = prompt_lookup_for(sbd_config, settings, has_draft_text=has_draft_text)
    # Copies may be longer than trained blocks, if the lengths of copies and blocks are chosen for each pass
    is_resolved = method == "exact" and settings.drafts == "adaptive" and prompt_lookup > 0
    trained = () if sbd_config is None or is_resolved else sbd_config.block_sizes
    found: dict[str, Any] = {
        "sampler": sampler_for(settings),
        "block_size": settings.block_size or usual_block_size(trained),
        "prompt_lookup": prompt_lookup,
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
    # Short matches mislead a model that drafts well (docs/log.md). But a draft text is there to be used
    return 2 if has_draft_text else 0


def sampler_for(settings: DecodingSettings) -> "Sampler":
    """Return the requested sampler, or the default of the method. In `exact` it drafts whole blocks, since errors are
    corrected; in `sbd`, where nothing is checked, it leaves no gaps (docs/gaps.md)."""
    from setblock.decoding.samplers import EntropyBounded, EntropyPrefix

    return settings.sampler or (EntropyBounded(DRAFT_GAMMA) if settings.method == "exact" else EntropyPrefix())
