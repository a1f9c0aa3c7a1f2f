"""Fill in what a request's settings leave open."""

from dataclasses import replace
from typing import TYPE_CHECKING, Any

from setblock.decoding.settings.table import POINT, SETTINGS, DecodingSettings
from setblock.errors import SetBlockError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from setblock.decoding.samplers.base import Sampler
    from setblock.model.protocol.facts import SBDFacts

DEFAULT_MAX_NEW_TOKENS = 256
DEFAULT_BLOCK_SIZE = 16
DEFAULT_DRAFT_LOOKUP = 0  # short matches mislead a model that drafts well (docs/log.md)
ADAPTER_DRAFT_LOOKUP = 2  # an adapter that leaves plain decoding alone drafts less well (docs/real-model.md)
DRAFT_TEXT_LOOKUP = 2  # who gives a draft text to a model that drafts well wants it used
UNTRAINED_DRAFT_LOOKUP = 1  # one that was never trained for blocks has no other drafts
DRAFT_GAMMA = 1.0  # with one pass, as good as any (docs/exact.md)


def decided(settings: DecodingSettings, facts: "SBDFacts | None", *, has_draft_text: bool = False) -> DecodingSettings:
    """Return the settings with those of the operating point decided: what is open follows from the model, and what has no
    effect in the method is as where nothing is said. The block size is 1 in method `ntp`.

    Args:
        has_draft_text: whether the model has a text to copy drafts from.

    Raises:
        SetBlockError: the model was never trained for blocks, and the request asks for blocks that nothing checks.
    """
    method = settings.method
    if facts is None and method == "sbd":
        raise SetBlockError(
            "method 'sbd' needs a model that was trained for blocks, and this one has no mask token: use method 'exact' or "
            "'ntp', or fine-tune it with `setblock train`"
        )
    found: dict[str, Any] = {
        "sampler": sampler_for(settings),
        "block_size": settings.block_size or usual_block_size(() if facts is None else facts.block_sizes),
        "draft_lookup": draft_lookup_for(facts, settings, has_draft_text=has_draft_text),
    }
    found |= {name: SETTINGS[name].default for name in POINT if not SETTINGS[name].acts_in(method)}
    return replace(settings, **found | ({"block_size": 1} if method == "ntp" else {}))


def usual_block_size(trained: "Sequence[int]") -> int:
    """Return the largest of the block sizes that a model was trained with, at most 16."""
    return min(DEFAULT_BLOCK_SIZE, max(trained, default=DEFAULT_BLOCK_SIZE))


def draft_lookup_for(facts: "SBDFacts | None", settings: DecodingSettings, *, has_draft_text: bool = False) -> int:
    """Return how many tokens must match before method `exact` copies a draft from the text, or from a draft text."""
    if settings.draft_lookup is not None:
        return settings.draft_lookup
    if facts is None:
        return UNTRAINED_DRAFT_LOOKUP
    if facts.noisy_adapter:
        return ADAPTER_DRAFT_LOOKUP
    return DRAFT_TEXT_LOOKUP if has_draft_text else DEFAULT_DRAFT_LOOKUP


def sampler_for(settings: DecodingSettings) -> "Sampler":
    """Return the sampler that the request asks for, else its method's: drafts may be careless, since errors are
    repaired, and what nothing checks has no gaps (docs/gaps.md)."""
    from setblock.decoding.samplers import EntropyBounded, EntropyPrefix

    return settings.sampler or (EntropyBounded(DRAFT_GAMMA) if settings.method == "exact" else EntropyPrefix())
