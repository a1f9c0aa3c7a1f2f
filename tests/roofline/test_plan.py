"""Plans follow from predicted times and measured passes, and from nothing else."""

import json

import pytest

from roofline.predictions import predicted
from setblock.errors import ParameterError, SetBlockError
from setblock.roofline.plan import plan, read_evaluations
from setblock.roofline.prediction import block_speedup
from setblock.roofline.speedup import predicted_speedup

LOAD = {"concurrency": 4, "kv_length": 1024}
RESULT = {
    "method": "sbd", "sampler": "entropy-bounded", "gamma": 0.1, "block_size": 16, "accuracy": 0.97, "ntp_accuracy": 0.98,
    "nfe_speedup": 4.0, "num_examples": 100,
}  # fmt: skip


@pytest.fixture
def written(tmp_path):
    def written(*changes):
        path = tmp_path / "results.jsonl"
        path.write_text("".join(json.dumps(RESULT | change) + "\n" for change in changes))
        return path

    return written


def planned(path, *, tolerance=0.01, times=None, load=LOAD):
    return plan(times or predicted(), **load, block_size=16, evaluations=read_evaluations(path), tolerance=tolerance)


def test_chooses_the_fastest_that_is_accurate_enough(written):
    path = written(
        {"gamma": 0.01, "accuracy": 0.98, "nfe_speedup": 2},
        {"gamma": 0.1, "accuracy": 0.97, "nfe_speedup": 4},
        {"gamma": 0.35, "accuracy": 0.95, "nfe_speedup": 6},
        {"method": "ntp", "nfe_speedup": 1, "block_size": 1},
    )
    assert planned(path).chosen.gamma == 0.1  # exactly a point below plain decoding is within a point
    assert planned(path, tolerance=0).chosen.gamma == 0.01
    assert planned(path, tolerance=0.05).chosen.gamma == 0.35
    assert [each.gamma for each, _ in planned(path).evaluated] == [0.35, 0.1, 0.01]


def test_measured_passes_are_put_into_eq_16(written):
    ((each, speedup),) = planned(written({})).evaluated
    assert speedup == block_speedup(predicted(), each.nfe_speedup, block_size=16, batch=4, kv_length=1024)


def test_chooses_by_seconds_and_not_by_passes(written):
    # Under this load blocks of 32 cost so much that fewer passes are not fewer seconds.
    path = written({"block_size": 8, "nfe_speedup": 4}, {"block_size": 32, "nfe_speedup": 5})
    assert planned(path).chosen.block_size == 32
    assert planned(path, load=LOAD | {"concurrency": 32}).chosen.block_size == 8


def test_chooses_nothing_where_nothing_gains(written):
    busy = LOAD | {"concurrency": 512, "kv_length": 16}
    assert planned(written({}), load=busy).chosen is None
    assert planned(written({"accuracy": 0.5})).chosen is None


def test_exact_is_never_promised_too_much(written):
    at = {"batch": 4, "kv_length": 1024}
    times = predicted()
    one, block, fused = times.seconds(1, **at), times.seconds(16, **at), times.seconds(32, **at)
    ((_, speedup),) = planned(written({"method": "exact", "gamma": None})).evaluated
    for passes in (1, 2, 4):  # however few of its passes commit
        assert speedup <= 4 * one / ((fused + (passes - 1) * block) / passes)
    assert speedup <= predicted_speedup(4, block_size=16, one_token=one, block=block, fused=fused)


def test_more_passes_than_plain_decoding_are_slower_than_it(written):
    rows = planned(written({"nfe_speedup": 0.98}, {"nfe_speedup": 1})).evaluated
    assert [each.nfe_speedup for each, _ in rows] == [1, 0.98]
    assert rows[0][1] < 1


def test_what_is_stated_goes_into_eq_16():
    made = plan(predicted(), **LOAD, block_size=16, nfe_speedup=4)
    speedup = block_speedup(predicted(), 4, block_size=16, batch=4, kv_length=1024)
    assert made.stated == (16, 4, speedup)
    assert made.chosen is None
    assert plan(predicted(), **LOAD, block_size=16).stated is None


def test_costs_bound_each_other():
    for cost in plan(predicted(), **LOAD, block_size=16).costs:
        assert 1 < cost.break_even_nfe < cost.block_size
        assert cost.best < cost.block_size
        assert cost.slowdown > 1


@pytest.mark.parametrize("change", [{"nfe_speedup": 17}, {"nfe_speedup": 0}])
def test_impossible_results(written, change):
    with pytest.raises(SetBlockError, match=r"line 1: nfe_speedup must be in 0\.\.16"):
        read_evaluations(written(change))


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("{", "line 1 is not JSON"),
        ("[]", "line 1 is no JSON object"),
        ("{}", "line 1 has no 'method'"),
        ('\n{"method": "sbd", "block_size": "many"}', "line 2 is no result"),
        (json.dumps(RESULT | {"nfe_speedup": None}), "line 1 is no result"),
        ("\n", "holds no result of method sbd or exact"),
    ],
)
def test_files_that_are_no_results(tmp_path, text, said):
    (tmp_path / "results").write_text(text)
    with pytest.raises(SetBlockError, match=said):
        read_evaluations(tmp_path / "results")


def test_no_file(tmp_path):
    with pytest.raises(SetBlockError, match=r"can't read .*nothing"):
        read_evaluations(tmp_path / "nothing")


@pytest.mark.parametrize(
    ("wrong", "said"), [({"nfe_speedup": 0.5}, "must be in 1..16"), ({"tolerance": 2}, "must be in 0..1, not 2")]
)
def test_settings_out_of_range(wrong, said):
    with pytest.raises(ParameterError, match=said):
        plan(predicted(), **LOAD, block_size=16, **wrong)
