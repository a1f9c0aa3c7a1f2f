"""Every rule against its definition, written as a loop; and what the rules say of blocks one can check by eye."""

import dataclasses
import math
from collections.abc import Sequence

import pytest
import torch
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st

from decoding.samplers.cases import EXAMPLES, KINDS, passes, run, samplers
from decoding.samplers.naive import NAIVE, Careful, Row
from setblock.decoding.samplers import (
    BlockView,
    EntropyPrefix,
    Factor,
    Sampler,
)

pytestmark = pytest.mark.usefixtures("longest_drafts")

ROUNDING = 2e-5
AdaptiveConfidence, ConfidentPrefix, CreditDecoding, Dilated, DistancePenalty, _, Klass, LeftToRight, Spaced = (
    EXAMPLES.values()
)


@pytest.mark.parametrize("name", KINDS)
@settings(max_examples=5 * settings.default.max_examples // 2, suppress_health_check=[HealthCheck.filter_too_much])
@given(st.data())
def test_is_the_rule_of_its_definition(name: str, data: st.DataObject) -> None:
    """In every pass, with what it remembers."""
    sampler, said = data.draw(samplers(name)), data.draw(passes())
    memories: list[dict[str, object]] = [{} for _ in said.needed]
    for block, selection in run(sampler, said):
        probs = block.logits.double().softmax(dim=-1).tolist()
        for row in range(len(said.needed)):
            candidates = block.candidates[row].nonzero()[:, 0].tolist()
            if not candidates:
                continue
            careful = Careful()
            expected = NAIVE[name](
                Row(probs[row], candidates, careful, memories[row]),
                **{field.name: getattr(sampler, field.name) for field in dataclasses.fields(sampler)},
            )
            assume(careful.closest > ROUNDING)
            assert set(selection.reveal[row].nonzero()[:, 0].tolist()) == expected


def block(
    confidences: Sequence[float],
    *,
    candidates: Sequence[int] | None = None,
    memory: dict[str, torch.Tensor] | None = None,
) -> BlockView:
    """A row whose most likely token has these probabilities, the rest shared by two more tokens."""
    top = torch.tensor([confidences])
    is_candidate = torch.ones(1, len(confidences), dtype=torch.bool)
    if candidates is not None:
        is_candidate = torch.tensor([[i in candidates for i in range(len(confidences))]])
    logits = torch.stack([top, (1 - top) / 2, (1 - top) / 2], dim=-1).log()
    return BlockView.of(logits, is_candidate, ~is_candidate, memory or {})


def revealed(sampler: Sampler, view: BlockView) -> list[int]:
    return sampler.select(view).reveal[0].nonzero()[:, 0].tolist()


def test_factor() -> None:
    """2 (1 - .9) = .2, 3 (1 - .8) = .6, 4 (1 - .7) = 1.2."""
    for bound, expected in ((0.1, [1]), (0.3, [1]), (0.7, [1, 3]), (1.3, [0, 1, 3])):
        assert revealed(Factor(bound), block([0.7, 0.9, 0.5, 0.8])) == expected


def test_entropy_prefix_counts_the_doubtful_position_and_takes_none_behind_it() -> None:
    """Entropies are 0.11, 0.06, 0.95 and 0.01."""
    view = block([0.98, 0.99, 0.6, 0.999])
    for gamma, expected in ((0.0, [0]), (0.15, [0]), (0.2, [0, 1]), (1.0, [0, 1]), (1.2, [0, 1, 2, 3])):
        assert revealed(EntropyPrefix(gamma), view) == expected
    assert revealed(EntropyPrefix(0.1), block([0.5, 0.6, 0.5, 0.999, 0.5], candidates=[1, 3])) == [1]


def test_prefix_stops_at_the_first_that_falls_short() -> None:
    assert revealed(ConfidentPrefix(0.7), block([0.9, 0.8, 0.6, 0.9])) == [0, 1]
    assert revealed(ConfidentPrefix(0.7), block([0.5, 0.8, 0.6, 0.9])) == [0]
    assert revealed(ConfidentPrefix(0.7), block([0.1, 0.8, 0.1, 0.9, 0.5, 0.9], candidates=[1, 3, 4, 5])) == [1, 3]


def test_left_to_right_ignores_confidence() -> None:
    assert revealed(LeftToRight(), block([0.5, 0.6, 0.9])) == [0]
    assert revealed(LeftToRight(2), block([0.5, 0.6, 0.9, 0.9], candidates=[1, 2, 3])) == [1, 2]


def test_distance_makes_it_more_nearly_left_to_right() -> None:
    view = block([0.9, 0.9, 0.9, 0.9, 0.9])
    each = float(view.entropy[0, 0])
    assert revealed(DistancePenalty(each + 0.25, 0.1), view) == [0, 1, 2]
    assert revealed(DistancePenalty(each + 0.25, 0.1), block([0.9] * 5, candidates=[2, 3, 4])) == [2, 3, 4]


def test_spaced_reveals_no_neighbours() -> None:
    view = block([0.7, 0.9, 0.8, 0.6, 0.95])
    assert revealed(Spaced(math.inf, 2), view) == [1, 4]
    assert revealed(Spaced(math.inf, 3), view) == [1, 4]
    assert revealed(Spaced(math.inf, 4), view) == [0, 4]
    assert revealed(Spaced(math.inf, 1), view) == [0, 1, 2, 3, 4]


def test_dilated_halves_the_distance() -> None:
    revealed_by_pass, left = [], list(range(16))
    while left:
        revealed_by_pass.append(revealed(Dilated(), block([0.5] * 16, candidates=left)))
        left = [i for i in left if i not in revealed_by_pass[-1]]
    assert revealed_by_pass == [[0, 8], [4, 12], [2, 6, 10, 14], [1, 3, 5, 7, 9, 11, 13, 15]]


def test_adaptive_confidence_follows_the_block() -> None:
    sampler, memory, found = AdaptiveConfidence(lower=0.5, upper=0.85), {}, []
    for confidences in (
        [0.7, 0.62, 0.3, 0.3, 0.3],  # the bound is the largest, 0.7
        [0.3, 0.69, 0.9, 0.3, 0.3],  # 0.7
        [0.3, 0.79, 0.3, 0.82, 0.81],  # the mean of 0.7 and 0.9
        [0.3, 0.4, 0.3, 0.3, 0.3],  # there is but one left
    ):
        left = [i for i in range(5) if all(i not in select for select in found)]
        selection = sampler.select(block(confidences, candidates=left, memory=memory))
        found.append(selection.reveal[0].nonzero()[:, 0].tolist())
        memory = dict(selection.memory)
    assert found == [[0], [2], [3, 4], [1]]
    torch.testing.assert_close(memory["confidence"], torch.tensor([[0.7, 0.4, 0.9, 0.82, 0.81]]))
    low = sampler.select(block([0.3, 0.52, 0.4], candidates=[1, 2], memory={"confidence": torch.tensor([[0.2, 0, 0]])}))
    assert low.reveal.tolist() == [[False, True, False]]  # 0.5, for all that the mean is 0.2


def test_klass_waits_until_nothing_changes() -> None:
    sampler = Klass(threshold=0.8, max_kl=0.01, passes=2)
    memory, found = {}, []
    for number in range(3):
        view = block([0.99, 0.98, 0.9, 0.9 if number else 0.5, 0.9], candidates=range(min(number, 2), 5), memory=memory)
        selection = sampler.select(view)
        found.append(selection.reveal[0].nonzero()[:, 0].tolist())
        memory = dict(selection.memory)
    assert found == [[0], [1], [2, 4]]  # one each, for want of a past; the one at 3 changed after the first pass


def test_credit_makes_up_for_what_confidence_lacks() -> None:
    sampler, memory, found = CreditDecoding(threshold=0.9, strength=1.0, decay=1.0, power=0.0), {}, []
    for number in range(4):
        candidates = range(number, 6)  # the others have less, and in another place every time
        view = block([0.95, 0.95, 0.95, 0.95, 0.8, 0.4], candidates=candidates, memory=memory)
        selection = sampler.select(view)
        found.append(4 in selection.reveal[0].nonzero()[:, 0].tolist())
        memory = dict(selection.memory)
    # 0.8 (1 + n) against 0.2: 0.889 after the first pass, 0.923 after the second
    assert found[:2] == [False, True]
    assert torch.equal(memory["credit"][0, 4], torch.tensor([4.0, 0.0, 0.0]))


def test_credit_decays() -> None:
    sampler, memory = CreditDecoding(decay=0.5, power=1.0), {}
    for expected in (0.8, 1.2, 1.4):
        memory = dict(sampler.select(block([0.9, 0.8, 0.7], candidates=[0, 1], memory=memory)).memory)
        torch.testing.assert_close(memory["credit"][0, 1], torch.tensor([expected, 0.0, 0.0]))
        assert not memory["credit"][0, 2].any()


def test_credit_of_no_strength_is_the_confidence_threshold() -> None:
    view = block([0.95, 0.85, 0.91])
    assert revealed(CreditDecoding(strength=0.0), view) == revealed(KINDS["confidence-threshold"](), view) == [0, 2]
