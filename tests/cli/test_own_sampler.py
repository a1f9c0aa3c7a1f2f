"""`--sampler my_file.py:Clear`: a class in a file, for the command line alone."""

import json

import pytest

from setblock.decoding.samplers.named import SAMPLERS
from setblock.decoding.settings.table import DecodingSettings
from setblock.evaluation.operating_point import label_of
from setblock.evaluation.sweeps.result_file import read_results
from setblock.server.api.protocol import ChatBody
from setblock.server.api.settings import settings_of

CLEAR = """
from dataclasses import dataclass

from setblock.decoding.samplers import BlockView, Selection, at_least_one


@dataclass(frozen=True)
class Clear:
    gap: float = 0.8

    def select(self, block: BlockView) -> Selection:
        return Selection(at_least_one(block.margin >= self.gap, block, score=block.margin))


@dataclass(frozen=True)
class NoRule:
    gap: float = 0.8
"""


@pytest.fixture
def file(tmp_path):
    path = tmp_path / "my_file.py"
    path.write_text(CLEAR)
    yield path
    for name in [name for name in SAMPLERS if ".py:" in name]:
        del SAMPLERS[name]


def test_a_class_in_a_file_decodes_and_is_swept(run, sbd_folder, file):
    how = ("--model", sbd_folder, "--max-new-tokens", 12, "--json")

    def traced(*options):
        return json.loads(
            run("generate", "Tom", "--trace", "--method", "sbd", "--sampler", f"{file}:Clear", *options, *how).stdout
        )

    assert traced()["sampler_options"] == {"gap": 0.8}
    one, all_at_once = (traced("--sampler-option", f"gap={gap}") for gap in (2, 0))
    assert len(one["passes"]) > len(all_at_once["passes"])
    grid = ("--sampler", f"{file}:Clear", "--grid", "gap=0.5", "--method", "sbd", "--limit", 1)
    rows = json.loads(run("sweep", *grid, *how).stdout)["rows"]
    assert [row["sampler_options"] for row in rows] == [{}, {"gap": 0.5}]


def test_a_sweep_of_a_class_in_a_file_is_read_again(run, sbd_folder, file, tmp_path):
    """By a process that has not loaded the class, and runs none that results name."""
    name, path = f"{file}:Clear", tmp_path / "sweep.jsonl"
    grid = ("--sampler", name, "--grid", "gap=0.5,0.9", "--method", "sbd", "--limit", 2, "--batch-size", 2)
    sweep = ("sweep", *grid, "--model", sbd_folder, "--max-new-tokens", 6, "--output", path, "--json")
    swept = run(*sweep)
    del SAMPLERS[name]
    file.write_text("raise RuntimeError\n")
    shown = run("sweep", "--results", path, "--json")
    assert (shown.code, json.loads(shown.stdout)) == (0, json.loads(swept.stdout))
    assert [row["label"] for row in json.loads(shown.stdout)["rows"][1:]] == [
        f"{name} 0.5, k 16",
        f"{name} 0.9, k 16",
    ]
    assert label_of(read_results(path)[1].point) == f"{name} 0.5, k 16", "as the figure names it"
    file.write_text(CLEAR)
    before = path.read_bytes()
    assert json.loads(run(*sweep).stdout) == json.loads(swept.stdout)
    assert path.read_bytes() == before, "nothing was decoded again"


def test_a_class_in_a_file_is_not_written_into_a_checkpoint(run, copied, file):
    """Every command that loads the checkpoint would have to run that file."""
    grid = ("--sampler", f"{file}:Clear", "--grid", "gap=0.5", "--method", "sbd", "--tolerance", "tokens=90")
    outcome = run("calibrate", "--model", copied, *grid)
    assert outcome.code == 2
    assert f"sampler {file}:Clear can't be written into a checkpoint" in outcome.message


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("my_file.py:Cleer", "my_file.py must define Cleer as a dataclass with the method select"),
        ("my_file.py:NoRule", "my_file.py must define NoRule as a dataclass with the method select"),
        ("no_file.py:Clear", "there is no file no_file.py"),
        ("broken.py:Clear", "can't load broken.py: SyntaxError"),
    ],
)
def test_mistakes_are_one_line(run, file, monkeypatch, name, said):
    monkeypatch.chdir(file.parent)
    (file.parent / "broken.py").write_text("x = \n")
    for command in (("generate", "Tom"), ("sweep",)):
        outcome = run(*command, "--sampler", name)
        assert (outcome.code, outcome.stdout) == (2, "")
        assert said in outcome.message


def test_a_client_of_a_server_names_no_file(file):
    body = {"model": "m", "messages": [{"role": "user", "content": "a"}], "sampler": f"{file}:Clear"}
    with pytest.raises(Exception, match="sampler must be one of"):
        settings_of(ChatBody.model_validate(body), default=DecodingSettings())
    assert not any(".py:" in name for name in SAMPLERS)
