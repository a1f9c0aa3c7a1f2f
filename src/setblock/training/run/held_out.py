"""The held-out measurement of a run, before and after it trains: the loss of plain decoding, and the share of tokens
that equal the reference.

It draws no random number and changes no weight, so a run is the same with and without it.
"""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from transformers import TrainerCallback, TrainerState, TrainingArguments

from setblock.data.packing import Document, Row, documents_of
from setblock.errors import warn
from setblock.model.runners.teacher_forcing import TokenScores, has_scores, token_scores
from setblock.model.sbd_model import SBDModel
from setblock.training.trainer.sharding import reshard
from setblock.training.trainer.trainer import SBDTrainer

MOST_TOKENS = 32_768
"""The most tokens of held-out documents that are measured, prompts included, which bounds the time it takes."""

_LOSS, _ACCURACY = "eval_token_loss", "eval_mean_token_accuracy"
_TOKENS, _DOCUMENTS = "eval_tokens", "eval_documents"


class HeldOutScores(TrainerCallback):
    """A trainer callback that logs `eval_token_loss` and `eval_mean_token_accuracy` of plain decoding on the first
    held-out documents, up to `MOST_TOKENS`: when training begins, and when `measure` is called."""

    def __init__(
        self,
        trainer: SBDTrainer,
        sbd: SBDModel,
        rows: Sequence[Row],
        *,
        on_progress: Callable[[int, int], None] = lambda done, total: None,
    ) -> None:
        """Take the trainer, the model that it trains, and held-out rows. `on_progress` is called with the number of
        documents measured so far, and their total."""
        self._mask_token_id = None if sbd.sbd_config is None else sbd.sbd_config.mask_token_id
        self._trainer, self._model, self._rows, self._on_progress = trainer, sbd.model, rows, on_progress

    @cached_property
    def _documents(self) -> list[Document]:
        """The documents to measure, which are the same before and after."""
        documents, is_all = _first(self._rows)
        if not is_all and self._trainer.is_world_process_zero():
            first = f"the first {len(documents):,} held-out documents"
            warn(f"loss is measured on {first}, for more would have over {MOST_TOKENS:,} tokens")
        if not documents and self._trainer.is_world_process_zero():
            warn("held-out loss is not measured: no held-out document has a token to predict from others")
        return documents

    def on_train_begin(self, args: TrainingArguments, state: TrainerState, control: Any, **kwargs: Any) -> None:
        """Measure the model that the run starts from. A resumed run already has it in its metrics."""
        if state.global_step == 0:
            self.measure()

    def measure(self) -> None:
        """Measure the present model, and log the scores. Every process must call this, since each may have a part of
        the weights; all measure the same documents."""
        if not self._documents:
            return
        wrapped, total = self._trainer.model_wrapped, len(self._documents)
        training = wrapped.training
        wrapped.eval()
        self._on_progress(0, total)
        try:
            scores = token_scores(
                self._model,
                self._documents,
                mask_token_id=self._mask_token_id,
                wrapped=wrapped,
                on_progress=lambda done: self._on_progress(done, total),
            )
        finally:
            wrapped.train(training)
            reshard(wrapped)
        figures = {_LOSS: scores.loss, _ACCURACY: scores.accuracy, _TOKENS: scores.tokens, _DOCUMENTS: scores.documents}
        self._trainer.log(figures)


def _first(rows: Sequence[Row]) -> tuple[list[Document], bool]:
    """Return the first documents with at most `MOST_TOKENS` tokens together, at least one document, and whether these
    are all."""
    documents: list[Document] = []
    tokens = 0
    for document in (each for row in rows for each in documents_of(row) if has_scores(each)):
        tokens += len(document)
        if documents and tokens > MOST_TOKENS:
            return documents, False
        documents.append(document)
    return documents, True


@dataclass(frozen=True)
class BeforeAndAfter:
    """The scores on held-out documents at a run's start, None where unknown, and at its end."""

    before: TokenScores | None
    after: TokenScores

    def __str__(self) -> str:
        each = [scores for scores in (self.before, self.after) if scores is not None]
        loss, share = (
            " -> ".join(texts)
            for texts in zip(*((f"{one.loss:.3f}", f"{one.accuracy:.1%}") for one in each), strict=True)
        )
        of = f"{self.after.tokens:,} tokens of {self.after.documents:,} documents"
        return f"loss {loss} nats a token, {share} of tokens as in the reference ({of})"


def held_out_scores(entries: Iterable[dict[str, Any]]) -> BeforeAndAfter | None:
    """Return the scores that a run has logged (`read_metrics`), or None if it measured nothing at its end."""
    found = {
        entry["step"]: TokenScores(entry[_LOSS], entry[_ACCURACY], entry[_TOKENS], entry[_DOCUMENTS])
        for entry in entries
        if _LOSS in entry
    }
    last = max(found, default=0)
    return BeforeAndAfter(found.get(0), found[last]) if last else None
