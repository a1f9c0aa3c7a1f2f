"""Settings by their earlier names still work wherever they were typed or recorded, and one line names the current name."""

import copy
import inspect
import pickle
from dataclasses import replace

import pytest

from families import tiny_sbd
from setblock.decoding.settings.resolve import point_from_json, requested_settings
from setblock.decoding.settings.table import RENAMED, SETTINGS, DecodingSettings, with_current_names
from setblock.errors import ParameterError, SetBlockWarning
from setblock.evaluation.operating_point import point_of, point_to_json
from setblock.evaluation.sweeps.grid import grids_of, read_grids
from setblock.integrations.transformers import sbd_generate
from setblock.server.api.protocol import ChatBody
from setblock.server.api.settings import settings_of

SAID = "draft_lookup is now called prompt_lookup"


def test_an_earlier_name_is_no_setting_and_its_current_one_is():
    assert not RENAMED.keys() & SETTINGS.keys()
    assert set(RENAMED.values()) <= SETTINGS.keys()


def test_settings_take_an_earlier_name_and_warn():
    with pytest.warns(SetBlockWarning, match=SAID):
        settings = DecodingSettings(draft_lookup=3)
    assert settings == DecodingSettings(prompt_lookup=3)
    assert replace(settings, seed=4) == copy.deepcopy(DecodingSettings(prompt_lookup=3, seed=4))  # without a warning
    assert pickle.loads(pickle.dumps(settings)) == settings
    with pytest.warns(SetBlockWarning, match=SAID):
        assert requested_settings({"draft_lookup": 3, "seed": None}) == settings


def test_both_names_at_once_are_refused():
    with pytest.raises(ParameterError, match="prompt_lookup is given more than once"):
        with_current_names({"draft_lookup": 3, "prompt_lookup": 2})


def test_current_names_warn_of_nothing():
    assert with_current_names({"prompt_lookup": 2, "other": 1}) == {"prompt_lookup": 2, "other": 1}


def test_a_recorded_point_is_read_without_a_warning(tokenizer):
    point = point_of(tiny_sbd("llama", tokenizer), DecodingSettings(prompt_lookup=3))
    recorded = point_to_json(point)
    recorded["draft_lookup"] = recorded.pop("prompt_lookup")
    assert point_from_json(recorded) == point


def test_a_body_and_grids_take_an_earlier_name(tmp_path):
    body = ChatBody(model="tiny", messages=[{"role": "user", "content": "?"}], draft_lookup=5)  # type: ignore[call-arg, list-item]
    assert settings_of(body, default=DecodingSettings()).prompt_lookup == 5
    (tmp_path / "grid.yaml").write_text("- {method: exact, draft_lookup: [0, 2]}\n")
    with pytest.warns(SetBlockWarning, match=SAID):
        assert read_grids(tmp_path / "grid.yaml") == [{"method": ["exact"], "prompt_lookup": [0, 2]}]
    with pytest.warns(SetBlockWarning, match=SAID):
        assert grids_of(["exact"], [], {"draft_lookup": [1]}) == [{"method": ["exact"], "prompt_lookup": [1]}]


def test_transformers_hands_it_over():
    assert RENAMED.keys() <= inspect.signature(sbd_generate).parameters.keys()
