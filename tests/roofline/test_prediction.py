"""Properties of predicted times, and of what follows from them."""

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from roofline.predictions import predicted
from setblock.errors import ParameterError
from setblock.roofline.hardware import HARDWARE, hardware_named
from setblock.roofline.prediction import (
    BYTES,
    Precision,
    Prediction,
    block_speedup,
    experts_read,
    last_paying_batch,
    predicted_speedup,
    slowdown,
)
from setblock.roofline.shape import PRESETS

MODELS, MACHINES = sorted(PRESETS), sorted(HARDWARE)
TYPES = ["bfloat16", "float8", "int4"]
predictions = st.builds(predicted, st.sampled_from(MODELS), st.sampled_from(MACHINES), st.sampled_from(TYPES))
sizes, batches, lengths = st.integers(1, 64), st.integers(1, 300), st.integers(1, 40_000)


@given(predictions, sizes, batches, lengths)
def test_more_of_anything_takes_longer(prediction, tokens, batch, length):
    base = prediction.seconds(tokens, batch=batch, kv_length=length)
    assert prediction.seconds(tokens + 1, batch=batch, kv_length=length) > base
    assert prediction.seconds(tokens, batch=batch + 1, kv_length=length) > base
    assert prediction.seconds(tokens, batch=batch, kv_length=length + 1) >= base
    assert prediction.seconds(tokens + 1, batch=batch, kv_length=length, outputs=1) < prediction.seconds(
        tokens + 1, batch=batch, kv_length=length
    )


@given(predictions, st.integers(2, 64), batches, lengths)
def test_a_block_costs_more_than_a_token_and_less_than_a_token_each(prediction, k, batch, length):
    assert 1 < slowdown(prediction, k, batch=batch, kv_length=length) <= k


@given(predictions, sizes, batches, lengths, st.floats(1.01, 10))
def test_a_faster_machine_is_never_slower_nor_more_than_as_much_faster(prediction, tokens, batch, length, factor):
    hardware = prediction.hardware
    times = [
        replace(prediction, hardware=faster).seconds(tokens, batch=batch, kv_length=length)
        for faster in (
            hardware,
            replace(hardware, bandwidth=hardware.bandwidth * factor),
            replace(hardware, peaks={bits: peak * factor for bits, peak in hardware.peaks.items()}),
            replace(
                hardware,
                bandwidth=hardware.bandwidth * factor,
                peaks={bits: peak * factor for bits, peak in hardware.peaks.items()},
            ),
        )
    ]
    assert times[0] >= max(times[1:3])
    assert min(times[1:3]) >= times[3] * (1 - 1e-9)
    assert times[3] == pytest.approx(times[0] / factor)


@given(predictions, st.integers(2, 32), batches, lengths, st.floats(0, 1), st.floats(0, 1))
def test_speedup_grows_with_nfe_and_stays_below_it(prediction, k, batch, length, one, other):
    low, high = sorted((1 + one * (k - 1), 1 + other * (k - 1)))
    at = {"block_size": k, "batch": batch, "kv_length": length}
    assert block_speedup(prediction, low, **at) <= block_speedup(prediction, high, **at) * (1 + 1e-12)
    assert block_speedup(prediction, high, **at) < high  # no pass is as cheap as a one-token pass


def test_speedup_is_eq_16_of_the_predicted_passes():
    prediction = predicted()
    at = {"batch": 4, "kv_length": 1024}
    times = {
        "one_token": prediction.seconds(1, **at),
        "block": prediction.seconds(16, **at),
        "fused": prediction.seconds(32, outputs=16, **at),
    }
    expected = predicted_speedup(16 / 5, block_size=16, **times)
    assert block_speedup(prediction, 5, block_size=16, **at) == expected


@pytest.mark.parametrize("model", MODELS)
@pytest.mark.parametrize("nfe", [2, 4, 8])
@pytest.mark.parametrize("length", [16, 2048])
def test_the_last_paying_batch_is_where_the_speedup_crosses_1(model, nfe, length):
    prediction, limit = predicted(model, "h100", "bfloat16"), 150
    at = {"block_size": 16, "kv_length": length}
    speedups = {b: block_speedup(prediction, nfe, batch=b, **at) for b in range(1, limit + 1)}
    paying = [batch for batch, speedup in speedups.items() if speedup > 1]
    last = last_paying_batch(prediction, nfe, limit=limit, **at)
    assert last == (None if limit in paying else max(paying, default=0))
    if last and not PRESETS[model].layers[0].experts:
        assert paying == list(range(1, last + 1))  # of dense models, every smaller batch pays, too


def test_no_batch_pays_where_nothing_is_saved():
    assert last_paying_batch(predicted(), 1, block_size=16, kv_length=1024) == 0


def test_weights_are_read_once_a_pass_and_multiplied_once_a_token():
    prediction = predicted(dtype="bfloat16")
    active = prediction.shape.active_parameters
    for tokens, batch in ((1, 1), (16, 1), (16, 8)):
        operations = list(prediction.operations(tokens, batch=batch, kv_length=100))
        linear = [operation for operation in operations if operation.name != "attention"]
        assert sum(operation.weight_bytes for operation in operations) == 2 * active
        assert sum(operation.flops for operation in linear) == 2 * active * tokens * batch


def test_attention_reads_the_cache_once_for_each_request():
    prediction = replace(predicted(), precision=Precision.of("bfloat16", kv="float8"))
    for tokens in (1, 16):
        (attention,) = (o for o in prediction.operations(tokens, batch=3, kv_length=100) if o.name == "attention")
        assert attention.kv_bytes == 3 * prediction.kv_memory(100 + tokens)
        shape = prediction.shape
        assert attention.flops == 4 * 3 * tokens * (100 + tokens) * 32 * shape.heads * shape.head_dim


def test_a_window_bounds_what_attention_reads():
    shape = PRESETS["llama-3.1-8b"]
    windowed = replace(shape, layers=(replace(shape.layers[0], window=512),))
    short, long = (
        replace(predicted(), shape=windowed).seconds(1, batch=1, kv_length=length) for length in (511, 40_000)
    )
    assert short == long < predicted().seconds(1, batch=1, kv_length=40_000)


@given(st.integers(1, 500))
def test_experts_that_are_read(rows):
    (layer,) = PRESETS["qwen3-30b-a3b"].layers
    assert layer.active_experts <= experts_read(layer, rows) * (1 + 1e-9)
    assert experts_read(layer, rows) <= min(layer.experts, rows * layer.active_experts * (1 + 1e-9))
    assert experts_read(layer, rows) < experts_read(layer, rows + 1) or rows > 300


def test_blocks_cost_a_mixture_of_experts_more_than_a_dense_model():
    at = {"batch": 1, "kv_length": 1024}
    mixture, dense = (slowdown(predicted(m, "h100", "bfloat16"), 16, **at) for m in ("qwen3-30b-a3b", "qwen3-8b"))
    assert dense < 1.02
    assert mixture > 4  # 16 tokens need some 80 of 128 experts, where one needs 8


def test_types_decide_what_is_computed_in():
    h100, m4 = HARDWARE["h100"], HARDWARE["m4"]
    assert Precision.of("float8").linear_bits == 8
    assert Precision.of("bfloat16", weights="int4").linear_bits == 16
    assert Precision.of("float8").attention_bits == 16
    assert h100.peak(8) == 2 * h100.peak(16)
    assert h100.peak(4) == h100.peak(8)
    assert m4.peak(8) == m4.peak(16)  # it has no 8-bit units
    assert BYTES["int4"] == 0.5


def test_unknown_names_name_the_known_ones():
    with pytest.raises(
        ParameterError,
        match=r"must be one of h100, .*rtx-4090, .*, not 'h1000': give other figures by --bandwidth",
    ):
        hardware_named("h1000")
    assert hardware_named("RTX 4090") is HARDWARE["rtx-4090"]
    with pytest.raises(ParameterError, match=r"type of weights must be one of float32, .*, not 'int3'"):
        Precision.of("bfloat16", weights="int3")


def test_own_figures_take_the_place_of_the_table_s():
    own = HARDWARE["h100"].with_figures(bandwidth=1e12, peak=None)
    assert (own.bandwidth, own.peak(16)) == (1e12, HARDWARE["h100"].peak(16))
    assert HARDWARE["h100"].with_figures(bandwidth=None, peak=5e12).peak(8) == 5e12
    with pytest.raises(ParameterError, match="bandwidth must be positive, not -1"):
        HARDWARE["h100"].with_figures(bandwidth=-1, peak=None)


@pytest.mark.parametrize("hardware", HARDWARE.values(), ids=HARDWARE)
def test_data_sheets_are_in_their_units(hardware):
    assert 50e9 < hardware.bandwidth < 20e12
    assert 1e12 < hardware.peak(32) <= hardware.peak(16) <= hardware.peak(8) < 1e16
    assert hardware.memory > 8e9


def test_batch_in_memory():
    prediction = Prediction(shape=PRESETS["llama-3.1-8b"], hardware=HARDWARE["l4"], precision=Precision.of("bfloat16"))
    fits, weights = prediction.batch_in_memory(1024), 2 * prediction.shape.parameters
    assert weights + fits * prediction.kv_memory(1024) <= 24e9
    assert weights + (fits + 1) * prediction.kv_memory(1024) > 24e9
    assert replace(prediction, hardware=replace(HARDWARE["l4"], memory=1e9)).batch_in_memory(1024) == 0
