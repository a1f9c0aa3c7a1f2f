"""Decode rows together: requests with their state, their rules and the record of their passes.

Knows how rows join and leave, and how what is revealed becomes text. Knows nothing of the cache, nor of who decides what a pass
feeds.
"""

import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial

import torch

from setblock.decoding.answer.generation import Failure, FinishReason, Generation
from setblock.decoding.answer.news import RowNews, read_news
from setblock.decoding.answer.record import Record, open_record
from setblock.decoding.answer.text import AnswerText
from setblock.decoding.companions.asking import Accompanied, Companions
from setblock.decoding.companions.companion import Companion
from setblock.decoding.drafts.control import RowDrafts, control_of, note_fed, observe, shared_spans, timed_pass
from setblock.decoding.settings.calibrated import with_calibration
from setblock.decoding.settings.checks import (
    check_prompt,
    check_that_tokens_are_left,
    check_token_ids,
    limit_of,
    warn_if_not_trained,
)
from setblock.decoding.settings.defaults import decided
from setblock.decoding.settings.table import DecodingSettings
from setblock.decoding.state.joining import joined, open_state, taken
from setblock.decoding.state.state import BatchState
from setblock.decoding.state.terms import RowTerms
from setblock.decoding.step.absorb import DecodingStep, absorb
from setblock.decoding.step.feed import Span, next_feed, next_spans, plan_pass
from setblock.decoding.step.policy import Policy, companions_of, open_policy
from setblock.model.protocol.feed import Feed
from setblock.model.protocol.language_model import Compile, LanguageModel, Runner, as_it_is


@dataclass
class Rows:
    """Hold rows that are ready to decode, each one answer; they may differ in everything, progress included."""

    model: LanguageModel
    state: BatchState
    policy: Policy
    record: Record
    texts: list[AnswerText]
    started: list[float]
    drafts: list[RowDrafts | None]  # of rows whose drafts vary in length
    next_spans: list[Span] | None = None  # where they are known already
    is_shared: bool = False  # whether they are decided, too
    answered: torch.Tensor | None = None  # where answers ended before the last step

    @classmethod
    @torch.inference_mode()
    def joined(cls, parts: Sequence["Rows"]) -> "Rows":
        """Return the rows of several in one."""
        state = joined([part.state for part in parts])
        return cls(
            model=parts[0].model,
            state=state,
            policy=Policy.joined([part.policy for part in parts], state.terms.rows),
            record=Record.joined([part.record for part in parts], capacity=state.tokens.shape[1]),
            texts=[each for part in parts for each in part.texts],
            drafts=[each for part in parts for each in part.drafts],
            started=[each for part in parts for each in part.started],
        )

    @torch.inference_mode()
    def taken(self, rows: Sequence[int]) -> "Rows":
        """Return `rows` only, at least one. They share texts and companions with these: only one of the two may continue."""
        index = torch.tensor(rows, device=self.state.tokens.device)
        state = taken(self.state, index)
        return Rows(
            model=self.model,
            state=state,
            policy=self.policy.taken(rows, state.terms.rows),
            record=self.record.taken(index, capacity=state.tokens.shape[1]),
            texts=[self.texts[row] for row in rows],
            drafts=[self.drafts[row] for row in rows],
            started=[self.started[row] for row in rows],
            next_spans=None if self.next_spans is None else [self.next_spans[row] for row in rows],
        )

    @torch.inference_mode()
    def filled_up(self, size: int) -> "Rows":
        """Return these rows, and behind them rows that have ended, `size` in all. A compiled model then meets few batch
        sizes."""
        missing = size - self.state.batch
        rest = self.taken([0] * missing)
        rest.policy = replace(rest.policy, companions=Companions([Accompanied(()) for _ in range(missing)]))
        for row in range(missing):
            rest.state.cut(row)
        return Rows.joined([self, rest])

    def spans(self, runner: Runner) -> list[Span]:
        """Return what the runner's next pass feeds each row; a finished row is fed nothing. Waits for the device unless news
        have been read since the last pass."""
        if self.next_spans is None:
            self.next_spans, self.is_shared = next_spans(self.state, fuses_commit=runner.fuses_commit), False
        if self.state.terms.adapts_drafts and not self.is_shared:
            self.next_spans, self.is_shared = self._shared(self.next_spans, runner), True
        return self.next_spans

    @torch.inference_mode()
    def _shared(self, whole: Sequence[Span], runner: Runner) -> list[Span]:
        """Return the spans of the next pass, decided row by row, and shorten drafts accordingly."""
        control = control_of(self.model)
        observe(control, self.drafts, whole)
        spans = shared_spans(control, self.drafts, whole, self.state, runner)
        changed = (
            (span.end, span.block_start) != (full.end, full.block_start)
            for span, full in zip(spans, whole, strict=True)
        )
        if any(changed) or not runner.fuses_commit:
            cut = [span.drafted if span.drafted < full.drafted else -1 for span, full in zip(spans, whole, strict=True)]
            self.state.share(cut, [span.fed_size for span in spans])
            if self.policy.companions.constrained:
                self.policy.companions.hear(self.state)  # what is drafted no more
        return spans

    @torch.inference_mode()
    def step(self, runner: Runner, spans: Sequence[Span], *, is_ahead: bool = False) -> DecodingStep:
        """Run one forward pass over `spans`, and apply its results. `is_ahead`: they are the most that may be fed."""
        plan = plan_pass(
            self.state,
            spans,
            fixed_keys=runner.fixed_keys,
            fuses_commit=runner.fuses_commit,
            is_ahead=is_ahead,
            whole_blocks=bool(self.policy.companions.constrained),
        )
        compiled, control = runner.compiled if plan.is_fixed else as_it_is, control_of(self.model)
        if not is_ahead:
            note_fed(self.drafts, spans)
        control.clock.start(self.state.tokens.device)
        feed = compiled(next_feed)(self.state, plan)
        step = self.absorb(feed, runner.logits(feed), compiled=compiled)
        if self.state.terms.adapts_drafts and plan.is_prefill is None and not is_ahead:
            for timed in control.clock.stop(self.state.tokens.device, timed_pass(plan, spans, runner)):
                control.learn(timed)
        return step

    @torch.inference_mode()
    def absorb(self, feed: Feed, logits: torch.Tensor, *, compiled: Compile = as_it_is) -> DecodingStep:
        """Apply the results of a forward pass: `setblock.decoding.step.absorb.absorb`, and the record and the text of its
        rows."""
        self.next_spans, self.answered = None, self.state.answer.end
        step = absorb(self.state, feed, logits, self.policy, compiled=compiled)
        (compiled if self.record.num_alternatives is None else as_it_is)(Record.add)(self.record, step)
        return step

    @torch.inference_mode()
    def news(self, step: DecodingStep, runner: Runner) -> list[RowNews]:
        """Return what the last step did to all rows, after their companions have heard of it. Waits for the device, once."""
        assert self.answered is not None
        read = partial(read_news, self.state, step, self.record, fuses_commit=runner.fuses_commit, since=self.answered)
        news, finished = read(), self.state.answer.finished
        told = [row for row, each in enumerate(news) if each.event is not None]
        self.policy.companions.hear(self.state, told, news=news)
        if self.state.answer.finished is not finished:  # a companion that hears only now has ended an answer
            news = read()
        for each, terms in zip(news, self.state.terms.rows, strict=True):
            assert each.event is None or each.event.number <= terms.most_passes, "an answer does not end"
        self.next_spans, self.is_shared = [each.span for each in news], False
        self.state.may_prefill = any(span.is_prefill for span in self.next_spans)
        return news

    def new_texts(self, news: Sequence[RowNews]) -> list[str]:
        """Return each row's text that became certain since the last call, given the last step's news."""
        return [text.take(final=each.finished) for text, each in zip(self.texts, news, strict=True)]

    def generation(self, row: int, *, cancelled: bool = False) -> Generation:
        """Return the answer of a row that is finished, or given up."""
        self.policy.companions.hear(self.state, [row])
        self.texts[row].read([], final=True)
        terms = self.state.terms.rows[row]
        settings, start = terms.settings, terms.prompt_length
        token_ids = self.state.answer_of(row).tolist()
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
            error=None if cancelled else self.failure(row),
            drafted=int(self.record.drafted[row]),
            accepted=int(self.record.accepted[row]),
        )

    def failure(self, row: int) -> Failure | None:
        """Return why a row's answer ended with an error, if it did."""
        if not bool(self.state.answer.failed[row]):
            return None
        num_tokens = len(self.state.answer_of(row))
        if self.policy.companions.rows[row].is_stuck:
            return Failure(
                f"structure leaves no token to choose after {num_tokens} tokens: the form, or bans and biases with it, "
                "allow none",
                is_of_form=True,
            )
        return Failure(f"the model gave logits that are not numbers after {num_tokens} tokens", is_of_form=False)

    def _finish_reason(self, row: int) -> FinishReason:
        if bool(self.state.answer.failed[row]):
            return "error"
        return "stop" if self.state.has_stopped(row) else "length"


@dataclass(frozen=True)
class CheckedRows:
    """Hold requests that a model can answer, before their rows are opened. Nothing of them is on the device yet.

    Attributes:
        prompts: token ids.
        terms: what is fixed of each row: settings with what the model was calibrated to and with the grammar of its form.
        companions: of each row; the last is its text, which is also in `texts`.
        started: `time.perf_counter()` when they were checked.
    """

    model: LanguageModel
    prompts: Sequence[Sequence[int]]
    terms: Sequence[RowTerms]
    companions: Sequence[tuple[Companion, ...]]
    texts: list[AnswerText]
    started: float

    @torch.inference_mode()  # as the passes are: what is compiled for tensors of one kind is not used for another
    def open(self) -> Rows:
        """Return the rows, with tensors of their full capacity on the model's device."""
        model, terms = self.model, self.terms
        state = open_state(self.prompts, terms, facts=model.facts, device=model.device, draft_text=model.draft_text)
        wanted = [each.settings.logprobs for each in terms if each.settings.logprobs is not None]
        return Rows(
            model=model,
            state=state,
            policy=open_policy(terms, self.companions, vocab_size=model.vocab_size, device=model.device),
            record=open_record(state, num_alternatives=min(max(wanted), model.vocab_size) if wanted else None),
            texts=self.texts,
            drafts=[control_of(model).new_row() if row.adapts_drafts else None for row in terms],
            started=[self.started] * len(terms),
            next_spans=[Span(0, len(prompt), len(prompt), is_prefill=True) for prompt in self.prompts],
        )


def check_rows(
    model: LanguageModel, prompts: Sequence[Sequence[int]], settings: Sequence[DecodingSettings]
) -> CheckedRows:
    """Check requests against the model; each is one answer. A row that says nothing of its sampler and its block gets what the
    model was calibrated to, if it was.

    Raises:
        SetBlockError: a prompt is empty or too long, or a row asks for what the model can't do.
    """
    started = time.perf_counter()
    asked = [_with_grammar(model, with_calibration(model, each)) for each in settings]
    terms = [terms_of(model, len(prompt), each) for prompt, each in zip(prompts, asked, strict=True)]
    warn_if_not_trained(model, max([each.block_size for each in terms if each.method == "sbd"], default=0))
    for prompt, row in zip(prompts, terms, strict=True):
        check_prompt(prompt, model.vocab_size)
        check_token_ids(row.settings, model.vocab_size)
        check_that_tokens_are_left(model, row.settings, ends=row.ends, vocab_size=model.vocab_size)
    texts = [AnswerText(model.tokenizer, stop=each.stop, min_new_tokens=each.min_new_tokens) for each in asked]
    companions = [
        (*companions_of(row, vocab_size=model.vocab_size), text) for row, text in zip(terms, texts, strict=True)
    ]
    return CheckedRows(model, prompts, terms, companions, texts, started)


def open_rows(model: LanguageModel, prompts: Sequence[Sequence[int]], settings: Sequence[DecodingSettings]) -> Rows:
    """Check requests against the model, and open their rows: see `check_rows`."""
    return check_rows(model, prompts, settings).open()


def _with_grammar(model: LanguageModel, settings: DecodingSettings) -> DecodingSettings:
    """Return the settings with the companion that holds the answer to its form, where one is asked for."""
    if settings.structure is None:
        return settings
    from setblock.decoding.companions.grammar import GrammarMaker

    return replace(settings, companions=(GrammarMaker(settings.structure, model.tokenizer), *settings.companions))


def terms_of(model: LanguageModel, prompt_length: int, settings: DecodingSettings) -> RowTerms:
    """Return what is fixed of a request's row.

    Raises:
        SetBlockError: the prompt is empty or too long, or the model can't decode in blocks.
    """
    limit = limit_of(model, prompt_length, settings)
    room = 1 << (limit - prompt_length - 1).bit_length()  # rounded up, so that a compiled model meets few block sizes
    settings = decided(settings, model.facts, has_draft_text=model.draft_text is not None)
    return RowTerms(
        settings=replace(settings, block_size=min(settings.block_size or 1, room)),
        prompt_length=prompt_length,
        limit=limit,
        ends=(*model.end_of_text_ids, *settings.stop_token_ids),
    )
