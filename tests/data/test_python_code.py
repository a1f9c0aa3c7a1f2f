"""Python source as data: which files, which splits, and how long ones are cut."""

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from transformers import PreTrainedTokenizerBase

from setblock.data import python_code
from setblock.data.pieces import cuts_of, encode_pieces, pieces_of
from setblock.data.python_code import source_files, split_of_package
from setblock.data.rows import rows_of
from setblock.data.section import PythonCodeSection
from setblock.data.splits import SPLITS
from setblock.data.tasks import TASKS
from setblock.errors import SetBlockError

PROGRAM = "\n".join(f'def function_{{n}}_{i}(value):\n    """Adds."""\n    return value + {i}\n\n' for i in range(6))


def program(n: int) -> str:
    return PROGRAM.replace("{n}", str(n))


NAMES = {
    split: [name for name in (f"package{i}" for i in range(300)) if split_of_package(name) == split] for split in SPLITS
}


@pytest.fixture
def installed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder of packages: three to train on, one to validate, one to test."""
    for split, count in (("train", 3), ("validation", 1), ("test", 1)):
        for name in NAMES[split][:count]:
            (tmp_path / name / "tests").mkdir(parents=True)
            (tmp_path / name / "__init__.py").write_text(program(int(name.removeprefix("package"))))
            (tmp_path / name / "tests" / "test_all.py").write_text(program(1000))
    monkeypatch.setattr(python_code, "_installed", lambda: (tmp_path,))
    source_files.cache_clear()
    yield tmp_path
    source_files.cache_clear()


def names(split: str) -> list[str]:
    source_files.cache_clear()
    return sorted(file.name for file in source_files(split))  # type: ignore[arg-type]


def test_whole_packages_are_held_out(installed: Path) -> None:
    for split, count in (("train", 3), ("validation", 1), ("test", 1)):
        assert names(split) == sorted(f"{name}/__init__.py" for name in NAMES[split][:count])


def test_copies_are_left_out(installed: Path) -> None:
    first, second = NAMES["train"][:2]
    held_out = NAMES["test"][0]
    text = program(7)
    (installed / first / "copied.py").write_text(text)
    (installed / second / "other_name.py").write_text(text.replace("    ", "        "))  # equal but for white space
    (installed / first / "_vendor").mkdir()
    (installed / first / "_vendor" / "rich.py").write_text(program(8))
    (installed / held_out / "vendored.py").write_text(text)
    (installed / held_out / "copied.py").write_text("import somewhere_else_entirely\n" + text)  # nearly the same
    (installed / held_out / "own.py").write_text(program(9))
    assert names("train") == sorted([f"{name}/__init__.py" for name in NAMES["train"][:3]] + [f"{first}/copied.py"])
    assert names("test") == [f"{held_out}/__init__.py", f"{held_out}/own.py"]


def test_tables_other_encodings_and_our_own_source_are_left_out(installed: Path) -> None:
    package = installed / NAMES["train"][0]
    (package / "table.py").write_text(program(3) + "TABLE = " + repr(list(range(300))))
    (package / "latin.py").write_bytes(program(4).encode() + b"# caf\xe9")
    (package / "short.py").write_text("x = 1\n")
    (installed / "setblock").mkdir()
    (installed / "setblock" / "__init__.py").write_text(program(5))
    assert names("train") == sorted(f"{name}/__init__.py" for name in NAMES["train"][:3])


def test_no_package_is_most_of_the_text(installed: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    package = installed / NAMES["train"][0]
    for number in range(9):
        (package / f"module{number}.py").write_text(program(100 + number))
    monkeypatch.setattr(python_code, "PACKAGE_LIMIT", 4 * len(program(100)))
    mine = [name for name in names("train") if name.startswith(f"{package.name}/")]
    assert len(mine) == 4
    assert mine == [name for name in names("train") if name.startswith(f"{package.name}/")], "the same ones every time"


def pieces_by_hand(length: int, cuts: list[tuple[int, int]], piece_length: int) -> list[tuple[int, int]]:
    """By the words of `encode_pieces`."""
    pieces, start = [], 0
    while length - start > piece_length:
        ends = [start + piece_length]
        for kind in (2, 1, 0):
            late = [
                token
                for token, how in cuts
                if how == kind and start + piece_length // 2 < token <= start + piece_length
            ]
            ends = late or ends
        if ends == [start + piece_length] and (start + piece_length) not in [token for token, _ in cuts]:
            early = [(how, -token) for token, how in cuts if start < token <= start + piece_length // 2]
            ends = [-min(early)[1]] if early else ends
        pieces.append((start, max(ends)))
        start = max(ends)
    return [*pieces, (start, length)]


@given(
    st.integers(1, 200),
    st.dictionaries(st.integers(0, 199), st.integers(0, 2), max_size=40),
    st.integers(4, 60),
)
def test_where_pieces_end(length: int, cuts: dict[int, int], piece_length: int) -> None:
    ordered = sorted((token, how) for token, how in cuts.items() if token < length)
    found = list(pieces_of(length, ordered, piece_length))
    assert found == pieces_by_hand(length, ordered, piece_length)
    assert [start for start, _ in found[1:]] == [end for _, end in found[:-1]]
    assert all(0 < end - start <= piece_length for start, end in found)


def test_pieces_are_the_text_and_begin_with_definitions(tokenizer: PreTrainedTokenizerBase) -> None:
    text = program(1)
    whole = tokenizer(text, add_special_tokens=False).input_ids
    documents = list(encode_pieces(tokenizer, [text], piece_length=80, shortest=1))
    assert len(documents) > 2
    assert [token for document in documents for token in document.token_ids] == [*whole, tokenizer.eos_token_id]
    for document in documents:
        assert tokenizer.decode(document.token_ids).startswith("def ")
        assert all(document.carries_loss)
        assert len(document) <= 80


def test_lines_that_go_on_are_no_beginnings(tokenizer: PreTrainedTokenizerBase) -> None:
    text = "call(\n    1,\n)\nif x:\n    pass\nelse:\n    @wraps\n    def f(): pass\n"
    offsets = tokenizer(text, add_special_tokens=False, return_offsets_mapping=True).offset_mapping
    starts = [start for start, _ in offsets]
    found = {text[starts[token] :].split("\n")[0].strip(): how for token, how in cuts_of(text, starts)}
    assert found == {"call(": 0, "1,": 2, "if x:": 0, "pass": 2, "@wraps": 1, "def f(): pass": 1}


def test_rows_of_a_section(installed: Path, tokenizer: PreTrainedTokenizerBase) -> None:
    section = PythonCodeSection(source="python-code", piece_length=64, evaluation_documents=2, row_length=128)
    rows = rows_of(section, tokenizer, context_length=512)
    assert rows.evaluation is not None
    assert rows.fingerprint == rows_of(section, tokenizer, context_length=512).fingerprint
    halves = [
        rows_of(section.model_copy(update={"files": part}), tokenizer, context_length=512)
        for part in ((0, 0.5), (0.5, 1))
    ]
    assert len({rows.fingerprint, *(half.fingerprint for half in halves)}) == 3
    tokens = [sum(int((row.document_ids >= 0).sum()) for row in each.train.rows) for each in (rows, *halves)]  # type: ignore[union-attr]
    assert tokens[0] == tokens[1] + tokens[2]
    with pytest.raises(SetBlockError, match=r"data\.piece_length must be at most the model's context, 32, not 64"):
        rows_of(section, tokenizer, context_length=32)


@pytest.mark.parametrize("files", [(0.5, 0.5), (-0.1, 1), (0, 2)])
def test_shares_must_be_in_order(files: tuple[float, float]) -> None:
    with pytest.raises(ValueError, match="files must be two shares in order"):
        PythonCodeSection(source="python-code", files=files)


def test_functions_to_go_on_with(installed: Path) -> None:
    package = installed / NAMES["test"][0]
    body = "    total = 0\n    for value in values:\n        total += value\n    return total  # with a comment at its end\n"
    before = "import os\n\nLIMIT = 3\n\n"
    head = 'def add(values):\n    """Add them."""\n'
    (package / "sums.py").write_text(f"{before}{head}{body}\n\nAFTER = 1\n" + "# more\n" * 20)
    (package / "broken.py").write_text("def (:\n" * 40)
    source_files.cache_clear()
    found = list(TASKS["installed-functions"].examples("test"))
    (example,) = (example for example in found if "sums" in example.prompt or "total" in str(example.answer))
    assert example.prompt == before + head
    assert example.completion == body
    assert example.identity == package.name
    assert not any("def (:" in example.prompt for example in found)
