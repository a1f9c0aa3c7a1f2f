"""Decode requests as on a device that the host would have to wait for: each pass is launched before the last one is read."""

from collections.abc import Sequence

import pytest

from answers import assert_same
from measuring.static_batch import StaticBatch
from measuring.synchronisations import as_on_an_accelerator
from setblock.decoding.settings.table import DecodingSettings
from setblock.engine.generate import together
from setblock.model.protocol.runtime import LanguageModel


def assert_ahead_is_the_same(
    model: LanguageModel,
    prompts: Sequence[Sequence[int]],
    settings: Sequence[DecodingSettings],
    *,
    expected: StaticBatch,
) -> None:
    """The answers, and the passes that reveal them, are those of a batch that was decoded by the plain loop."""
    with as_on_an_accelerator():
        passes = list(together(model, list(zip(prompts, settings, strict=True))))
    found = {int(each.id): each.generation for progress in passes for each in progress if each.generation is not None}
    for row in range(len(prompts)):
        ours, theirs = found[row], expected.generation(row)
        assert_same(ours, theirs)
        assert (ours.passes, ours.revealed_by) == (theirs.passes, theirs.revealed_by)
        assert ours.entropy == pytest.approx(theirs.entropy, abs=1e-3)
