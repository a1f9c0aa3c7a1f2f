"""Files are written whole or not at all, and whoever can't be written is named."""

import errno
import os
import shutil
from pathlib import Path

import pytest

from setblock.errors import SetBlockError
from setblock.files import only_writer, write_whole, writing


@pytest.mark.parametrize("is_there", [True, False])
def test_a_file_that_can_not_be_written_is_named_and_stays_as_it_was(
    is_there: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "a.json"
    if is_there:
        path.write_text("old")

    def full(*_: object) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))  # names no file, as an error of a write

    with monkeypatch.context() as patch:
        patch.setattr("setblock.files.os.replace", full)
        with pytest.raises(SetBlockError, match=r"can't write .*a\.json: No space left on device"):
            write_whole(path, "new")
    assert [(each.name, each.read_text()) for each in tmp_path.iterdir()] == ([("a.json", "old")] if is_there else [])
    write_whole(path, "new")
    assert path.read_text() == "new"


def test_of_many_files_one_reason_is_reported(tmp_path: Path) -> None:
    source = tmp_path / "source"
    source.mkdir()
    for name in ("a", "b"):
        (source / name).symlink_to("nowhere")
    with (
        pytest.raises(SetBlockError, match=r"^can't write \S*target: .*No such file or directory[^\[\]]*$"),
        writing(tmp_path / "target"),
    ):
        shutil.copytree(source, tmp_path / "target")


def test_a_lock_is_held_by_one(tmp_path: Path) -> None:
    for path in (tmp_path, tmp_path / "file"):
        with only_writer(path):
            refused = pytest.raises(SetBlockError, match=rf"^another process is writing to {path}: stop it$")
            with refused, only_writer(path, advice="stop it"):
                pass
            with only_writer(tmp_path / "other"):
                pass
        with only_writer(path):
            pass
