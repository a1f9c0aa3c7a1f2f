"""The block size that is taken is the one that eq. 16 says is fastest; where none is, decoding is plain."""

import json
from dataclasses import replace
from pathlib import Path

import pytest
from transformers import PreTrainedTokenizerBase

from families import tiny_sbd
from setblock.decoding.settings import DecodingSettings
from setblock.evaluation.block_choice import TRAINED_ACCEPTANCE, fastest_choice, tokens_of_draft
from setblock.evaluation.pass_costs import SIZES, PassCosts, identity_of, measured_costs, remembered_costs
from setblock.model.calibrations import CalibratedSetting
from setblock.model.facts import SBDFacts

FACTS = SBDFacts(mask_token_id=1, block_sizes=(4, 8, 16))


def costs(*ratios: float, fuses_commit: bool = True) -> PassCosts:
    return PassCosts(dict(zip((1, 2, 4, 8, 16, 32), ratios, strict=True)), 256, fuses_commit)


FLAT = costs(1, 1.01, 1.02, 1.03, 1.05, 1.08)
STEEP = costs(1, 1.9, 3.6, 7, 14, 28)
CPU = costs(1, 1.12, 1.64, 2.59, 4.57, 8.66)


def test_flat_costs_take_the_largest_block_and_steep_ones_none() -> None:
    assert fastest_choice(FLAT, FACTS).block_size == 16
    assert fastest_choice(FLAT, None).block_size == 32
    for facts in (FACTS, None):
        plain = fastest_choice(STEEP, facts)
        assert (plain.method, plain.block_size, plain.speedup) == ("ntp", None, 1.0)
        assert "plain decoding is fastest" in str(plain)
        assert plain.applied(DecodingSettings()).method == "ntp"


def test_the_speed_up_is_eq_16s() -> None:
    """Each pass commits a draft and makes the next: l is 1, and a block the tokens of a draft."""
    found = fastest_choice(FLAT, FACTS)
    assert found.speedup == pytest.approx(tokens_of_draft(TRAINED_ACCEPTANCE, 16) * 1 / 1.08)
    apart = fastest_choice(replace(FLAT, fuses_commit=False), FACTS)
    assert apart.speedup == pytest.approx(tokens_of_draft(TRAINED_ACCEPTANCE, 16) / 2.1)


def test_a_size_between_powers_of_two_may_be_the_fastest() -> None:
    seconds = {1: 1.0, 4: 1.25, 6: 1.3, 8: 1.4, 12: 1.45, 16: 1.8, 32: 2.6}
    assert fastest_choice(PassCosts(seconds, 256, True), FACTS).block_size == 6


def test_no_block_is_larger_than_was_trained() -> None:
    assert fastest_choice(FLAT, replace(FACTS, block_sizes=(2, 4))).block_size == 4


def test_copied_drafts_are_for_models_without_their_own() -> None:
    found = fastest_choice(CPU, None)
    assert found.method == "exact"
    assert 1.3 < found.speedup < 1.7
    settings = found.applied(DecodingSettings())
    assert (settings.block_size, settings.draft_lookup) == (found.block_size, found.draft_lookup)
    assert found.applied(DecodingSettings(draft_lookup=0)).draft_lookup == 0
    assert fastest_choice(FLAT, FACTS).draft_lookup is None


def test_a_draft_text_gives_more_drafts_of_which_fewer_are_right() -> None:
    assert fastest_choice(CPU, None, has_draft_text=True).method == "exact"
    assert fastest_choice(FLAT, None, has_draft_text=True).speedup == pytest.approx(
        (0.91 * 1.90 + 0.09) / (0.91 * 1.05 + 0.09)
    )
    assert fastest_choice(FLAT, FACTS, has_draft_text=True) == fastest_choice(FLAT, FACTS)


def test_a_calibration_says_the_acceptance() -> None:
    def calibrated(speedup: float) -> SBDFacts:
        point = {"method": "exact", "block_size": 16}
        return replace(FACTS, calibrations=(CalibratedSetting("d", point, "t", False, speedup, 1, "f"),))

    low, high = (fastest_choice(FLAT, calibrated(speedup)) for speedup in (1.5, 6.0))
    assert high.speedup == pytest.approx(6.0 / 1.08, rel=1e-3)
    assert low.speedup < high.speedup


def test_passes_are_timed_and_remembered(
    trained_tokenizer: PreTrainedTokenizerBase, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SETBLOCK_HOME", str(tmp_path))
    sbd = tiny_sbd("llama", trained_tokenizer)
    found = measured_costs(sbd)
    assert tuple(found.seconds) == SIZES
    assert all(0 < each < 10 for each in found.seconds.values())
    identity = identity_of(tmp_path)
    first = remembered_costs(sbd, identity)
    assert remembered_costs(sbd, identity) == first
    (file,) = tmp_path.iterdir()
    file.write_text(json.dumps({"seconds": {"1": 0.5}, "cached": 7, "fuses_commit": False}))
    assert remembered_costs(sbd, identity) == PassCosts({1: 0.5}, 7, False)
    file.write_text("nothing")
    assert remembered_costs(sbd, identity).cached == first.cached
    assert len([*tmp_path.iterdir()]) == 1
    remembered_costs(sbd, identity_of(tmp_path, n_threads=2))
    assert len([*tmp_path.iterdir()]) == 2
