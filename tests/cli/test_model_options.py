"""Options of how a model is loaded reach it, and its answers are the same where they change nothing but speed."""

import json

import pytest
import torch

import setblock.cli.runtime
from setblock.model.sbd_model import SBDModel

COMMAND = ("generate", "Tom has 5 pens.", "--method", "exact", "--max-new-tokens", 20, "--json")


@pytest.fixture
def loaded(monkeypatch: pytest.MonkeyPatch) -> list[SBDModel]:
    """The models that commands have decoded with."""
    models = []
    load_model = setblock.cli.runtime.load_language_model

    def remember(*args: object, **options: object) -> SBDModel:
        models.append(load_model(*args, **options))
        return models[-1]

    monkeypatch.setattr("setblock.cli.generate.load_language_model", remember)
    return models


def test_int8_weights(run, sbd_folder, loaded):
    outcome = run(*COMMAND, "--model", sbd_folder, "--quantization", "int8")
    assert outcome.stderr == ""
    assert json.loads(outcome.stdout)["num_tokens"] > 0
    assert loaded[0].quantization == "int8"


def test_a_compiled_model(run, sbd_folder, loaded, monkeypatch):
    monkeypatch.setattr(SBDModel.compile, "__kwdefaults__", {"backend": "eager"})
    plain = json.loads(run(*COMMAND, "--model", sbd_folder).stdout)
    compiled = json.loads(run(*COMMAND, "--model", sbd_folder, "--compile").stdout)
    assert {**plain, "seconds": 0} == {**compiled, "seconds": 0}
    assert [model.compiled is not None for model in loaded] == [False, True]


def test_prepacked_weights(run, sbd_folder, loaded):
    plain = json.loads(run(*COMMAND, "--model", sbd_folder).stdout)
    prepacked = json.loads(run(*COMMAND, "--model", sbd_folder, "--prepack").stdout)
    assert {**plain, "seconds": 0} == {**prepacked, "seconds": 0}
    assert [model.prepacked for model in loaded] == [False, True]


@pytest.mark.parametrize(("option", "name"), [("--compile", "prepacked"), ("--quantization=int8", "int8")])
def test_prepacked_weights_go_with_no_others(run, sbd_folder, option, name):
    outcome = run(*COMMAND, "--model", sbd_folder, "--prepack", option)
    assert outcome.code == 1
    assert outcome.stderr.startswith("setblock: error: ")
    assert name in outcome.stderr
    assert outcome.stderr.count("\n") == 1


def test_a_type_of_weights(run, sbd_folder, loaded):
    assert run(*COMMAND, "--model", sbd_folder, "--dtype", "bfloat16").code == 0
    assert loaded[0].model.dtype == torch.bfloat16
