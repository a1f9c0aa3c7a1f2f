"""The SBD config: stored in a config, read back, and refused where they are not valid."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from transformers import LlamaConfig

from setblock.errors import SetBlockError
from setblock.model.protocol.sbd_config import CONFIG_KEY, CalibratedSetting, SBDModelConfig, read_sbd_config

VALID = {"mask_token_id": 3, "block_sizes": [2, 8], "logit_shift": False, "first_token_from_causal": True, "version": 1}

CALIBRATION: dict[str, Any] = {
    "domain": "d",
    "point": {"method": "exact"},
    "tolerance": "at most",
    "tested": False,
    "nfe_speedup": 2.5,
    "num_examples": 9,
    "fingerprint": "f",
}


def config(**fields: Any) -> LlamaConfig:
    return LlamaConfig(vocab_size=10, **fields)


@given(
    mask_token_id=st.integers(0, 9),
    block_sizes=st.lists(st.integers(1, 64), unique=True).map(lambda sizes: tuple(sorted(sizes))),
    shift=st.sampled_from([(False, False), (False, True), (True, True)]),
)
def test_round_trip(mask_token_id: int, block_sizes: tuple[int, ...], shift: tuple[bool, bool]) -> None:
    sbd_config = SBDModelConfig(mask_token_id, block_sizes, *shift)
    of = config()
    sbd_config.write_to(of)
    assert read_sbd_config(LlamaConfig.from_dict(of.to_dict())) == sbd_config


def test_calibrations_are_recorded_where_there_are_any() -> None:
    of = config()
    sbd_config = SBDModelConfig(3, calibrations=(CalibratedSetting(**CALIBRATION),))
    sbd_config.write_to(of)
    assert read_sbd_config(LlamaConfig.from_dict(of.to_dict())) == sbd_config
    SBDModelConfig(3).write_to(of)  # earlier releases don't know the key
    assert "calibrations" not in getattr(of, CONFIG_KEY)


@pytest.mark.parametrize("causal_block", [False, True])
@pytest.mark.parametrize("mask_token_id", [0, 3, None])
def test_unos_form_is_recorded_and_keys_of_others_stay_as_they_were(
    mask_token_id: int | None, causal_block: bool
) -> None:
    of, size = config(), 10 if mask_token_id is None else None
    sbd_config = SBDModelConfig(mask_token_id, (4,), noise_vocab_size=size, causal_block=causal_block)
    sbd_config.write_to(of)
    assert read_sbd_config(LlamaConfig.from_dict(of.to_dict())) == sbd_config
    usual = {"mask_token_id", "block_sizes", "logit_shift", "first_token_from_causal", "version"}
    expected = usual - {"mask_token_id"} | {"noise_vocab_size"} if mask_token_id is None else usual
    assert getattr(of, CONFIG_KEY).keys() == expected | ({"causal_block"} if causal_block else set())
    assert bool(sbd_config.special_form) == (mask_token_id is None or causal_block)


def test_none_recorded() -> None:
    assert read_sbd_config(config()) is None


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"version": 2}, "setblock.version is 2, this release reads 1"),
        ({"version": None}, "setblock.version is None, this release reads 1"),
        ({"gamma": 0.1}, r"setblock\.gamma must be left out: there is no such key"),
        ({"mask_token_id": 10}, r"setblock.mask_token_id must be at most 9, not 10"),
        ({"mask_token_id": -1}, r"mask_token_id must be at least 0, not -1"),
        ({"mask_token_id": None}, "either mask_token_id or noise_vocab_size must be given"),
        ({"mask_token_id": True}, r"mask_token_id must be a whole number, not True"),
        ({"mask_token_id": "3"}, r"mask_token_id must be a whole number, not '3'"),
        ({"noise_vocab_size": 10}, "either mask_token_id or noise_vocab_size must be given, and not both"),
        ({"mask_token_id": None, "noise_vocab_size": 11}, r"noise_vocab_size must be at most 10, not 11"),
        (
            {"mask_token_id": None, "noise_vocab_size": 0},
            r"noise_vocab_size must be at least 1, not 0",
        ),
        ({"mask_token_id": None, "noise_vocab_size": None}, "either mask_token_id or noise_vocab_size must be given"),
        ({"causal_block": "yes"}, "causal_block must be true or false, not 'yes'"),
        ({"block_sizes": [0]}, r"setblock\.block_sizes\.0 must be at least 1, not 0"),
        ({"block_sizes": 8}, "block_sizes must be a list, not 8"),
        ({"block_sizes": ["8"]}, r"block_sizes\.0 must be a whole number, not '8'"),
        ({"block_sizes": [True]}, r"block_sizes\.0 must be a whole number, not True"),
        ({"logit_shift": "no"}, "setblock.logit_shift must be true or false, not 'no'"),
        (
            {"first_token_from_causal": None},
            "first_token_from_causal must be true or false, not None",
        ),
        ({"logit_shift": True, "first_token_from_causal": False}, "logit_shift needs first_token_from_causal"),
        ({"calibrations": {}}, "setblock.calibrations must be a list"),
        ({"calibrations": [{"domain": "d"}]}, r"calibrations\.0\.point must be given"),
        ({"calibrations": [CALIBRATION | {"point": {}}]}, "point of calibrations must name a method"),
        (
            {"calibrations": [CALIBRATION | {"gamma": 1}]},
            r"calibrations\.0\.gamma must be left out: there is no such key",
        ),
        (
            {"calibrations": [CALIBRATION | {"tested": 1}]},
            r"calibrations\.0\.tested must be true or false, not 1",
        ),
    ],
)
def test_an_sbd_config_that_is_not_valid(change: dict[str, Any], message: str) -> None:
    with pytest.raises(SetBlockError, match=message):
        read_sbd_config(config(**{CONFIG_KEY: VALID | change}))


@pytest.mark.parametrize("recorded", ["yes", [1], 3])
def test_an_sbd_config_that_is_no_object(recorded: Any) -> None:
    with pytest.raises(SetBlockError, match=f"'setblock' must be an object, not {type(recorded).__name__}"):
        read_sbd_config(config(**{CONFIG_KEY: recorded}))
