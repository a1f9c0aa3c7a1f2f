"""JSON of people and models is read to a bounded depth; files of JSON lines are whole, and of one writer."""

import json
import math
from collections.abc import Callable
from pathlib import Path

import pytest

from setblock.errors import SetBlockError
from setblock.json_lines import MOST_NESTED, LinesFile, PartFile, json_line, read_json
from setblock.yaml_loader import read_yaml


@pytest.mark.parametrize("nested", [lambda n: "[" * n + "]" * n, lambda n: '{"a": ' * n + "1" + "}" * n])
def test_json_is_read_to_a_bounded_depth(nested: Callable[[int], str]) -> None:
    assert read_json(nested(MOST_NESTED)) == json.loads(nested(MOST_NESTED))
    for depth in (MOST_NESTED + 1, 5_000, 200_000):
        with pytest.raises(ValueError, match="it is nested deeper than 100 levels"):
            read_json(nested(depth))
    assert read_json("[" + ",".join(["[[{}]]"] * 1000) + "]"), "wide is not deep"
    assert read_json(json.dumps("[{" * 500)) == "[{" * 500, "nor is a text"


def test_yaml_is_read_to_a_bounded_depth(tmp_path: Path) -> None:
    path = tmp_path / "a.yaml"
    path.write_text("[" * MOST_NESTED + "]" * MOST_NESTED)
    assert read_yaml(path)
    for deep in ("[" * 3000 + "]" * 3000, "{a: " * 3000 + "1" + "}" * 3000, "- " * 3000 + "1"):
        path.write_text(deep)
        with pytest.raises(SetBlockError, match=r"recipe .*a\.yaml is not YAML: it is nested deeper than 100 levels"):
            read_yaml(path, what="recipe")


def test_a_line_is_json_whatever_it_holds() -> None:
    value = {"a": [math.inf, -math.inf], "b": "\ud800é\n"}
    line = json_line(value)
    assert line.encode().endswith(b"\n")
    assert line.count("\n") == 1
    assert json.loads(line) == {"a": ["inf", "-inf"], "b": "\ud800é\n"}


def lines(*values: object) -> bytes:
    return "".join(map(json_line, values)).encode()


@pytest.mark.parametrize(
    ("content", "values"),
    [
        (b"", []),
        (lines(1, {"a": 2}), [1, {"a": 2}]),
        (lines(1) + b'{"a": 2', [1]),  # cut short
        (lines(1) + b'{"a": 2}', [1, {"a": 2}]),  # but for its line break
        (b'{"a"', []),
    ],
)
def test_a_file_goes_on_behind_its_last_whole_line(tmp_path: Path, content: bytes, values: list[object]) -> None:
    path = tmp_path / "a.jsonl"
    path.write_bytes(content)
    with LinesFile(path, what="a line") as file:
        assert file.values == values
        assert path.read_bytes() == content, "nothing changes before something is added"
        file.add({"b": 3})
        file.add({"b": 4})
    assert path.read_bytes() == lines(*values, {"b": 3}, {"b": 4})


def test_a_file_of_something_else_is_left_alone(tmp_path: Path) -> None:
    path = tmp_path / "a.jsonl"
    path.write_bytes(b"text\nmore")
    with pytest.raises(SetBlockError, match=r"a\.jsonl, line 1 is not a result: Expecting value"):
        LinesFile(path, what="a result")
    assert path.read_bytes() == b"text\nmore"
    path.unlink()
    LinesFile(path, what="a result").close()
    assert not path.exists(), "to which nothing was written"


def test_one_process_at_a_time_writes(tmp_path: Path) -> None:
    path = tmp_path / "a.jsonl"
    with (
        LinesFile(path, what="a line"),
        pytest.raises(SetBlockError, match=r"another process is writing to .*a\.jsonl"),
    ):
        LinesFile(path, what="a line")
    with LinesFile(path, what="a line") as file:
        file.add({})


def test_a_file_appears_once_it_is_whole(tmp_path: Path) -> None:
    path = tmp_path / "a.jsonl"
    with PartFile(path) as file:
        assert file.begin({"seed": 1}) == []
        file.add({"n": 2})
        assert not path.exists()
    with PartFile(path) as file:
        assert file.begin({"seed": 1}) == [{"n": 2}]
        file.add({"n": 1})
        file.finish(lambda values: sorted(values, key=lambda value: value["n"]))
    assert path.read_bytes() == lines({"n": 1}, {"n": 2})
    assert [each.name for each in tmp_path.iterdir() if not each.name.startswith(".")] == ["a.jsonl"]
    with pytest.raises(SetBlockError, match=r"a\.jsonl exists already"):
        PartFile(path)


@pytest.mark.parametrize(
    ("made", "said"),
    [
        ({"seed": 2, "model": {"a": 1}}, "seed"),
        ({"seed": 1, "model": {"a": 2}}, "model"),
        ({"seed": 2, "model": {"a": 2}}, "model, seed"),
    ],
)
def test_a_part_that_was_made_otherwise_says_what_differs(tmp_path: Path, made: dict[str, object], said: str) -> None:
    path = tmp_path / "a.jsonl"
    with PartFile(path) as file:
        file.begin({"seed": 1, "model": {"a": 1}})
    with (
        PartFile(path) as file,
        pytest.raises(SetBlockError, match=rf"a\.jsonl\.part was made with other {said}: delete"),
    ):
        file.begin(made)
