"""From lists of values to operating points."""

import copy
from dataclasses import fields

import pytest

from families import tiny_sbd
from setblock.decoding.samplers import SAMPLERS
from setblock.errors import ParameterError, SetBlockError
from setblock.evaluation.operating_point import label_of
from setblock.evaluation.sweeps.grid import grids_of, points_of, read_grids


@pytest.fixture(scope="module")
def model(trained_tokenizer):
    return tiny_sbd("llama", copy.deepcopy(trained_tokenizer), mode="shifted")


def labels(model, *args):
    return [label_of(point) for point in points_of(model, grids_of(*args))]


def test_every_combination_once_in_order(model):
    values = {"gamma": ["0.01", "1", "0.01"], "block_size": ["4", "8"]}
    assert labels(model, ["sbd", "exact"], ["entropy-bounded"], values) == [
        "entropy-bounded 0.01, k 4",
        "entropy-bounded 0.01, k 8",
        "entropy-bounded 1, k 4",
        "entropy-bounded 1, k 8",
        "exact, entropy-bounded inf, k 4",
        "exact, entropy-bounded inf, k 8",
    ]


def test_a_key_is_for_the_samplers_that_have_it(model):
    values = {"threshold": ["0.5"], "factor": ["2"], "block_size": ["8"]}
    assert labels(model, ["sbd"], ["confidence-threshold", "factor"], values) == [
        "confidence-threshold 0.5, k 8",
        "factor 2, k 8",
    ]


@pytest.mark.parametrize("name", SAMPLERS)
def test_every_sampler_has_a_dial(model, name):
    key, values = SAMPLERS[name].dial
    assert key in {field.name for field in fields(SAMPLERS[name])}
    assert len(labels(model, ["sbd"], [name], {})) == len(values)


@pytest.mark.parametrize(
    ("methods", "samplers", "values", "message"),
    [
        (["ntp"], [], {}, r"method must be one of sbd, exact, not 'ntp' \(ntp is always decoded\)"),
        (["sbd"], ["eb"], {}, "sampler must be one of .*, not 'eb'"),
        (
            ["sbd"],
            ["factor"],
            {"gamma": ["1"]},
            "'gamma' fits nothing that is swept: factor has factor; all have block_size",
        ),
        (["sbd"], ["factor"], {"factor": ["-1"]}, "factor must be"),
        (["sbd"], ["factor"], {"factor": ["much"]}, "factor of sampler factor must be a number, not 'much'"),
        (["sbd"], ["factor"], {"block_size": ["0"]}, "block_size must be at least 1, not 0"),
        (["sbd"], ["factor"], {"block_size": ["big"]}, "grid key block_size must be a whole number, not 'big'"),
        (["sbd"], ["factor"], {"prompt_lookup": ["1"]}, "'prompt_lookup' fits nothing"),
    ],
)
def test_mistakes(model, methods, samplers, values, message):
    with pytest.raises(ParameterError, match=message):
        labels(model, methods, samplers, values)


def test_a_file_holds_grids(model, tmp_path):
    path = tmp_path / "grid.yaml"
    path.write_text(
        "- sampler: [factor]\n  factor: [0.5, 1]\n  block_size: 4\n- gamma: [.inf]\n- {method: exact, prompt_lookup: [0, 2]}\n"
    )
    assert [label_of(point) for point in points_of(model, read_grids(path))] == [
        "factor 0.5, k 4",
        "factor 1, k 4",
        "entropy-prefix inf, k 16",
        "exact, entropy-bounded inf, k 16",
        "exact, entropy-bounded inf, k 16, lookup 2",
    ]


@pytest.mark.parametrize("content", ["", "sampler: factor", "- factor", "- {}", "- [a"])
def test_files_that_hold_something_else(tmp_path, content):
    path = tmp_path / "grid.yaml"
    path.write_text(content)
    with pytest.raises(SetBlockError, match=r"grid.yaml (must be a list of mappings|is not YAML)"):
        read_grids(path)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("- {sampler: factor, factor: []}", "grid key 'factor' must have at least one value"),
        ("- {gama: 1}", "grid key 'gama' is not known, did you mean 'gamma'"),
        ("- {sampler: factor, gamma: 1}", "sampler factor has no 'gamma'"),
        ("- {method: ntp}", "method must be one of sbd, exact"),
    ],
)
def test_files_with_mistakes(model, tmp_path, content, message):
    path = tmp_path / "grid.yaml"
    path.write_text(content)
    with pytest.raises(ParameterError, match=message):
        points_of(model, read_grids(path))
