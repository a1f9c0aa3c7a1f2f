"""Rows that are decoded together: requests with their state, their rules and the record of what was done.

Knows how rows join and leave, and how what is revealed becomes text. Knows nothing of the cache, nor of who decides what a pass
feeds.
"""

import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch

from setblock.decoding.calibrated import with_calibration
from setblock.decoding.checks import (
    check_prompt,
    check_that_tokens_are_left,
    check_token_ids,
    limit_of,
    warn_if_not_trained,
)
from setblock.decoding.choice import Draws, draws_of
from setblock.decoding.defaults import block_size_for, draft_passes_for, sampler_for
from setblock.decoding.events import PassEvent, pass_events
from setblock.decoding.feed import Runner
from setblock.decoding.generation import FinishReason, Generation
from setblock.decoding.logits import LogitRules, logit_rules
from setblock.decoding.loop import DecodingStep, decode_step
from setblock.decoding.record import Record, joined_records, open_record
from setblock.decoding.selection import RowSamplers
from setblock.decoding.settings import DecodingSettings
from setblock.decoding.state import BatchState, joined, open_state
from setblock.decoding.text import AnswerText
from setblock.model.sbd_model import SBDModel


@dataclass
class Rows:
    """Rows ready to decode, each one answer; they may differ in everything, and be anywhere in their answers."""

    model: SBDModel
    settings: list[DecodingSettings]
    state: BatchState
    samplers: RowSamplers
    rules: LogitRules
    draws: Draws
    record: Record
    texts: list[AnswerText]
    started: list[float]

    @classmethod
    @torch.inference_mode()
    def joined(cls, parts: Sequence["Rows"]) -> "Rows":
        """The rows of several in one."""
        state = joined([part.state for part in parts])
        return _with_rules(
            parts[0].model,
            settings=[each for part in parts for each in part.settings],
            state=state,
            samplers=RowSamplers.joined([part.samplers for part in parts]),
            record=joined_records([part.record for part in parts], capacity=state.tokens.shape[1]),
            texts=[each for part in parts for each in part.texts],
            started=[each for part in parts for each in part.started],
        )

    @torch.inference_mode()
    def taken(self, rows: Sequence[int]) -> "Rows":
        """`rows` alone, at least one. What becomes of either does not change the other."""
        index = torch.tensor(rows, device=self.state.tokens.device)
        state = self.state.taken(index)
        return _with_rules(
            self.model,
            settings=[self.settings[row] for row in rows],
            state=state,
            samplers=self.samplers.taken(rows),
            record=self.record.taken(index, capacity=state.tokens.shape[1]),
            texts=[self.texts[row] for row in rows],
            started=[self.started[row] for row in rows],
        )

    @torch.inference_mode()
    def step(self, runner: Runner, *, end: torch.Tensor | None = None) -> DecodingStep:
        """One forward pass, and all that follows from it.

        Args:
            end: [B] int64, as in `run_pass`; None to feed every row that is not finished as far as it goes.
        """
        step = decode_step(
            runner,
            self.state,
            end=self.state.next_end() if end is None else end,
            samplers=self.samplers,
            rules=self.rules,
            draws=self.draws,
        )
        self.record.add(step)
        stopping = [row for row, settings in enumerate(self.settings) if settings.stop]
        if not stopping:
            return step
        took_part = step.took_part.tolist()
        stopping = [row for row in stopping if took_part[row]]
        self._read(stopping)
        for row in stopping:
            length = self.texts[row].stop_length
            if length is not None:
                self.state.finish(row, end=int(self.state.prompt_length[row]) + length)
        return replace(step, finished=self.state.finished.clone())

    def events(self, step: DecodingStep) -> dict[int, PassEvent]:
        """What the last step did, for each row that took part."""
        state = self.state
        return pass_events(step, numbers=self.record.numbers, prompt_lengths=state.prompt_length, is_ntp=state.is_ntp)

    def new_texts(self, rows: Iterable[int]) -> dict[int, str]:
        """The text of `rows` that became certain since this was last asked."""
        rows, finished = list(rows), self.state.finished.tolist()
        self._read(rows)
        return {row: self.texts[row].take(final=finished[row]) for row in rows}

    def generation(self, row: int, *, cancelled: bool = False) -> Generation:
        """The answer of a row that is finished, or given up."""
        self._read([row])
        self.texts[row].read([], final=True)
        settings, start = self.settings[row], int(self.state.prompt_length[row])
        token_ids = self.state.answer(row).tolist()
        here = (row, start, len(token_ids))
        return Generation(
            text=self.texts[row].text,
            token_ids=token_ids,
            finish_reason="cancelled" if cancelled else self._finish_reason(row),
            passes=self.record.counts(row),
            revealed_by=self.record.revealed_by(*here),
            entropy=self.record.entropy(*here).tolist(),
            logprobs=(
                None if settings.logprobs is None else self.record.logprobs(*here, alternatives=settings.logprobs)
            ),
            seconds=time.perf_counter() - self.started[row],
            method=settings.method,
        )

    def _finish_reason(self, row: int) -> FinishReason:
        if bool(self.state.failed[row]):
            return "error"
        return "stop" if bool(self.state.stopped[row]) else "length"

    def _read(self, rows: Sequence[int]) -> None:
        """Hand what is certain of `rows` over to their texts."""
        if not rows:
            return
        of_rows = (self.state.prompt_length, self.state.answer_ends(), self.state.finished)
        starts, ends, finished = (each.tolist() for each in of_rows)
        for row in rows:
            text, last = self.texts[row], self.state.ends[row].tolist()
            token_ids = self.state.tokens[row, starts[row] + text.num_tokens : ends[row]].tolist()
            if token_ids and token_ids[-1] in last:
                token_ids.pop()
            text.read(token_ids, final=finished[row])


def open_rows(model: SBDModel, prompts: Sequence[Sequence[int]], settings: Sequence[DecodingSettings]) -> Rows:
    """Check requests against the model and lay out their rows; each is one answer. A row that says nothing of its sampler and
    its block gets what the model was calibrated to, if it was.

    Raises:
        SetBlockError: a prompt is empty or too long, or a row asks for what the model can't do.
    """
    started, settings = time.perf_counter(), [with_calibration(model, each) for each in settings]
    limits = [limit_of(model, len(prompt), each) for prompt, each in zip(prompts, settings, strict=True)]
    sizes = [block_size_for(model, each) for each in settings]
    warn_if_not_trained(model, max(sizes))
    vocab_size, ends = _vocab_size(model), [_ends(model, each) for each in settings]
    for prompt, each, ids in zip(prompts, settings, ends, strict=True):
        check_prompt(prompt, vocab_size)
        check_token_ids(each, vocab_size)
        check_that_tokens_are_left(model, each, ends=ids, vocab_size=vocab_size)
    state = open_state(
        [list(prompt) for prompt in prompts],
        settings,
        block_sizes=sizes,
        draft_passes=[draft_passes_for(each) for each in settings],
        limits=limits,
        ends=ends,
        device=model.device,
    )
    wanted = [each.logprobs for each in settings if each.logprobs is not None]
    return _with_rules(
        model,
        settings=settings,
        state=state,
        samplers=RowSamplers([sampler_for(each) for each in settings], device=model.device),
        record=open_record(state, num_alternatives=min(max(wanted), vocab_size) if wanted else None),
        texts=[AnswerText(model.tokenizer, stop=each.stop, min_new_tokens=each.min_new_tokens) for each in settings],
        started=[started] * len(settings),
    )


def _with_rules(model: SBDModel, *, settings: list[DecodingSettings], state: BatchState, **parts: Any) -> Rows:
    """Rows, with the rules and draws that follow from their settings."""
    vocab_size = _vocab_size(model)
    rules = logit_rules(
        settings,
        prompt_lengths=state.prompt_length.tolist(),
        ends=[_ends(model, each) for each in settings],
        vocab_size=vocab_size,
        device=model.device,
    )
    draws = draws_of(settings, vocab_size=vocab_size, device=model.device)
    return Rows(model=model, settings=settings, state=state, rules=rules, draws=draws, **parts)


def _ends(model: SBDModel, settings: DecodingSettings) -> list[int]:
    """Token ids that end an answer."""
    return [*model.end_of_text_ids, *settings.stop_token_ids]


def _vocab_size(model: SBDModel) -> int:
    size: int = model.model.get_output_embeddings().weight.shape[0]
    return size
