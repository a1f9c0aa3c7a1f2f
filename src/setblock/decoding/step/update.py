"""The update of a state after a forward pass: Algorithms 2 and 3 of the paper over a batch of independent rows.

    while rows are not finished:                                            Engine.step of engine.py
        inputs = prepare_inputs(state, plan)             x_<t ; x̂           inputs.py
        logits = runner.logits(inputs)                   ẑ, z      eq. 9    the model's runner
        step = update(state, inputs, logits, policy)     reveal some        here; eq. 8: samplers/entropy_bounded.py

An update checks what the pass committed, reveals what the sampler selects, and opens the next block.

In exact mode the pass that commits a block also checks it (`verify.check_drafts`). It runs the draft causally, so its outputs
are the logits that next-token decoding would have seen. The check keeps the longest prefix of the draft that next-token
decoding would also have chosen. At the first wrong token it takes next-token decoding's choice, and drops the rest of
the draft and what the pass predicted for the next block. If the whole draft is right, the pass was also the first one
of the next block.

Next-token decoding's choice is a function of the causal logits and, at a temperature above 0, of noise that depends
only on the seed, the position and the token id (`choice`). The draft is made with the same noise, but it only decides
how many tokens a pass yields, never which. So the output is that of `ntp` with the same seed, at any temperature; see
docs/exact.md.
"""

from dataclasses import dataclass, replace

import torch
from torch import Tensor
from torch.nn.functional import pad

from setblock.decoding.constraints.constrained import (
    ConstrainedBlock,
    constrained_block,
    constrained_check,
    constrained_copies,
)
from setblock.decoding.drafts.kinds import kinds_of
from setblock.decoding.drafts.lookup import Draft, with_copies
from setblock.decoding.samplers.base import BlockView, Selection
from setblock.decoding.state.state import BatchState, Record
from setblock.decoding.step.certainty import Certainty, certainty_of
from setblock.decoding.step.choice import Policy, chosen_from
from setblock.decoding.step.logits import Logits, read_logits
from setblock.decoding.step.verify import Check, check_drafts
from setblock.model.protocol.runtime import ModelInput, PassPlan


@dataclass(frozen=True)
class Prediction:
    """What a pass predicts, before any token is revealed: w places of the block and m checked tokens of a draft."""

    plan: PassPlan
    given: Logits  # the model's own
    block: Logits  # the logits that the block's tokens are chosen from
    certainty: Certainty  # [B, w + m], of the distributions at the block's first w places, then at the m checked tokens
    known: Tensor  # [B, w + m] bool, where `certainty` counts: `candidates`, then `check.replaced`
    is_wanted: Tensor  # [B] bool, rows whose sampler is called: the pass predicts some of their block
    candidates: Tensor  # [B, w] bool, masked positions that may be revealed
    is_prefill: Tensor  # [B] bool, rows that were fed their prompt, or a part of it
    took_part: Tensor  # [B] bool, rows that were in the pass
    # [B] bool, rows whose earlier tokens the pass wrote to the cache causally; never in the prefill
    is_commit: Tensor
    check: Check | None  # the result for the drafts that the pass committed; None if there are none
    since: Tensor  # [B] int64, where answers ended before the pass


@dataclass(frozen=True)
class StepOutput(Prediction):
    """The result of one forward pass. B rows, k the largest block size; tensors are [B, k] unless stated."""

    positions: Tensor  # int64, absolute, of the block
    token_ids: Tensor  # int64, the tokens chosen at `positions`
    revealed: Tensor  # bool, positions that this pass revealed
    # [B, k + m] float32, nats, of the distributions at the k positions, then at the m checked ones
    entropy: Tensor


def update(state: BatchState, inputs: ModelInput, logits: Tensor, policy: Policy) -> StepOutput:
    """Apply a pass to the state: check drafts, reveal tokens, and move to the next block. Needs inference mode.

    The prefill also reveals a token if the block's first token comes from the causal logits, which it has.

    Args:
        state: of the batch; updated in place.
        inputs: of `prepare_inputs`; the state must not have changed since.
        logits: [A, m, V] float32, of the outputs that `inputs` wants. Written to.
        policy: of the batch; its samplers' memories are updated.
    """
    constrained = None
    # 1. Check what the pass committed, which may be a draft
    prediction = read_pass(state, inputs, logits, policy)
    if policy.constraints.constrained:
        prediction, constrained = _constrained(state, prediction, policy)
    # 2. Select the positions to reveal
    width = inputs.plan.width
    entropy, confidence = (each[:, :width] for each in prediction.certainty)
    revealed = state.block.revealed if width == state.params.block_width else state.block.revealed[:, :width]
    if width == 1 and not state.params.has_sbd:  # exact rows always reveal the first place
        selection = Selection(prediction.candidates)
    else:
        block = BlockView(prediction.block.logits, prediction.candidates, revealed, entropy, confidence)
        selection = policy.samplers.select(block, passes=state.block.passes, is_wanted=prediction.is_wanted)
    # 3. Reveal them, and move to the next block or to the end
    step = write_pass(state, prediction, selection, policy, constrained)
    if state.record is not None and state.params.num_alternatives is not None:
        _keep_logprobs(state.record, step, state.params.num_alternatives)
    if policy.constraints.listening:  # a stop string ends an answer, too
        policy.constraints.update(state)
    return step


def read_pass(state: BatchState, inputs: ModelInput, logits: Tensor, policy: Policy) -> Prediction:
    """Check what was committed, and return what may be revealed. Doesn't wait for the device."""
    plan, since = inputs.plan, state.answer.end
    ends = plan.put(plan.ends)
    is_prefill = state.nobody if plan.is_prefill is None else plan.put(plan.is_prefill)
    took_part = ends > state.cache.committed
    is_commit = took_part & (state.cache.committed < state.block.start)
    if plan.is_prefill is not None:
        is_commit &= ~is_prefill
    given = read_logits(state, inputs, logits, policy.draws.reader)
    state.commit(ends, has_prefill=plan.is_prefill is not None)
    shaped = policy.rules.apply(state, given)
    is_finite = shaped.is_finite
    if policy.constraints.constrained:
        shaped = constrained_check(state, shaped, policy.constraints)
        is_finite = is_finite & shaped.is_finite
    checked, check = shaped.checked, None
    predicted, usable = shaped.known[:, : given.width], is_finite[:, : given.width]
    if checked is not None:
        check = check_drafts(state, checked, is_finite=is_finite[:, given.width :], draws=policy.draws)
        state.answer.failed = state.answer.failed | check.failed
        predicted = predicted.masked_fill(check.rejected[:, None], False)
    usable = predicted & usable
    broken = predicted != usable
    if state.params.is_all_exact:  # next-token decoding sees the first token's logits, but not a draft's
        broken = broken[:, :1]
    elif state.params.takes_next is not None:
        broken = broken & (state.params.takes_next[:, : given.width] | ~state.params.is_exact[:, None])
    state.answer.failed = state.answer.failed | broken.any(dim=1)
    candidates = usable.masked_fill(state.answer.failed[:, None], False)
    known = candidates if check is None else torch.cat([candidates, check.replaced], dim=1)
    return Prediction(
        plan=plan,
        given=given,
        block=shaped.block,
        certainty=_certainty(state, shaped, known),
        known=known,
        is_wanted=predicted.any(dim=1),
        candidates=candidates,
        is_prefill=is_prefill,
        took_part=took_part,
        is_commit=is_commit,
        check=check,
        since=since,
    )


def _certainty(state: BatchState, logits: Logits, known: Tensor) -> Certainty:
    if logits.reading.certainty is not None:
        return logits.reading.certainty
    return certainty_of(logits.logits, logits.best.logits, known, in_tiles=not state.params.waits)


def _constrained(state: BatchState, prediction: Prediction, policy: Policy) -> tuple[Prediction, ConstrainedBlock]:
    """Return the prediction with only what constraints allow, and the constrained block."""
    if prediction.check is not None:
        state.settle()
        policy.constraints.update(state)  # with rejected drafts, and answers that end with an accepted one
    candidates = prediction.candidates & ~state.answer.finished[:, None]
    constrained = constrained_block(state, prediction.block, candidates, policy.constraints, draws=policy.draws)
    of_block = _certainty(state, constrained.logits, constrained.candidates)
    whole = zip(of_block, prediction.certainty, strict=True)
    certainty = Certainty(*(torch.cat([block, both[:, candidates.shape[1] :]], dim=1) for block, both in whole))
    return replace(
        prediction, block=constrained.logits, candidates=constrained.candidates, certainty=certainty
    ), constrained


def write_pass(
    state: BatchState,
    prediction: Prediction,
    selection: Selection,
    policy: Policy,
    constrained: ConstrainedBlock | None,
) -> StepOutput:
    """Reveal what a sampler selected, and open the next block. In exact mode, always reveal a block's first token: it
    is next-token decoding's. Waits for the device only with a constrained block."""
    block, width, params = prediction.block, prediction.candidates.shape[1], state.params
    reveal, changed = selection.reveal, selection.logits
    if params.takes_next is not None:
        is_next = params.takes_next[:, :width]
        reveal = reveal | (prediction.candidates & is_next)
        changed = None if changed is None else torch.where(is_next[..., None], block.logits, changed)
    block = block if changed is None else block.with_logits(changed)
    chosen = chosen_from(block, policy.draws)
    entropy, confidence = prediction.certainty
    is_wanted = prediction.is_wanted
    if constrained is not None:
        reveal = constrained.kept(reveal, chosen, revealed=state.block.revealed, entropy=entropy[:, :width])
    if prediction.plan.is_prefill is not None:
        is_wanted = is_wanted & ~prediction.is_prefill
    state.block.passes = state.block.passes + is_wanted
    if constrained is not None or params.copies_drafts:  # forced and copied tokens may have no prediction
        entropy = entropy.masked_fill(~prediction.known, 0)
    kinds = kinds_of(confidence[:, :width], params.confidences) if params.adapts_drafts else None
    if width < params.block_width:  # places that were not fed may be copied
        more = (0, params.block_width - width)
        chosen, reveal, kinds = pad(chosen, more), pad(reveal, more), None if kinds is None else pad(kinds, more)
        entropy = torch.cat([pad(entropy[:, :width], more), entropy[:, width:]], dim=1)
    if params.copies_drafts:
        draft = Draft(chosen, reveal)
        of_block = entropy[:, : params.block_width]
        copied, copy_kinds = with_copies(state, draft, entropy=of_block, rows=prediction.took_part)
        if constrained is not None:
            copied = constrained_copies(state, draft, copied, policy.constraints, vocab_size=policy.vocab_size)
        if kinds is not None:
            is_copied = copied.reveal & ~reveal
            is_copied[:, 0].fill_(True)  # the first token is never copied: its place says whether there is a copy
            kinds = torch.where(is_copied, copy_kinds, kinds)
        chosen, reveal = copied
    if kinds is not None:
        state.block.kinds = torch.where(prediction.took_part[:, None], kinds, state.block.kinds)
    positions = state.block.positions
    at = state.reveal(chosen, reveal)
    state.advance(fuses_commit=prediction.plan.fuses_commit)
    step = StepOutput(**vars(prediction), positions=positions, token_ids=chosen, revealed=reveal, entropy=entropy)
    if state.record is not None:
        _count(state.record, step, at)
    return step


def _count(record: Record, step: StepOutput, at: Tensor) -> None:
    """Add a pass to the record. `at` [B, k] int64: the positions to which its block's tokens were written."""
    if step.plan.is_prefill is not None:
        record.prefill += step.is_prefill
        record.number += step.took_part & ~step.is_prefill
    else:
        record.number += step.took_part
    record.commits += step.is_commit
    if (check := step.check) is not None:
        drafted = check.known.sum(dim=1)
        record.drafted += drafted
        record.accepted += torch.minimum(drafted, check.first_wrong)
        # Columns are unique, except the last, which is never read
        nowhere = record.revealing.shape[1] - 1
        at = torch.cat([at, check.positions.where(check.replaced, nowhere)], dim=1)
    record.revealing.scatter_(1, at, record.number[:, None].expand_as(at))
    record.entropies.scatter_(1, at, step.entropy)


def _keep_logprobs(record: Record, step: StepOutput, alternatives: int) -> None:
    """Record the log-probabilities of a pass's tokens and of the `alternatives` most likely ones."""
    block, checked, check = step.given.block, step.given.checked, step.check
    groups = [(block, step.revealed[:, : block.known.shape[1]], step.token_ids)]
    if checked is not None and check is not None:
        groups.insert(0, (checked, check.accepted | check.replaced, check.token_ids))
    for logits, where, token_ids in groups:
        rows, columns = (where & logits.known).nonzero(as_tuple=True)  # a token forced by a grammar may have no logits
        positions = logits.positions[rows, columns]
        log_probs = logits.logits[rows, columns].log_softmax(dim=-1)  # [N, V]
        chosen = log_probs.gather(1, token_ids[rows, columns, None])
        record.logprob[rows, positions] = chosen[:, 0]
        record.rank[rows, positions] = 1 + (log_probs > chosen).sum(dim=1)
        top = log_probs.topk(min(alternatives, log_probs.shape[-1]), dim=-1)
        record.top_logprobs[rows, positions, : top.values.shape[1]] = top.values
        record.top_ids[rows, positions, : top.indices.shape[1]] = top.indices
