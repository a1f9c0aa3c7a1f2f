"""The samplers that the example and docs/samplers.md show: they do what they say, and the table is that of the code."""

import dataclasses
import json
import re
import runpy
from functools import cached_property
from pathlib import Path
from typing import Any

import pytest
import torch
import typer.testing
from hypothesis import given

from decoding.samplers.cases import EXAMPLES, FOLDER, KINDS, Passes, passes, run
from setblock.cli.app import app
from setblock.decoding.samplers import SAMPLERS, BlockView, Sampler

pytestmark = pytest.mark.usefixtures("longest_drafts")

ROOT = Path(__file__).parents[3]
PROMPT = "Ben has 30 cards. Ben loses 9 of them. How many cards does Ben have now?"
PAGE = (ROOT / "docs" / "samplers.md").read_text()


def shown() -> dict[str, type[Any]]:
    """What the example adds to `SAMPLERS`, which afterwards is as before, and the classes of the page."""
    before = dict(SAMPLERS)
    runpy.run_path(str(ROOT / "examples" / "own_sampler.py"))
    page: dict[str, Any] = {"__name__": "docs"}
    for code in re.findall(r"```python\n(.*?)```", PAGE, flags=re.DOTALL):
        if "def select" in code:
            exec(compile(code, "docs/samplers.md", "exec"), page)
    added = {name: kind for name, kind in SAMPLERS.items() if name not in before}
    for name in added:
        del SAMPLERS[name]
    return added | {"clear": page["Clear"], "steady": page["Steady"]}


SHOWN = shown()


def test_they_have_names() -> None:
    assert set(SHOWN) == {"certain", "clear", "steady"}


@pytest.mark.parametrize("name", ["certain", "clear", "steady"])
@given(said=passes())
def test_reveals_candidates_only_at_least_one_and_ends_in_k_passes(name: str, said: Passes) -> None:
    sampler: Sampler = SHOWN[name]()
    revealed = torch.zeros_like(said.needed)
    for block, selection in run(sampler, said):
        assert not (selection.reveal & ~block.candidates).any()
        assert torch.equal(selection.reveal.any(dim=1), block.candidates.any(dim=1))
        revealed |= selection.reveal
    assert torch.equal(revealed, said.needed)


def test_what_the_page_says_of_a_block_is_what_a_sampler_gets() -> None:
    documented = dict(re.findall(r"^\| `(\w+)` \| (\[.*?\] \w+|tensors by name) \|", PAGE, flags=re.MULTILINE))
    view = BlockView.of(torch.randn(2, 3, 5), torch.ones(2, 3, dtype=torch.bool), torch.zeros(2, 3, dtype=torch.bool))
    properties = {name for name, each in vars(BlockView).items() if isinstance(each, cached_property)}
    assert documented.keys() == {field.name for field in dataclasses.fields(BlockView)} | properties
    sizes = {2: "B", 3: "k", 5: "V"}
    for name in documented.keys() - {"memory"}:
        value = getattr(view, name)
        shape = ", ".join(sizes[size] for size in value.shape)
        assert documented[name] == f"[{shape}] {str(value.dtype).removeprefix('torch.')}"


def test_the_rule_with_memory_waits_for_two_passes_that_agree() -> None:
    logits = torch.tensor([[[5.0, 0, 0], [0, 4.0, 0], [0, 0, 3.0]]])
    candidates = torch.ones(1, 3, dtype=torch.bool)
    sampler, nothing = SHOWN["steady"](), torch.zeros(1, 3, dtype=torch.bool)
    first = sampler.select(BlockView.of(logits, candidates, nothing))
    assert first.reveal.tolist() == [[True, False, False]]
    logits[0, 2] = torch.tensor([3.0, 0, 0])  # another token now
    candidates = candidates & ~first.reveal
    second = sampler.select(BlockView.of(logits, candidates, first.reveal, first.memory))
    assert second.reveal.tolist() == [[False, True, False]]


def test_the_page_lists_every_sampler_with_its_defaults() -> None:
    lines = PAGE.partition("## Those of this package")[2].partition("## Write one")[0].splitlines()
    rows = [line.split(" | ") for line in lines if line.startswith("| `")]
    own = [line.split(" | ") for line in lines if line.startswith("| [`")]
    assert sorted(row[0].strip("| `") for row in rows) == sorted(SAMPLERS)
    assert sorted(re.findall(r"`([\w-]+)`", row[0])[0] for row in own) == sorted(EXAMPLES)
    for row in [*rows, *own]:
        (name,) = re.findall(r"`([\w-]+)`", row[0])
        defaults = {field.name: str(field.default) for field in dataclasses.fields(KINDS[name])}
        assert dict(re.findall(r"`(\w+)` ([\w.]+)", row[3])) == defaults


@pytest.mark.parametrize("name", EXAMPLES)
def test_each_file_of_the_examples_works_as_a_plug_in(name: str) -> None:
    file = f"{FOLDER / name.replace('-', '_')}.py:{EXAMPLES[name].__name__}"
    options = ("--method", "sbd", "--sampler", file, "--max-new-tokens", "8", "--json")
    try:
        outcome: Any = typer.testing.CliRunner().invoke(app, ["generate", PROMPT, *options])
        assert outcome.exit_code == 0, outcome.output
        assert SAMPLERS[file].__name__ == EXAMPLES[name].__name__
        assert 1 <= json.loads(outcome.stdout)["num_forwards"] <= 9
    finally:
        SAMPLERS.pop(file, None)
