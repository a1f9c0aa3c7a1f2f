"""Operating points: plain data from which the same request comes back."""

import copy
import json
import math
from dataclasses import dataclass

import pytest

from families import tiny_sbd
from setblock.decoding.samplers import SAMPLERS, EntropyBounded, Factor
from setblock.decoding.samplers.named import sampler_named
from setblock.decoding.settings.resolve import NTP, at_point, point_from_json, sampler_for
from setblock.decoding.settings.table import DecodingSettings
from setblock.errors import ParameterError
from setblock.evaluation.operating_point import label_of, point_of, point_to_json

POINTS = [DecodingSettings(method="sbd", sampler=kind(), block_size=4) for kind in SAMPLERS.values()] + [
    DecodingSettings(method="sbd", sampler=EntropyBounded(math.inf)),
    DecodingSettings(method="exact", prompt_lookup=3),
    DecodingSettings(method="sbd"),
    DecodingSettings(method="ntp"),
]


@pytest.fixture(scope="module")
def model(trained_tokenizer):
    return tiny_sbd("llama", copy.deepcopy(trained_tokenizer), mode="shifted")


@pytest.mark.parametrize("settings", POINTS, ids=str)
def test_the_same_request_comes_back_from_json(model, settings):
    point = point_of(model, settings)
    again = point_from_json(json.loads(json.dumps(point_to_json(point), allow_nan=False)))
    assert again == point
    assert (point_to_json(again), hash(again)) == (point_to_json(point), hash(point))
    restored = at_point(again, DecodingSettings(method="sbd", max_new_tokens=7))
    assert (restored.method, restored.max_new_tokens) == (settings.method, 7)
    if settings.method != "ntp":
        assert restored.sampler == sampler_for(settings)
        assert restored.block_size == settings.block_size or (settings.block_size is None and restored.block_size == 16)
        assert settings.method == "sbd" or restored.prompt_lookup == (settings.prompt_lookup or 0)


def test_labels():
    def label(**settings):
        sampler = settings.pop("sampler")
        return label_of(DecodingSettings("sbd", SAMPLERS[sampler](**settings), 16))

    assert label_of(NTP) == "ntp"
    assert label(sampler="entropy-bounded", gamma=0.35) == "entropy-bounded 0.35, k 16"
    assert label(sampler="entropy-bounded", gamma=0.35, proxy="margin") == "entropy-bounded 0.35 proxy margin, k 16"
    assert label_of(DecodingSettings("exact", Factor(1.0), 8, 2)) == "exact, factor 1, k 8, lookup 2"


@pytest.mark.parametrize(
    ("recorded", "message"),
    [
        ([], "an operating point must have the keys"),
        ({"sampler": "factor"}, "an operating point must have the keys"),
        ({"method": "sbd", "gamma": 1}, "an operating point must have the keys"),
        ({"method": "fast"}, "method must be one of sbd, exact, ntp, not 'fast'"),
        ({"method": "sbd"}, "an operating point of method sbd must name a sampler"),
        ({"method": "sbd", "sampler": "mine"}, "sampler must be one of"),
        ({"method": "sbd", "sampler": "factor", "sampler_options": {"gamma": 1}}, "sampler factor has no 'gamma'"),
        ({"method": "sbd", "sampler": "factor", "sampler_options": {"factor": -1}}, "factor must be"),
        ({"method": "sbd", "sampler": "factor", "block_size": 0}, "block_size must be at least 1, not 0"),
    ],
)
def test_what_is_no_point(recorded, message):
    with pytest.raises(ParameterError, match=message):
        point_from_json(recorded)


@dataclass(frozen=True)
class Unnamed:
    bound: float

    def select(self, block):
        raise NotImplementedError


def test_a_sampler_of_one_s_own_needs_a_name(model, monkeypatch):
    settings = DecodingSettings(method="sbd", sampler=Unnamed(2.0))
    with pytest.raises(ParameterError, match="has no name: put its class into"):
        point_of(model, settings)
    monkeypatch.setitem(SAMPLERS, "unnamed", Unnamed)
    assert at_point(point_of(model, settings)).sampler == Unnamed(2.0)
    with pytest.raises(ParameterError, match="sampler unnamed needs bound"):
        sampler_named("unnamed", {})


def test_numbers_may_be_text():
    assert sampler_named("factor", {"factor": "0.5"}) == Factor(0.5)
    assert sampler_named("entropy-bounded", {"gamma": "inf"}) == EntropyBounded(math.inf)
    with pytest.raises(ParameterError, match=r"count of sampler fixed-count must be a whole number, not 'two'"):
        sampler_named("fixed-count", {"count": "two"})
