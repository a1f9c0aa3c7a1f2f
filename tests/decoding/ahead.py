"""Run a batch as on a device that the host would have to wait for: each pass is fed before the last one is read."""

from collections.abc import Sequence

import pytest

from answers import assert_same
from measuring.synchronisations import as_on_an_accelerator
from setblock.decoding.generate import static_batch
from setblock.decoding.loop import StaticBatch
from setblock.decoding.settings.table import DecodingSettings
from setblock.model.protocol.runtime import LanguageModel


def assert_ahead_is_the_same(
    model: LanguageModel,
    prompts: Sequence[Sequence[int]],
    settings: Sequence[DecodingSettings],
    *,
    expected: StaticBatch,
) -> None:
    """The answers, and the passes that reveal them, are those of a batch that was decoded by `steps`."""
    with as_on_an_accelerator():
        ahead = static_batch(model, prompts, settings)
        assert ahead._can_run_ahead
        ahead.run()
    for row in range(len(prompts)):
        ours, theirs = ahead.generation(row), expected.generation(row)
        assert_same(ours, theirs)
        assert (ours.passes, ours.revealed_by) == (theirs.passes, theirs.revealed_by)
        assert ours.entropy == pytest.approx(theirs.entropy, abs=1e-3)
