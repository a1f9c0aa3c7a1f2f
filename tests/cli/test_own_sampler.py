"""`--sampler my_file.py:Clear`: a class in a file, for the command line alone."""

import json

import pytest

from setblock.decoding.samplers.named import SAMPLERS
from setblock.decoding.settings.table import DecodingSettings
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
