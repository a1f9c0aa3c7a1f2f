"""What holds of every sampler, whatever its rule and hyperparameters."""

import dataclasses
import math
from itertools import pairwise

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from decoding.samplers.cases import KINDS, PARAMETERS, Passes, chosen, passes, run, samplers
from setblock.decoding.samplers import BlockView, Sampler
from setblock.decoding.step.choice import RowSamplers
from setblock.errors import ParameterError

pytestmark = pytest.mark.usefixtures("longest_drafts")

each_sampler = pytest.mark.parametrize("name", KINDS)


@each_sampler
def test_its_fields_are_its_hyperparameters(name: str) -> None:
    kind = KINDS[name]
    assert {field.name for field in dataclasses.fields(kind)} == set(PARAMETERS[name])
    assert kind() == kind()
    assert hash(kind()) == hash(kind())
    assert name == name.lower()
    with pytest.raises(dataclasses.FrozenInstanceError):
        setattr(kind(), dataclasses.fields(kind)[0].name, 0)


@each_sampler
@given(st.data())
def test_reveals_candidates_only_at_least_one_and_ends_in_k_passes(name: str, data: st.DataObject) -> None:
    sampler, said = data.draw(samplers(name)), data.draw(passes())
    revealed = torch.zeros_like(said.needed)
    for block, selection in run(sampler, said):
        assert selection.reveal.dtype == torch.bool
        assert not (selection.reveal & ~block.candidates).any()
        assert not (selection.reveal & block.revealed).any()
        assert torch.equal(selection.reveal.any(dim=1), block.candidates.any(dim=1))
        revealed |= selection.reveal
    assert torch.equal(revealed, said.needed)  # there are k passes


@each_sampler
@given(st.data())
def test_never_chooses_a_banned_token(name: str, data: st.DataObject) -> None:
    sampler, said = data.draw(samplers(name)), data.draw(passes())
    for block, selection in run(sampler, said):
        tokens = chosen(block, selection)[..., None]
        assert (block.logits.gather(-1, tokens).isfinite() | ~selection.reveal[..., None]).all()
        if selection.logits is not None:
            assert selection.logits.shape == block.logits.shape
            assert torch.equal(selection.logits == -math.inf, block.logits == -math.inf)
            assert not selection.logits.isnan().any()


@each_sampler
@given(st.data())
def test_rows_are_independent(name: str, data: st.DataObject) -> None:
    """A row does in a batch what it does alone, with what it remembers."""
    sampler, said = data.draw(samplers(name)), data.draw(passes())
    together = list(run(sampler, said))
    for row in range(len(said.needed)):
        for (_, batched), (_, alone) in zip(together, run(sampler, said.row(row)), strict=False):
            assert torch.equal(batched.reveal[row], alone.reveal[0])
            if alone.logits is not None and batched.logits is not None:
                torch.testing.assert_close(batched.logits[row], alone.logits[0])
            assert batched.memory.keys() == alone.memory.keys()
            for key, kept in alone.memory.items():
                assert kept.shape[:2] == (1, said.needed.shape[1])
                torch.testing.assert_close(batched.memory[key][row], kept[0])


@each_sampler
@given(st.data())
def test_a_memory_of_zeros_is_none(name: str, data: st.DataObject) -> None:
    """So a row can begin a block while the others of its batch are in the middle of theirs."""
    sampler, said = data.draw(samplers(name)), data.draw(passes())
    fresh = sampler.select(said.first())
    zeroed = sampler.select(said.first(memory={key: torch.zeros_like(kept) for key, kept in fresh.memory.items()}))
    assert torch.equal(zeroed.reveal, fresh.reveal)
    assert zeroed.memory.keys() == fresh.memory.keys()
    for key, kept in fresh.memory.items():
        torch.testing.assert_close(zeroed.memory[key], kept)
    if fresh.logits is not None:
        torch.testing.assert_close(zeroed.logits, fresh.logits)


@each_sampler
@given(st.data())
def test_a_row_that_begins_a_block_forgets_the_last(name: str, data: st.DataObject) -> None:
    """Through what the decoding loop asks: a second block in the same row is as if it were the first."""
    sampler, one = data.draw(samplers(name)), data.draw(passes())
    two = Passes(one.logits.flip(0, 2), one.needed.flip(1))

    def reveals(requested: RowSamplers, said: Passes) -> list[torch.Tensor]:
        found, revealed = [], torch.zeros_like(said.needed)
        for number, logits in enumerate(said.logits):
            passes = torch.full((len(revealed),), number)
            block = BlockView.of(logits, said.needed & ~revealed, revealed)
            found.append(requested.select(block, passes=passes, is_wanted=torch.ones_like(passes).bool()).reveal)
            revealed = revealed | found[-1]
        return found

    def ask() -> RowSamplers:
        return RowSamplers([sampler] * len(one.needed), device=torch.device("cpu"))

    used = ask()
    reveals(used, one)
    assert all(torch.equal(a, b) for a, b in zip(reveals(used, two), reveals(ask(), two), strict=True))


@each_sampler
@given(st.data())
def test_what_is_no_candidate_does_not_matter(name: str, data: st.DataObject) -> None:
    """The logits there may be anything, also not numbers, in any pass."""
    sampler, said = data.draw(samplers(name)), data.draw(passes())
    plain = list(run(sampler, said))
    memory = {}
    for block, expected in plain:
        garbage = torch.where(block.candidates[..., None], block.logits, math.nan)
        selection = sampler.select(BlockView.of(garbage, block.candidates, block.revealed, memory))
        assert torch.equal(selection.reveal, expected.reveal)
        memory = selection.memory
        assert not any(kept.isnan().any() for kept in memory.values())


TOO_LOW = [
    ("entropy-bounded", "gamma", -1.0),
    ("entropy-prefix", "gamma", -1.0),
    ("entropy-threshold", "threshold", -0.1),
    ("confidence-threshold", "threshold", -0.1),
    ("factor", "factor", -1.0),
    ("fixed-count", "count", 0),
    ("left-to-right", "count", 0),
    ("confident-prefix", "threshold", -0.1),
    ("adaptive-confidence", "lower", -0.1),
    ("distance-penalty", "threshold", -1.0),
    ("distance-penalty", "penalty", -1.0),
    ("spaced", "gamma", -1.0),
    ("spaced", "gap", 0),
    ("dilated", "stride", 0),
    ("klass", "threshold", -0.1),
    ("klass", "max_kl", -0.1),
    ("klass", "passes", 0),
    ("credit-decoding", "threshold", -0.1),
    ("credit-decoding", "strength", -0.1),
    ("credit-decoding", "decay", -0.1),
    ("credit-decoding", "power", -0.1),
]
TOO_HIGH = [
    (name, field, 1.1)
    for name, field in [
        ("confidence-threshold", "threshold"),
        ("confident-prefix", "threshold"),
        ("adaptive-confidence", "upper"),
        ("klass", "threshold"),
        ("credit-decoding", "threshold"),
        ("credit-decoding", "decay"),
        ("credit-decoding", "power"),
    ]
]


@pytest.mark.parametrize(("name", "field", "value"), [*TOO_LOW, *TOO_HIGH])
def test_says_what_is_wrong_with_a_hyperparameter(name: str, field: str, value: float) -> None:
    for wrong in (value, math.nan):
        with pytest.raises(ParameterError, match=rf"^{field} must be (at least|between) [^\n]*, not {wrong}$"):
            KINDS[name](**{field: wrong})


def test_bounds_must_be_in_order() -> None:
    with pytest.raises(ParameterError, match=r"^lower must be between 0 and 0\.5, not 0\.6$"):
        KINDS["adaptive-confidence"](upper=0.5)


# From the tighter to the looser: what a looser one reveals in the same pass, with the same memory.
SUPERSET = [
    ("entropy-bounded", "gamma", [0.0, 0.1, 0.5, 2.0, math.inf]),
    ("entropy-prefix", "gamma", [0.0, 0.1, 0.5, 2.0, math.inf]),
    ("entropy-threshold", "threshold", [0.0, 0.1, 0.5, 2.0, math.inf]),
    ("confidence-threshold", "threshold", [1.0, 0.9, 0.5, 0.2, 0.0]),
    ("factor", "factor", [0.0, 0.3, 1.0, 3.0, math.inf]),
    ("fixed-count", "count", [1, 2, 3, 8]),
    ("left-to-right", "count", [1, 2, 3, 8]),
    ("confident-prefix", "threshold", [1.0, 0.9, 0.5, 0.2, 0.0]),
    ("adaptive-confidence", "upper", [1.0, 0.9, 0.7, 0.6]),
    ("adaptive-confidence", "lower", [0.9, 0.7, 0.3, 0.0]),
    ("distance-penalty", "threshold", [0.0, 0.1, 0.5, 2.0, math.inf]),
    ("spaced", "gamma", [0.0, 0.1, 0.5, 2.0, math.inf]),
    ("credit-decoding", "threshold", [1.0, 0.9, 0.5, 0.2, 0.0]),
]
# Here a tighter one may fall back on a position that a looser one needn't take.
AT_LEAST_AS_MANY = [
    ("distance-penalty", "penalty", [1.0, 0.1, 0.02, 0.0]),
    ("klass", "threshold", [1.0, 0.9, 0.5, 0.2, 0.0]),
    ("klass", "max_kl", [0.0, 0.001, 0.1, 1.0, math.inf]),
    ("klass", "passes", [3, 2, 1]),
]


@pytest.mark.parametrize(("name", "field", "values"), [*SUPERSET, *AT_LEAST_AS_MANY])
@given(said=passes())
def test_a_looser_hyperparameter_reveals_more(name: str, field: str, values: list[float], said: Passes) -> None:
    memories: dict[float, dict[str, torch.Tensor]] = {value: {} for value in values}
    for block, first in run(KINDS[name](**{field: values[0]}), said):
        reveals = []
        for value in values:
            sampler: Sampler = KINDS[name](**{field: value})
            # KLASS remembers by its own bound; what the others remember is the same whatever the bound
            memory = memories[value] if name == "klass" else block.memory
            selection = sampler.select(dataclasses.replace(block, memory=memory))
            memories[value] = dict(selection.memory)
            reveals.append(selection.reveal)
        assert torch.equal(reveals[0], first.reveal)
        for fewer, more in pairwise(reveals):
            assert (more.sum(dim=1) >= fewer.sum(dim=1)).all()
            if (name, field, values) in SUPERSET:
                assert not (fewer & ~more).any()


@pytest.mark.parametrize(
    ("name", "fields"),
    [
        ("entropy-bounded", {"gamma": math.inf}),
        ("entropy-prefix", {"gamma": math.inf}),
        ("entropy-threshold", {"threshold": math.inf}),
        ("confidence-threshold", {"threshold": 0.0}),
        ("factor", {"factor": math.inf}),
        ("fixed-count", {"count": 8}),
        ("left-to-right", {"count": 8}),
        ("confident-prefix", {"threshold": 0.0}),
        ("adaptive-confidence", {"lower": 0.0, "upper": 0.0}),
        ("distance-penalty", {"threshold": math.inf}),
        ("spaced", {"gamma": math.inf, "gap": 1}),
        ("dilated", {"stride": 1}),
        ("credit-decoding", {"threshold": 0.0}),
    ],
)
@given(said=passes())
def test_the_loosest_reveals_everything(name: str, fields: dict[str, float], said: Passes) -> None:
    assert torch.equal(KINDS[name](**fields).select(said.first()).reveal, said.needed)
