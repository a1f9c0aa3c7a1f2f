"""Options of how a model is loaded reach it, and its answers are the same where they change nothing but speed."""

import json

import pytest
import torch

import setblock.cli.options.model
from setblock.model.sbd_model import SBDModel
from setblock.model.weights import is_supported

COMMAND = ("generate", "Tom has 5 pens.", "--method", "exact", "--max-new-tokens", 20, "--json")


@pytest.fixture
def loaded(monkeypatch: pytest.MonkeyPatch) -> list[SBDModel]:
    """The models that commands have decoded with."""
    models = []
    load_model = setblock.cli.options.model.load_language_model

    def remember(*args: object, **options: object) -> SBDModel:
        models.append(load_model(*args, **options))
        return models[-1]

    monkeypatch.setattr("setblock.cli.answering.generate.load_language_model", remember)
    return models


def test_int8_weights(run, sbd_folder, loaded):
    outcome = run(*COMMAND, "--model", sbd_folder, "--quantization", "int8")
    assert outcome.stderr == ""
    assert json.loads(outcome.stdout)["num_tokens"] > 0
    assert loaded[0].quantization == "int8"


def test_prepacked_weights(run, sbd_folder, loaded):
    fixed = (*COMMAND, "--drafts", "fixed", "--model", sbd_folder)
    plain = json.loads(run(*fixed).stdout)
    prepacked = json.loads(run(*fixed, "--prepack").stdout)
    assert {**plain, "seconds": 0} == {**prepacked, "seconds": 0}
    assert [model.prepacked for model in loaded] == [False, True]


def test_prepacked_weights_are_not_quantised(run, sbd_folder):
    outcome = run(*COMMAND, "--model", sbd_folder, "--prepack", "--quantization=int8")
    assert outcome.code == 1
    assert outcome.stderr.startswith("setblock: error: ")
    assert "int8" in outcome.stderr
    assert outcome.stderr.count("\n") == 1


def test_prepacked_and_compiled(run, sbd_folder, loaded, monkeypatch):
    monkeypatch.setattr(SBDModel.compile, "__kwdefaults__", {"backend": "eager"})
    quick = (*COMMAND, "--method", "ntp", "--model", sbd_folder)  # passes of few sizes
    plain = json.loads(run(*quick).stdout)
    outcome = run(*quick, "--prepack", "--compile")
    assert {**plain, "seconds": 0} == {**json.loads(outcome.stdout), "seconds": 0}
    assert loaded[1].prepacked
    assert loaded[1].compiled is not None
    assert outcome.stderr.startswith("setblock: compiling: each size of pass takes about ")
    assert outcome.stderr.count("\n") == 1


@pytest.mark.parametrize(
    ("options", "prepacked"),
    [
        ([], False),  # the weights are float32
        (["--dtype", "bfloat16"], is_supported(torch.bfloat16)),
        (["--dtype", "bfloat16", "--no-prepack"], False),
        (["--dtype", "bfloat16", "--quantization", "int8"], False),
    ],
)
def test_weights_are_prepacked_where_it_pays(run, sbd_folder, loaded, options, prepacked):
    outcome = run(*COMMAND, "--model", sbd_folder, *options)
    assert outcome.code == 0
    assert loaded[0].prepacked == prepacked
    plain = run(*COMMAND, "--model", sbd_folder, *options, *([] if "--no-prepack" in options else ["--no-prepack"]))
    assert json.loads(plain.stdout)["text"] == json.loads(outcome.stdout)["text"]


def test_a_type_of_weights(run, sbd_folder, loaded):
    assert run(*COMMAND, "--model", sbd_folder, "--dtype", "bfloat16").code == 0
    assert loaded[0].model.dtype == torch.bfloat16
