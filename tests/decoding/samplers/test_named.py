"""Samplers by name: a file, a plug-in or a line of code is enough for one to be known everywhere."""

import subprocess
import sys
from dataclasses import dataclass
from importlib.metadata import EntryPoint
from pathlib import Path

import pytest

from setblock.decoding.samplers import SAMPLERS, Factor
from setblock.decoding.samplers import named as named_samplers
from setblock.decoding.samplers.base import BlockView, Selection
from setblock.decoding.samplers.named import name_of, own_rules, sampler_named

FOLDER = Path(named_samplers.__file__).parent


@dataclass(frozen=True)
class Mine:
    """One's own, as another package has it."""

    name = "mine"
    count: int = 1

    def select(self, block: BlockView) -> Selection:
        """All of the block."""
        return Selection(block.candidates)


def test_there_is_a_name_for_each_file() -> None:
    files = {path.stem for path in FOLDER.glob("*.py")} - {"__init__", "base", "named"}
    assert {name.replace("-", "_") for name in own_rules()} == files
    for name, point in own_rules().items():
        kind = point.load()
        assert (kind.name, name_of(kind()), SAMPLERS[name]) == (name, name, kind)


def test_a_plug_in_is_known_without_being_imported(monkeypatch: pytest.MonkeyPatch) -> None:
    point = EntryPoint("mine", f"{__name__}:Mine", named_samplers.PLUG_INS)
    broken = EntryPoint("broken", "no.such.module:Sampler", named_samplers.PLUG_INS)
    monkeypatch.setattr(named_samplers, "_plug_ins", lambda: {"mine": point, "broken": broken})
    monkeypatch.setitem(sys.modules, __name__, sys.modules[Mine.__module__])
    assert list(SAMPLERS)[-2:] == ["mine", "broken"]
    assert sampler_named("mine", {"count": "2"}) == Mine(2)
    assert name_of(Mine()) == "mine"
    assert name_of(Factor()) == "factor"


def test_names_need_no_pytorch() -> None:
    code = (
        "import sys; from setblock.decoding.samplers import SAMPLERS; list(SAMPLERS); assert 'torch' not in sys.modules"
    )
    subprocess.run([sys.executable, "-c", code], check=True, timeout=60)
