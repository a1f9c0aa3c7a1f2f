"""Decoding during training: accuracy and passes on a few held-out examples, at a fixed interval of steps.

It draws no random number and changes no weight, so a run's losses are the same with and without it.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import nn
from transformers import TrainerCallback, TrainerControl, TrainerState, TrainingArguments

from setblock.data.tasks import task_named
from setblock.decoding.samplers import EntropyPrefix
from setblock.decoding.settings.table import DecodingSettings
from setblock.errors import SetBlockError
from setblock.evaluation.operating_point import point_of
from setblock.evaluation.result import Result
from setblock.evaluation.run import Exam
from setblock.model.sbd_model import SBDModel
from setblock.training.recipe import DecodingEvaluationSection
from setblock.training.trainer.trainer import SBDTrainer


class DecodingEvaluator(TrainerCallback):
    """A callback that logs `eval_accuracy_ntp`, and `eval_nfe_speedup_NAME` and `eval_accuracy_NAME` for each entropy bound and
    for method `exact`."""

    def __init__(self, trainer: SBDTrainer, model: SBDModel, section: DecodingEvaluationSection) -> None:
        """Prepare the examples and settings. Raise `SetBlockError` if there is no such task, a setting of the section is not
        valid, or the weights are sharded over processes."""
        task = task_named(section.task)
        if trainer.args.objective == "ntp":
            raise SetBlockError(
                "evaluate_decoding needs training.objective sbd: there are no blocks to decode without; leave "
                "evaluate_decoding out"
            )
        if trainer.is_fsdp_enabled:
            raise SetBlockError(
                "evaluate_decoding needs all weights in each process, and they are sharded: leave evaluate_decoding out"
            )
        self._model = SBDModel(
            model.model, model.tokenizer, sbd_config=model.sbd_config
        )  # without texts to copy drafts from
        self._exam = Exam(
            self._model,
            task,
            split="validation",
            limit=section.limit,
            batch_size=section.batch_size,
            allow_code_execution=section.allow_code_execution,
        )
        self._trainer, self._every = trainer, section.every
        common: dict[str, Any] = {"block_size": section.block_size, "max_new_tokens": section.max_new_tokens}
        self._settings = {"ntp": DecodingSettings(method="ntp", max_new_tokens=section.max_new_tokens)}
        for bound in section.gammas:
            self._settings[f"{bound:g}"] = DecodingSettings(method="sbd", sampler=EntropyPrefix(bound), **common)
        if section.exact:
            # Drafts are fixed, so that passes do not depend on the machine
            self._settings["exact"] = DecodingSettings(method="exact", drafts="fixed", **common)

    def on_train_begin(self, args: TrainingArguments, state: TrainerState, control: Any, **kwargs: Any) -> None:
        """Evaluate the model that the run starts from."""
        if state.global_step == 0:
            self._evaluate(state)

    def on_step_end(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any) -> None:
        """Evaluate at each interval, and after the last step."""
        if state.global_step % self._every == 0 or state.global_step == state.max_steps:
            self._evaluate(state)

    def _evaluate(self, state: TrainerState) -> None:
        if state.is_world_process_zero:
            self._trainer.log(self._figures())
        self._trainer.accelerator.wait_for_everyone()

    def _figures(self) -> dict[str, float]:
        exam, model, trained = self._exam, self._model, self._model.model
        training = trained.training
        trained.eval()
        try:
            with torch.no_grad(), _without_autocast(trained):
                results: dict[str, Result] = {}
                for name, each in self._settings.items():
                    results[name] = exam.result({}, point_of(model, each), exam.decode(each), ntp=results.get("ntp"))
        finally:
            trained.train(training)
        figures = {f"eval_nfe_speedup_{name}": each.nfe_speedup for name, each in results.items() if name != "ntp"}
        figures |= {f"eval_accuracy_{name}": each.accuracy for name, each in results.items()}
        return {name: value for name, value in figures.items() if value is not None}


@contextmanager
def _without_autocast(model: nn.Module) -> Iterator[None]:
    """Run a model in the dtype of its weights, without the autocast that Accelerate wraps around its forward pass. Under
    autocast a token's logits depend on what shares its pass, so method `exact` would give other texts than `ntp`."""
    wrapped, own = model.__dict__.get("forward"), model.__dict__.get("_original_forward")
    if own is None:
        yield
        return
    model.forward = own
    try:
        yield
    finally:
        model.forward = wrapped  # type: ignore[assignment]
