"""Every family of the installed Transformers is decoded right, or refused with the reason.

A representative dozen runs with the other tests. All take half an hour on one core: `make test-families`, which also writes
`results.jsonl`, from which the table in `docs/versions.md` is made.
"""

import json

import pytest
from torch import nn

from families import FAMILIES
from family_sweep.cases import REFUSED, REPRESENTATIVE, SLOW, cases
from family_sweep.runs import run_case
from family_sweep.table import PAGE, RESULTS, summary, write_results
from setblock.model.attention.attention import AttentionPlan, plan_of


@pytest.mark.parametrize(
    "name",
    [
        pytest.param(each, marks=pytest.mark.nightly if each in (*SLOW, *FAMILIES) else [])  # other tests have FAMILIES
        for each in REPRESENTATIVE
    ],
)
def test_right_or_refused(name: str) -> None:
    outcome = run_case(name, every_path=False)
    assert outcome.status == ("refused" if name in REFUSED else "right"), outcome
    assert outcome.status == "right" or outcome.reason


@pytest.mark.families
@pytest.mark.parametrize("name", cases())
def test_all(name: str) -> None:
    outcome = run_case(name)
    write_results([outcome])
    assert outcome.status != "wrong", outcome
    assert outcome.status == "right" or outcome.reason


def test_the_table_is_made_from_the_results() -> None:
    outcomes = [json.loads(line) for line in RESULTS.read_text().splitlines()]
    assert summary(outcomes) in PAGE.read_text(), "run python tests/helpers/every_family.py"
    assert not [each["name"] for each in outcomes if each["status"] == "wrong"]


@pytest.mark.parametrize("name", ["falcon", "phi3 (longrope)"])
def test_a_model_that_is_not_probed_is_found_wrong(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The sweep sees the faults that the probe is for: with the plan that every model had before, these two are wrong."""

    def unprobed(model: nn.Module, **_: object) -> AttentionPlan:
        return plan_of(model)  # type: ignore[arg-type]

    monkeypatch.setattr("setblock.model.loading.loading.plan_attention", unprobed)
    monkeypatch.setattr("setblock.integrations.transformers.plan_attention", unprobed)
    outcome = run_case(name, every_path=False)
    assert outcome.status == "wrong", outcome
