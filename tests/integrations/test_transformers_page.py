"""The programs of docs/transformers.md run, in their order, as one."""

import re
import sys
from pathlib import Path

import pytest

PAGE = Path(__file__).parents[2] / "docs" / "transformers.md"


def test_the_programs_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("transformers.dynamic_module_utils.HF_MODULES_CACHE", str(tmp_path / "modules"))
    monkeypatch.setattr(sys, "path", [*sys.path])
    programs = re.findall(r"^```python\n(.*?)^```$", PAGE.read_text(), flags=re.MULTILINE | re.DOTALL)
    assert len(programs) == 5
    exec(compile("\n".join(programs), PAGE, "exec"), {})
    printed = capsys.readouterr().out
    assert "19" in printed
    assert "tensor(True)" in printed
