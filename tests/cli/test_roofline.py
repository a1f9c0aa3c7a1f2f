"""`setblock roofline`: its tables, plans, measurements and mistakes."""

import json

import pytest
from transformers import AutoConfig
from typer.main import get_command

from families import FAMILIES
from setblock.cli import roofline_subject
from setblock.cli.main import app
from setblock.roofline.hardware import HARDWARE
from setblock.roofline.precision import Precision
from setblock.roofline.prediction import Prediction, block_speedup, last_paying_batch
from setblock.roofline.printed import PrintedPrediction

TINY = FAMILIES["llama"] | {"vocab_size": 300}


@pytest.fixture
def config_folder(tmp_path):
    """A folder with a config and nothing else."""

    def config_folder(family, **config):
        AutoConfig.for_model(family, **config).save_pretrained(tmp_path / family)
        return tmp_path / family

    return config_folder


@pytest.fixture
def instant_machine(monkeypatch):
    """Measuring takes no time."""
    monkeypatch.setattr("setblock.roofline.machine.measured_hardware", lambda *_, **__: HARDWARE["m4"])


def told(run, *arguments):
    outcome = run("roofline", *arguments, "--json")
    assert (outcome.code, outcome.stderr) == (0, "")
    return json.loads(outcome.stdout)


def refused(outcome, *said, code):
    assert (outcome.code, outcome.stdout) == (code, "")
    assert outcome.message.startswith("setblock: error: ")
    for part in said:
        assert part in outcome.message


def test_as_printed(run):
    result = told(run, "--as-printed")
    assert result["mode"] == "as printed"
    assert round(result["slowdown"]["8"]["64"], 3) == 1.903
    assert round(result["speedup"]["4"]["8"], 3) == 7.824
    assert result["slowdown"].keys() == {"1", "4", "8", "16"}
    assert result["slowdown"]["1"].keys() == {"2", "4", "8", "16", "32", "64"}
    assert (result["speedup"].keys(), result["speedup"]["1"].keys()) == ({"1", "4", "8"}, {"2", "4", "8"})
    later = told(run, "--as-printed", "--kv-length", 4096)
    assert round(later["slowdown"]["4"]["64"], 3) == 1.062
    assert "3.799" in run("roofline", "--as-printed").stdout


def test_corrected_is_the_default(run):
    result = told(run)
    assert result["mode"] == "corrected"
    assert (result["model"]["name"], result["hardware"]["name"]) == ("llama-3.1-8b", "paper-h100")
    assert round(result["speedup"]["1"]["4"], 2) == 3.97
    assert (
        result["speedup"]["32"]["4"]
        < block_speedup(PrintedPrediction(), 4, block_size=16, batch=8, kv_length=1024) / 1.9
    )
    text = run("roofline").stdout
    assert f"{result['speedup']['32']['4']:.3f}" in text
    assert "not measurements" in text


def test_json_is_what_follows_from_its_own_costs(run):
    result = told(run, "--hardware", "l4", "--model", "qwen3-8b", "--weights", "int8", "--kv-length", 512)
    bandwidth, peak = result["hardware"]["bandwidth"], result["hardware"]["peaks"]["16"]
    seconds = {
        tokens: sum(
            max(o["flops"] / peak, (o["weight_bytes"] + o["activation_bytes"] + o["kv_bytes"]) / bandwidth)
            for o in operations
        )
        for tokens, operations in result["operations"].items()
    }
    assert result["slowdown"]["1"]["16"] == pytest.approx(seconds["16"] / seconds["1"])
    assert result["precision"] == {"activations": "bfloat16", "weights": "int8", "kv": "bfloat16"}
    assert result["last_paying_batch"].keys() == {"2", "4", "8"}
    assert result["left_out"]


def test_own_figures(run):
    slow = told(run, "--hardware", "l4", "--bandwidth", 100, "--peak", 50)["hardware"]
    assert (slow["bandwidth"], slow["peaks"]["16"]) == (100e9, 50e12)


def test_folders_hold_configs_only(run, config_folder):
    result = told(run, "--model", config_folder("llama", **TINY))
    assert result["precision"]["weights"] == "bfloat16"
    assert (result["model"]["hidden"], result["hardware"]["name"]) == (32, "h100")


def test_an_architecture_with_other_parts_is_told(run, config_folder, monkeypatch):
    monkeypatch.setattr(roofline_subject, "shape_of", lambda config, name: roofline_subject.PRESETS["smollm2-135m"])
    outcome = run("roofline", "--model", config_folder("llama", **TINY))
    assert outcome.code == 0
    assert "parts of its architecture are not modelled" in outcome.message


def test_plan_without_measurements_says_how_to_make_them(run):
    outcome = run("roofline", "--plan", "--concurrency", 32, "--hardware", "l4", "--model", "qwen3-8b", "--nfe", 4)
    assert "NFE 4x at k=16, as stated: 2.77 times" in outcome.stdout
    assert "setblock evaluate" in outcome.stdout
    assert "4.8 GB of cache, of 24 GB" in outcome.stdout
    result = told(run, "--plan", "--concurrency", 64, "--hardware", "l4", "--model", "qwen3-8b")
    assert (result["chosen"], result["stated"]) == (None, None)
    assert result["batch_in_memory"] < 64


def test_plan_from_what_evaluate_prints(run, sbd_folder, tmp_path):
    path = tmp_path / "results.jsonl"
    quick = ("--limit", 3, "--max-new-tokens", 16, "--json")
    with path.open("w") as file:
        for how in (("--gamma", 0), ("--gamma", 9), ("--method", "exact"), ("--method", "ntp")):
            file.write(run("evaluate", "--model", sbd_folder, *how, *quick).stdout)
    result = told(run, "--plan", "--evaluations", path, "--tolerance", 1)
    assert [each["gamma"] for each in result["evaluated"] if each["method"] == "sbd"] == [9, 0]
    assert (result["chosen"]["gamma"], result["chosen"]["block_size"]) == (9, 16)
    text = run("roofline", "--plan", "--evaluations", path, "--tolerance", 1).stdout
    assert "* entropy-bounded (gamma 9)" in text
    assert "Take entropy-bounded (gamma 9), k = 16" in text
    busy = run("roofline", "--plan", "--evaluations", path, "--concurrency", 2000, "--kv-length", 8).stdout
    assert "Decode plainly" in busy


def test_measure_sets_measured_beside_predicted(run, instant_machine, config_folder):
    folder = config_folder("gemma2", **FAMILIES["gemma2"], vocab_size=300)
    how = ("--measure", "--model", folder, "--dtype", "float32", "--kv-length", 20, "--repeats", 2, "--concurrency", 2)
    result = told(run, *how)
    assert [each["block_size"] for each in result["passes"]] == [1, 2, 4, 8, 16, 32, 64]
    for each in result["passes"]:
        assert 0 < each["lower_quartile"] <= each["median"] <= each["upper_quartile"]
        assert each["share"] == each["predicted"] / each["median"]
    assert result["precision"]["kv"] == "float32"
    assert "quartiles" in run("roofline", *how).stdout


def test_this_machine_is_measured(run, instant_machine):
    assert told(run, "--hardware", "this-machine")["hardware"]["bandwidth"] == HARDWARE["m4"].bandwidth


def test_plot(run, tmp_path):
    outcome = run("roofline", "--plot", tmp_path / "plot.svg", "--hardware", "l4")
    assert outcome.message == f"setblock: wrote {tmp_path / 'plot.svg'}"
    assert (tmp_path / "plot.svg").read_text().startswith("<?xml")


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("--hardware", "abacus"), "must be one of h100, paper-h100, h200, a100, b200, l4, rtx-4090, mi300x"),
        (("--bandwidth", 0), "bandwidth must be positive, not 0"),
        (("--as-printed", "--hardware", "l4"), "--as-printed is the paper's model on the paper's hardware"),
        (("--as-printed", "--plan"), "exclude each other"),
        (("--nfe", 4), "--nfe and --evaluations are for --plan"),
        (("--plan", "--nfe", 17), "must be in 1..16 (the block size), not 17"),
        (("--plan", "--tolerance", 1.5), "tolerance must be in 0..1"),
        (("--measure", "--hardware", "h100"), "--measure is of this machine"),
        (("--measure", "--dtype", "int8"), "not in int8"),
        (("--measure", "--kv", "int8"), "one type for all"),
    ],
)
def test_wrong_usage(run, arguments, said):
    refused(run("roofline", *arguments), said, code=2)


def test_models_that_are_none(run, tmp_path, config_folder):
    refused(run("roofline", "--model", tmp_path / "nowhere"), "can't read the config of model", code=1)
    refused(run("roofline", "--model", config_folder("t5")), "is an encoder-decoder", code=1)
    refused(run("roofline", "--model", config_folder("mamba")), "recurrent state", code=1)


def test_models_too_large_to_measure(run, instant_machine):
    refused(run("roofline", "--measure", "--model", "qwen3-30b-a3b"), "takes 61", "measure a smaller one", code=1)


def test_every_option_is_explained_in_its_panel(run):
    assert all(parameter.help for parameter in get_command(app).commands["roofline"].params)
    text = run("roofline", "--help").stdout
    places = [text.index(f" {panel} ─") for panel in ("Model", "Hardware", "Load", "Plan", "Output")]
    assert places == sorted(places)


def test_batch_where_blocks_stop_paying(run):
    result = told(run, "--model", "llama-3.1-8b", "--hardware", "h100", "--kv-length", 128)
    prediction = Prediction(
        shape=roofline_subject.PRESETS["llama-3.1-8b"], hardware=HARDWARE["h100"], precision=Precision.of("bfloat16")
    )
    last = last_paying_batch(prediction, 4, block_size=16, kv_length=128)
    assert result["last_paying_batch"]["4"] == last
    speedups = [block_speedup(prediction, 4, block_size=16, batch=b, kv_length=128) for b in (last, last + 1)]
    assert speedups[0] > 1 >= speedups[1]
