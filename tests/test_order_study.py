"""What the order study says of answers that went wrong, and of differences between rules."""

import json
import runpy
from pathlib import Path

import pytest
import torch

from setblock.decoding.samplers import SAMPLERS, BlockView

STUDY = runpy.run_path(str(Path(__file__).parent.parent / "experiments" / "order_study.py"))


@pytest.mark.parametrize(
    ("value", "fault"),
    [
        ("Byrne and McGrown", "wrong letters"),
        ("Byrne McGeown", "lost part"),
        ("Byrne and and McGeown", "repeated part"),
        ("a bicycle", "another value"),
    ],
)
def test_a_value_has_a_fault(value: str, fault: str) -> None:
    assert STUDY["fault_of"](value, "Byrne and McGeown") == fault


def test_faults_of_an_answer() -> None:
    right = json.dumps({"name": "Ana", "total": 34, "items": [{"n": 1}]})
    faults = lambda text: sorted(STUDY["faults_of"](text, right))  # noqa: E731
    assert faults(right) == []
    assert faults('{"name": nullAna"}') == ["no JSON"]
    assert faults('{"name": "Ana", "total": 345, "items": [{"n": 1}]}') == ["length of a number"]
    assert faults('{"nam": "Ana", "total": 34, "items": [{"n": 1}]}') == ["another key", "another key"]


def test_the_other_two_rules_differ_from_the_two_of_the_package_in_one_thing_each() -> None:
    """Entropies are 0.16, 0.95, 0.01 and 0.06."""
    top = torch.tensor([[0.97, 0.6, 0.999, 0.99]])
    logits = torch.stack([top, (1 - top) / 2, (1 - top) / 2], dim=-1).log()
    block = BlockView.of(logits, torch.ones_like(top, dtype=torch.bool), torch.zeros_like(top, dtype=torch.bool))

    def revealed(name: str, gamma: float) -> list[int]:
        kind = STUDY[name] if name in STUDY else SAMPLERS[name]
        found: list[int] = kind(gamma).select(block).reveal[0].nonzero()[:, 0].tolist()
        return found

    assert revealed("entropy-bounded", 0.1) == [0, 2, 3]
    assert revealed("WholeBound", 0.1) == [2, 3]
    assert revealed("LeadingBound", 0.2) == [0, 1, 2]
    assert revealed("entropy-prefix", 0.2) == [0]


def test_an_interval_is_of_the_mean() -> None:
    low, high = STUDY["interval"]([0] * 90 + [-1] * 10)
    assert low < -0.1 < high < 0
    assert STUDY["interval"]([0] * 10) == (0, 0)
