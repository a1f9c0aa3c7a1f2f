"""`setblock roofline`: its tables and mistakes."""

import json

import pytest
from transformers import AutoConfig
from typer.main import get_command

from families import FAMILIES
from setblock.cli.app import app
from setblock.cli.measuring import roofline as command
from setblock.model.loading.named import BUNDLED_MODEL
from setblock.roofline.hardware import HARDWARE
from setblock.roofline.prediction import Precision, Prediction, block_speedup, last_paying_batch
from setblock.roofline.shape import PRESETS

TINY = FAMILIES["llama"] | {"vocab_size": 300}


@pytest.fixture
def config_folder(tmp_path):
    """A folder with a config and nothing else."""

    def config_folder(family, **config):
        AutoConfig.for_model(family, **config).save_pretrained(tmp_path / family)
        return tmp_path / family

    return config_folder


def prediction(run, *arguments):
    outcome = run("roofline", *arguments, "--json")
    assert (outcome.code, outcome.stderr) == (0, "")
    return json.loads(outcome.stdout)


def refused(outcome, *said, code):
    assert (outcome.code, outcome.stdout) == (code, "")
    assert outcome.message.startswith("setblock: error: ")
    for part in said:
        assert part in outcome.message


def test_the_paper_s_model_is_the_default(run):
    result = prediction(run)
    assert (result["model"]["name"], result["hardware"]["name"]) == ("llama-3.1-8b", "paper-h100")
    assert round(result["speedup"]["1"]["4"], 2) == 3.97
    text = run("roofline").stdout
    assert f"{result['speedup']['32']['4']:.3f}" in text
    assert "not measurements" in text


def test_json_is_what_follows_from_its_own_costs(run):
    result = prediction(run, "--hardware", "l4", "--model", "qwen3-8b", "--weights", "int8", "--kv-length", 512)
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
    slow = prediction(run, "--hardware", "l4", "--bandwidth", 100, "--peak", 50)["hardware"]
    assert (slow["bandwidth"], slow["peaks"]["16"]) == (100e9, 50e12)


def test_folders_hold_configs_only(run, config_folder):
    result = prediction(run, "--model", config_folder("llama", **TINY))
    assert result["precision"]["weights"] == "bfloat16"
    assert (result["model"]["hidden"], result["hardware"]["name"]) == (32, "h100")


def test_names_of_models_are_resolved(run):
    result = prediction(run, "--model", "bundled")
    config = json.loads((BUNDLED_MODEL / "config.json").read_text())
    assert (result["model"]["name"], result["model"]["hidden"]) == ("bundled", config["hidden_size"])


def test_an_architecture_with_other_parts_is_reported(run, config_folder, monkeypatch):
    monkeypatch.setattr(command, "shape_of", lambda config, name: PRESETS["smollm2-135m"])
    outcome = run("roofline", "--model", config_folder("llama", **TINY))
    assert outcome.code == 0
    assert "parts of its architecture are not modelled" in outcome.message


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("--hardware", "abacus"), "must be one of h100, paper-h100, h200, a100, b200, l4, rtx-4090, mi300x"),
        (("--bandwidth", 0), "bandwidth must be positive, not 0"),
    ],
)
def test_wrong_usage(run, arguments, said):
    refused(run("roofline", *arguments), said, code=2)


def test_models_that_are_none(run, tmp_path, config_folder):
    refused(run("roofline", "--model", tmp_path / "nowhere"), "nowhere: no such folder", code=1)
    refused(run("roofline", "--model", tmp_path), "can't read the config of model", code=1)
    refused(run("roofline", "--model", config_folder("t5")), "is an encoder-decoder", code=1)
    refused(run("roofline", "--model", config_folder("mamba")), "no valid num_attention_heads", code=1)


def test_every_option_is_explained_in_its_panel(run):
    assert all(parameter.help for parameter in get_command(app).commands["roofline"].params)
    text = run("roofline", "--help").stdout
    places = [text.index(f" {panel} ─") for panel in ("Model", "Hardware", "Load", "Output")]
    assert places == sorted(places)


def test_batch_where_blocks_stop_paying(run):
    result = prediction(run, "--model", "llama-3.1-8b", "--hardware", "h100", "--kv-length", 128)
    found = Prediction(shape=PRESETS["llama-3.1-8b"], hardware=HARDWARE["h100"], precision=Precision.of("bfloat16"))
    last = last_paying_batch(found, 4, block_size=16, kv_length=128)
    assert result["last_paying_batch"]["4"] == last
    speedups = [block_speedup(found, 4, block_size=16, batch=b, kv_length=128) for b in (last, last + 1)]
    assert speedups[0] > 1 >= speedups[1]
