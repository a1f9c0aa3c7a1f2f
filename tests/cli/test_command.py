"""The command as a process of its own, and what holds the options to the library."""

import inspect
import json
import os
import subprocess
import sys

import pytest
from rich.text import Text
from typer.main import get_command

from setblock.cli.app import app
from setblock.cli.options.tasks import ExamplesOptions
from setblock.decoding.samplers import EntropyPrefix
from setblock.decoding.settings.resolve import DRAFT_GAMMA
from setblock.decoding.settings.table import HYPERPARAMETERS
from setblock.evaluation.run import Exam


def _process(*arguments):
    return subprocess.run(
        [sys.executable, *map(str, arguments)],
        capture_output=True,
        text=True,
        env={**os.environ, "OMP_NUM_THREADS": "1", "NO_COLOR": "1"},
        timeout=120,
        check=False,
    )


def test_help_and_version_import_no_pytorch():
    code = """
import sys
from setblock.cli.app import app
commands = ("generate", "chat", "compare", "evaluate", "sweep", "calibrate", "train", "merge", "serve")
for line in ("--help", "--version", *(f"{command} --help" for command in commands)):
    try:
        app(line.split(), prog_name="setblock")
    except SystemExit as stop:
        assert not stop.code, line
assert not {"torch", "transformers", "numpy"} & sys.modules.keys()
"""
    process = _process("-c", code)
    assert (process.returncode, process.stderr) == (0, "")


def test_the_hub_s_client_says_nothing_of_its_own():
    code = """
from setblock.cli.messages import silence_early
silence_early()
from huggingface_hub.utils import logging
assert logging.get_verbosity() == logging.ERROR
"""
    assert _process("-c", code).returncode == 0


@pytest.mark.nightly  # a process takes long to import all that a model needs; CI also runs the command as the README shows it
def test_python_m_setblock_streams(sbd_folder):
    process = _process("-m", "setblock", "generate", "Tom", "--model", sbd_folder, "--max-new-tokens", 8)
    assert process.returncode == 0
    assert process.stdout.endswith("\n")
    *steps, figures = process.stderr.splitlines()
    assert all(step.endswith(" ...") for step in steps)  # what takes seconds here
    assert "tokens per forward" in figures


@pytest.mark.parametrize(
    "command",
    ["generate", "chat", "compare", "evaluate", "sweep", "calibrate", "train", "merge", "export", "serve", "roofline"],
)
def test_every_option_is_explained(command):
    parameters = get_command(app).commands[command].params
    assert len(parameters) > 2
    assert all(parameter.help for parameter in parameters)
    for parameter in parameters:  # Rich takes what is in brackets for a style, unless they are escaped
        assert Text.from_markup(parameter.help).plain == parameter.help


@pytest.mark.parametrize("command", ["generate", "compare", "evaluate"])
def test_options_come_in_groups(run, command):
    help_text = run(command, "--help-all").stdout
    places = [help_text.index(f" {panel} ─") for panel in ("Model", "Decoding", "Sampling", "Output")]
    assert places == sorted(places)
    assert places[1] < help_text.index("--sampler-option") < places[2] < help_text.index("--top-p") < places[3]


def test_help_has_what_most_need_and_help_all_the_rest(run, monkeypatch):
    monkeypatch.setenv("COLUMNS", "80")
    help_text, whole = run("generate", "--help").stdout, run("generate", "--help-all").stdout
    assert all(
        f" {name} " in help_text for name in ("--model", "--method", "--max-new-tokens", "--input", "--help-all")
    )
    assert "--top-k" not in help_text
    parameters = get_command(app).commands["generate"].params
    names = {name for each in parameters for name in each.opts if name[:2] == "--"}
    monkeypatch.setenv("COLUMNS", "160")
    whole = run("generate", "--help-all").stdout
    assert {name for name in names if f" {name} " not in whole} == set()


def test_evaluate_says_what_it_counts(run):
    help_text = " ".join(run("evaluate", "--help").stdout.split())
    assert "prefill included" in help_text
    assert "without the prefill on either side" in help_text


def test_defaults_are_the_library_s():
    gammas = f"Default: {DRAFT_GAMMA:g} in method exact; {EntropyPrefix().gamma} in sbd."
    assert gammas in HYPERPARAMETERS["gamma"].help
    limit = inspect.signature(ExamplesOptions.chosen).parameters["limit"].default
    library = inspect.signature(Exam).parameters
    assert library["limit"].default == limit == 100
    assert evaluate_command_default("batch_size") == library["batch_size"].default


def evaluate_command_default(name):
    return next(each.default for each in get_command(app).commands["evaluate"].params if each.name == name)


def test_ctrl_c_is_one_line(run, sbd_folder, monkeypatch):
    def interrupted(*_, **__):
        raise KeyboardInterrupt

    monkeypatch.setattr("setblock.cli.answering.generate.load_language_model", interrupted)
    outcome = run("generate", "Tom", "--model", sbd_folder)
    assert (outcome.code, outcome.message) == (130, "setblock: interrupted")


def test_a_bug_keeps_its_traceback(run, sbd_folder, monkeypatch):
    def broken(*_, **__):
        raise RuntimeError("a bug")

    monkeypatch.setattr("setblock.cli.answering.generate.load_language_model", broken)
    with pytest.raises(RuntimeError, match="a bug"):
        run("generate", "Tom", "--model", sbd_folder)


def test_json_of_a_prompt_that_ends_at_once(run, sbd_folder):
    outcome = run("compare", "Tom", "--model", sbd_folder, "--max-new-tokens", 1, "--json")
    assert json.loads(outcome.stdout)["nfe_speedup"] is None
