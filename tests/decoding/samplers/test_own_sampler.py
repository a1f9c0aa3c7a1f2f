"""The samplers that the example and docs/samplers.md show: they do what they say, and the table is that of the code."""

import dataclasses
import re
import runpy
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given

from decoding.samplers.cases import Passes, passes, run
from setblock.decoding.samplers import SAMPLERS, Sampler

ROOT = Path(__file__).parents[3]
PAGE = (ROOT / "docs" / "samplers.md").read_text()


def shown() -> dict[str, type[Any]]:
    """What the example adds to `SAMPLERS`, which afterwards is as before, and the class of the page."""
    before = dict(SAMPLERS)
    runpy.run_path(str(ROOT / "examples" / "own_sampler.py"))
    (code,) = (block for block in re.findall(r"```python\n(.*?)```", PAGE, flags=re.DOTALL) if "def select" in block)
    page: dict[str, Any] = {"__name__": "docs"}
    exec(compile(code, "docs/samplers.md", "exec"), page)
    added = {name: kind for name, kind in SAMPLERS.items() if name not in before}
    for name in added:
        del SAMPLERS[name]
    return added | {"clear": page["Clear"]}


SHOWN = shown()


def test_they_have_names() -> None:
    assert set(SHOWN) == {"certain", "clear"}


@pytest.mark.parametrize("name", ["certain", "clear"])
@given(said=passes())
def test_reveals_candidates_only_at_least_one_and_ends_in_k_passes(name: str, said: Passes) -> None:
    sampler: Sampler = SHOWN[name]()
    revealed = torch.zeros_like(said.needed)
    for block, selection in run(sampler, said):
        assert not (selection.reveal & ~block.candidates).any()
        assert torch.equal(selection.reveal.any(dim=1), block.candidates.any(dim=1))
        revealed |= selection.reveal
    assert torch.equal(revealed, said.needed)


def test_the_page_lists_every_sampler_with_its_defaults() -> None:
    rows = [line.split(" | ") for line in PAGE.splitlines() if line.startswith("| `")]
    assert sorted(row[0].strip("| `") for row in rows) == sorted(SAMPLERS)
    for row in rows:
        defaults = {field.name: str(field.default) for field in dataclasses.fields(SAMPLERS[row[0].strip("| `")])}
        assert dict(re.findall(r"`(\w+)` ([\w.]+)", row[3])) == defaults
