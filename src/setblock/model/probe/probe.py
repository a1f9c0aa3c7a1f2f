"""The search for a model's attention plan: how its attention must be called so that all logits are right.

A list of supported architectures would be out of date with every release of Transformers, and a model that silently ignores a
mask or a position would decode to nonsense. So each way to call a small copy, the fastest first, runs the passes of decoding
and training past every threshold in the config, and is compared with Transformers' own uncached passes.
"""

from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import replace
from typing import Final, TypeVar

import torch
from transformers import PreTrainedModel

from setblock.errors import SetBlockError, one_line, prefixed
from setblock.locks import one_at_a_time
from setblock.model.attention.attention import AttentionPlan, has_state, plan_of, planned, set_plan
from setblock.model.probe.agreement import BATCH, CAPACITY, DisagreementError, Expected, check_decoding, check_training
from setblock.model.probe.small_copy import Threshold, run_text, small_copy, thresholds_of, with_low
from setblock.model.probe.states import check_states
from setblock.model.protocol.runtime import Runner
from setblock.model.runners.forward import PaddedRunner
from setblock.model.runners.packed_runner import PackedRunner
from setblock.model.runners.state_runner import StateRunner

_T = TypeVar("_T")

_FOUND: Final[dict[tuple[object, ...], AttentionPlan]] = {}
"""Plans found in this process, by everything that they depend on."""
_ORIGIN = frozenset({"_name_or_path", "architectures", "setblock", "transformers_version"})
"""Config keys about a model's origin. No pass depends on them, so that a copy in another folder has the same plan."""
_SAME = 1e-3  # relative, of float32 logits
_STORED_TOLERANCE = 0.3  # relative; errors of eight-bit weights are smaller
_PAGE = 4  # tokens
_PAGES = -(-CAPACITY // _PAGE)  # of a row
_OUT_OF_ORDER = [range(row, BATCH * _PAGES, BATCH) for row in reversed(range(BATCH))]  # the pages of rows, on purpose


@one_at_a_time()
def plan_attention(model: PreTrainedModel, *, alternatives: Sequence[str] = ()) -> AttentionPlan:
    """Find the plan by which a model's attention must be called, and set it. Raise `SetBlockError` with the reason if the model
    can't be decoded in blocks.

    A model that already has a plan for its attention keeps it. `alternatives` are attention implementations to try if the
    model's own gives wrong logits.
    """
    plan = planned(model)
    if plan is None:
        own = model.config.get_text_config()._attn_implementation
        config = {name: value for name, value in model.config.to_dict().items() if name not in _ORIGIN}
        # For a model without weights (`meta`), shapes suffice to make a small copy
        device = torch.device("cpu") if model.device.type == "meta" else model.device
        key = (type(model), str(config), own, *alternatives, device.type)
        plan = _FOUND.get(key) or _found_plan(model, alternatives, device)
        _FOUND[key] = plan
        set_plan(model, plan)
    return plan


@torch.inference_mode()
def check_stored(model: PreTrainedModel, store: Callable[[PreTrainedModel], None], how: str) -> None:
    """Raise `SetBlockError` if a small copy computes other logits after `store` has changed how its weights are stored, or if
    `store` refuses it. `how` says what `store` does, for the message."""
    small = small_copy(model, device=model.device)
    wanted = run_text(small)
    store(small)
    with prefixed(f"{model.config.model_type} can't be {how}", DisagreementError):
        found = _run(lambda: run_text(small), failure="it then no longer runs")
        if not float((found - wanted).norm()) <= _STORED_TOLERANCE * float(wanted.norm()):
            raise DisagreementError("it then gives other logits")


@torch.inference_mode()
def _found_plan(model: PreTrainedModel, alternatives: Sequence[str], device: torch.device) -> AttentionPlan:
    with prefixed(f"{model.config.model_type} can't be decoded in blocks"):
        small = small_copy(model, device=device)
    thresholds = thresholds_of(model.config, small)
    low = with_low(small, thresholds)
    own: str = model.config.get_text_config()._attn_implementation
    plans: list[AttentionPlan] = []
    reasons: list[DisagreementError] = []
    for implementation in dict.fromkeys((own, *alternatives)):
        try:
            plans.append(_tried(low, implementation, own))
        except DisagreementError as error:
            reasons.append(error)
            with suppress(DisagreementError):
                plans.append(_limited(small, thresholds, implementation, own, error))
        if plans and plans[-1].context is None and plans[-1].untrainable is None:
            break
    if not plans:
        raise SetBlockError(f"{model.config.model_type} can't be decoded in blocks: {reasons[0]}") from reasons[0]
    return max(plans, key=lambda plan: (plan.context is None, plan.context or 0, plan.untrainable is None))


def _tried(small: PreTrainedModel, implementation: str, own: str) -> AttentionPlan:
    """Return the fastest plan with which a small copy is right under an attention implementation; `own` is the model's. Raise
    `DisagreementError` if no plan is right in decoding.

    FlexAttention has no kernels for heads as narrow as a small copy's, so that eager attention is tried in its place.
    """
    if implementation == "flex_attention":
        return replace(_tried(small, "eager", "eager"), implementation=implementation, by_document=True)
    plan = AttentionPlan(implementation, grouped=False, by_document=False)
    ways = (True, False) if implementation == "sdpa" else (False,)
    set_plan(small, replace(plan, implementation=own))
    wanted = _run(lambda: run_text(small))
    set_plan(small, plan)
    found = _run(lambda: run_text(small))
    if not float((found - wanted).norm()) <= _SAME * float(wanted.norm()):
        raise DisagreementError(f"its {implementation} attention gives other logits than its {own} attention")
    if has_state(small.config):
        return _with_state(small, plan)
    expected = _run(lambda: Expected(small))
    decoding = [replace(plan, grouped=way) for way in ways]
    plan = _first_right(
        small, decoding, lambda: check_decoding(PaddedRunner(small, rows=BATCH, capacity=CAPACITY), expected)
    )
    try:
        training = [replace(plan, by_document=way) for way in ways]
        plan = _first_right(small, training, lambda: check_training(small, expected))
    except DisagreementError as error:
        plan = replace(plan, untrainable=str(error))
    try:
        _run(lambda: check_decoding(_packed(small), expected), failure="it fails")
    except DisagreementError as error:
        plan = replace(plan, unpackable=f"with requests packed in one row, {error}")
    return plan


def _with_state(small: PreTrainedModel, plan: AttentionPlan) -> AttentionPlan:
    """Return the plan of a model with a recurrent state; `DisagreementError` as above."""
    plans = [replace(plan, keeps_state=True, together=way) for way in (True, False)]

    def check() -> None:
        runner = StateRunner(
            small, pages=BATCH * _PAGES, page_tokens=_PAGE, rows=BATCH, together=plan_of(small).together
        )
        runner.place(_OUT_OF_ORDER, range(BATCH))
        check_states(runner, small)

    failure = "it takes no position ids, or a cache that is put back"
    return _first_right(small, plans, lambda: _run(check, failure=failure))


def _packed(model: PreTrainedModel) -> Runner:
    runner = PackedRunner(model, pages=BATCH * _PAGES, page_tokens=_PAGE)
    runner.place(_OUT_OF_ORDER, range(BATCH))
    return runner


def _first_right(small: PreTrainedModel, plans: Sequence[AttentionPlan], check: Callable[[], None]) -> AttentionPlan:
    """Return the first of several plans with which a check passes. If none does, raise the last one's error."""
    for plan in plans:
        set_plan(small, plan)
        try:
            _run(check)
            return plan
        except DisagreementError as error:
            reason = error
    raise reason


def _limited(
    small: PreTrainedModel, thresholds: Sequence[Threshold], implementation: str, own: str, reason: DisagreementError
) -> AttentionPlan:
    """Return the plan with which a small copy is right up to a threshold. `reason` is what is wrong above it. Raise
    `DisagreementError` if it is wrong even below all thresholds."""
    wrong: dict[Threshold, DisagreementError] = {}
    for each in thresholds:
        try:
            _tried(with_low(small, [each]), implementation, own)
        except DisagreementError as error:
            wrong[each] = error
    wrong = wrong or dict.fromkeys(thresholds, reason)
    plan = _tried(with_low(small, [each for each in thresholds if each not in wrong]), implementation, own)
    threshold = min(wrong, key=lambda each: each.value)
    why = f"past {threshold.name} {threshold.value}, {wrong[threshold]}"
    return replace(plan, context=threshold.value, context_reason=why)


def _run(check: Callable[[], _T], *, failure: str = "it takes no 4D mask, position ids or preallocated cache") -> _T:
    """Return the result of a check. Any error that the model raises becomes a `DisagreementError`, described by `failure`."""
    try:
        return check()
    except DisagreementError:
        raise
    except Exception as error:
        text = one_line(error)[:200]
        raise DisagreementError(f"{failure} ({text or type(error).__name__})") from error
