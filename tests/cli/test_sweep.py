"""`setblock sweep`, as a user types it."""

import json

import pytest

from decoding.samplers.cases import EXAMPLES, FOLDER
from setblock.cli.options.tasks import GridOptions
from setblock.decoding.samplers import SAMPLERS
from setblock.errors import ParameterError

QUICK = ("--limit", 2, "--max-new-tokens", 6)
GRID = ("--grid", "gamma=0.1,inf", "--grid", "block_size=4")


def test_a_file_and_json(run, sbd_folder, tmp_path, monkeypatch):
    out = tmp_path / "s.jsonl"
    outputs = ("--output", out, "--json")
    outcome = run("sweep", "--model", sbd_folder, *QUICK, *GRID, *outputs)
    assert (outcome.code, outcome.stderr) == (0, "")
    result = json.loads(outcome.stdout)
    assert [row["label"] for row in result["rows"]] == [
        "ntp",
        "entropy-prefix 0.1, k 4",
        "entropy-prefix inf, k 4",
        "exact, entropy-bounded inf, k 4",
    ]
    assert result["rows"][2]["gamma"] == "inf"
    assert result["run"]["task"]["num_examples"] == 2
    assert result["run"]["settings"] == {"max_new_tokens": 6}
    assert len(out.read_text().splitlines()) == 4

    # The same command decodes nothing; the file alone says the same, without a model.
    before = out.read_bytes()
    again = run("sweep", "--model", sbd_folder, *QUICK, *GRID, "--output", out, "--json")
    assert json.loads(again.stdout) == result
    assert out.read_bytes() == before
    assert json.loads(run("sweep", "--results", out, "--json").stdout) == result
    monkeypatch.delenv("COLUMNS", raising=False)
    table = run("sweep", "--results", out).stdout  # to a pipe, where nothing is cut
    assert "2 word-problems, test split" in table
    assert all(row["label"] in table for row in result["rows"])
    other = run("sweep", "--model", sbd_folder, *QUICK, *GRID, "--output", out, "--seed", 1)
    assert other.code == 1
    assert "holds another sweep: its task." in other.message


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (("--results", "a", "--output", "b"), "--results decodes nothing, so there is nothing for --output"),
        (("--grid", "gamma"), "--grid must be KEY=VALUE, not 'gamma'"),
        (("--grid", "gamma=1,,2"), "--grid gamma must have values, such as factor=0.5,1, not '1,,2'"),
        (("--grid", "gamma=1", "--grid", "gamma=2"), "gamma is given more than once"),
        (
            ("--grid-file", "g.yaml", "--sampler", "factor"),
            "--grid-file takes the place of --method, --sampler and --grid",
        ),
        (("--task", "sums"), "there is no task 'sums'; there are instructions, "),
        (("--method", "ntp"), "method must be one of sbd, exact, not 'ntp' (ntp is always decoded)"),
    ],
)
def test_mistakes_are_reported_before_a_model_is_loaded(run, options, message, monkeypatch):
    monkeypatch.setattr("setblock.cli.measuring.evaluate.load_model", lambda *_, **__: pytest.fail("it was loaded"))
    outcome = run("sweep", *options)
    assert outcome.code == 2
    assert message in outcome.message


def test_files_that_are_not_there(run, tmp_path):
    assert "can't read" in run("sweep", "--results", tmp_path / "none.jsonl").message
    assert "can't read" in run("sweep", "--grid-file", tmp_path / "none.yaml").message


def test_dashes_are_as_good_as_underscores(monkeypatch):
    monkeypatch.setitem(SAMPLERS, "klass", EXAMPLES["klass"])
    grids = GridOptions(methods=["sbd"], samplers=["klass"], grid=["max-kl=0.1", "block-size=4"]).grids()
    assert grids == [{"method": ["sbd"], "sampler": ["klass"], "max_kl": ["0.1"], "block_size": ["4"]}]
    with pytest.raises(ParameterError, match="fits nothing that is swept"):
        GridOptions(samplers=["factor"], grid=["max-kl=0.1"]).grids()


def test_a_grid_file_takes_samplers_from_files(tmp_path):
    name = f"{FOLDER / 'spaced.py'}:Spaced"
    path = tmp_path / "grid.yaml"
    path.write_text(f"- {{sampler: [factor, {name!r}], block_size: 4}}\n")
    try:
        assert GridOptions(grid_file=path).grids() == [{"sampler": ["factor", name], "block_size": [4]}]
        assert SAMPLERS[name].__name__ == "Spaced"
    finally:
        SAMPLERS.pop(name, None)
