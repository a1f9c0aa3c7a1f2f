"""`SBDTrainer`: Transformers' `Trainer` with the doubled input and the loss of eq. 14."""

from collections import defaultdict
from contextlib import nullcontext
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer
from torch.utils.data import DataLoader
from transformers import Trainer, TrainerControl
from transformers.trainer_utils import EvalLoopOutput

from setblock.errors import SetBlockError, warn
from setblock.locks import one_at_a_time
from setblock.masks import CLEAN
from setblock.model.adapter.adapter import gate_of, uncast_inputs
from setblock.model.attention.attention import plan_of
from setblock.model.attention.document_attention import attends_runs, document_attention
from setblock.model.sbd_model import SBDModel
from setblock.training.adapter import AdapterSection, add_adapter, frozen_half
from setblock.training.config import SBDConfig
from setblock.training.inputs.collator import EVALUATION, SBDCollator
from setblock.training.inputs.doubled import Targets, TrainingInputs
from setblock.training.loss.forward import CleanHalf, split_head, training_loss
from setblock.training.loss.loss import SBDLoss
from setblock.training.run.saving import Completeness
from setblock.training.trainer.compiling import CompiledLayers, without_whole_model
from setblock.training.trainer.metrics import StepClock, TokenCost
from setblock.training.trainer.optimizer import MuonAdamW
from setblock.training.trainer.sharding import is_sharded, reshard, set_up, share_buffers, with_tied_weights_visible

_SUMS = ("ntp_sum", "ntp_count", "matp_sum", "matp_count")  # of `SBDLoss`


def prepare(sbd: SBDModel, args: SBDConfig, adapter: AdapterSection | None, *, warns: bool = True) -> None:
    """Prepare a model for the objective: it gets a mask token if it needs one and has none, and the tokens that close
    an answer in training also end one in decoding, with a warning if `warns`. A second call changes nothing. Raise
    `SetBlockError` if the model can't be trained, or the loss has no teacher."""
    if (new := sbd.end_answers_as_trained()) and warns:
        spelled = " and ".join(f"{sbd.tokenizer.decode([each])!r} (id {each})" for each in new)
        warn(
            f"an answer will also end with {spelled}, which closes it in the training data: the model's configs did not say so"
        )
    if args.objective == "sbd":
        is_frozen = adapter is not None and adapter.only_noisy
        if args.masked_loss != "cross_entropy" and not (is_frozen or args.ntp_weight):
            raise SetBlockError(
                f"training.masked_loss {args.masked_loss} learns from the clean half, which nothing holds to the text at "
                "ntp_weight 0: set ntp_weight above 0, or adapter.only_noisy"
            )
        sbd.prepare_for_training(
            block_sizes=args.block_sizes,
            logit_shift=args.logit_shift,
            first_token_from_causal=args.first_token_from_causal,
            noise=args.noise,
            causal_block=args.block_attention == "causal",
            noisy_adapter=is_frozen,
        )


class SBDTrainer(Trainer):
    """A trainer on packed rows (`setblock.data.packing.RowDataset`), whose noise the collator draws.

    The loss is the sum of eq. 14 over the batch divided by its number of next-token targets, over all processes and
    accumulation steps. In addition to `loss`, logs `ntp_loss` and `matp_loss`, each a mean over its targets: in nats, but for
    total variations. It also logs `tokens_per_second`, which counts the texts' tokens without noisy copies.
    """

    args: SBDConfig
    data_collator: Any
    loss_is_scaled_for_ga = True

    def __init__(
        self,
        sbd: SBDModel,
        args: SBDConfig,
        *,
        adapter: AdapterSection | None = None,
        peak: float | None = None,
        **kwargs: Any,
    ) -> None:
        """Prepare a model and its training. Raise `SetBlockError` if the model can't be trained, or not with these
        arguments.

        Args:
            sbd: the model, which is trained in place.
        """
        prepare(sbd, args, adapter)
        self._collator = SBDCollator(
            args,
            noise_ids=range(0) if sbd.sbd_config is None else sbd.sbd_config.noise_ids,
            end_of_text_id=sbd.end_of_text_ids[0],
            context_length=sbd.context_length or 1 << 30,
            is_flat=attends_runs(sbd.model),
            keeps_state=plan_of(sbd.model).keeps_state,
        )
        model = sbd.model if adapter is None else add_adapter(sbd, adapter)
        if is_sharded(args):
            share_buffers(model)
        self._compiled_layers = CompiledLayers(sbd.model, args)
        super().__init__(model, args, data_collator=self._collator, processing_class=sbd.tokenizer, **kwargs)
        if args.save_on_each_node:
            self.model.should_save_on_this_rank = bool  # else the first process of all nodes alone writes the weights
        self.model_accepts_loss_kwargs = True  # makes the Trainer count the targets of the accumulated batch
        self._base = sbd.model  # which PEFT's wrapper holds, where there is one
        self._gate, self._frozen_half = gate_of(self._base), frozen_half(self._base)
        self._head = None if args.cross_entropy == "plain" else split_head(self.model)
        if args.cross_entropy == "chunked" and self._head is None:
            raise SetBlockError(
                "training.cross_entropy chunked: what the model does to its logits is not known; use auto"
            )
        self._peak = peak
        self._cost = TokenCost(self._base)
        self._clock = StepClock()
        for callback in (self._clock, Completeness(args), self._collator):
            self.add_callback(callback)
        # Tensors stay on the device until they are logged.
        self._sums: defaultdict[str, Tensor | float] = defaultdict(float)

    def get_batch_samples(self, *args: Any, **kwargs: Any) -> tuple[list[Any], Tensor | int | None]:
        """Return the batches of the next step and their number of targets; none if a resumed run has taken all
        steps."""
        if self.state.global_step >= self.state.max_steps:  # the Trainer would look only after one more
            self.control = TrainerControl(should_training_stop=True)
            return [], None
        batches: tuple[list[Any], Tensor | int | None] = super().get_batch_samples(*args, **kwargs)
        return batches

    def create_accelerator_and_postprocess(self) -> None:
        """Create the Trainer's accelerator, with FSDP2 set up by `setblock.training.trainer.sharding`."""
        if is_sharded(self.args):
            # Whole gradients of all weights, kept over the passes of a step, are what sharding is to avoid.
            given = self.args.accelerator_config.gradient_accumulation_kwargs or {}
            self.args.accelerator_config.gradient_accumulation_kwargs = {"sync_each_batch": True} | given
        with without_whole_model(self.args):
            super().create_accelerator_and_postprocess()
        if self.is_fsdp_enabled:
            set_up(self.accelerator.state.fsdp_plugin)
            self.accelerator.prepare = with_tied_weights_visible(self.accelerator.prepare)

    def get_eval_dataloader(self, eval_dataset: Any = None) -> DataLoader[Any]:
        """Return the Trainer's data loader, with the noise of evaluations."""
        self.data_collator = replace(self._collator, step=EVALUATION)
        try:
            loader: DataLoader[Any] = super().get_eval_dataloader(eval_dataset)
            return loader
        finally:
            self.data_collator = self._collator

    def create_optimizer(self, model: nn.Module | None = None) -> Optimizer:
        """Create the optimizer that the configuration names."""
        if self.args.matrix_optimizer == "adamw":
            optimizer: Optimizer = super().create_optimizer(model)
            return optimizer
        self.optimizer = MuonAdamW(model or self.model, self.args)
        rows = self.optimizer.least_rows
        if self.is_fsdp_enabled and rows is not None and rows < self.args.world_size:
            raise SetBlockError(
                f"training.matrix_optimizer muon can't shard a matrix of {rows} rows over {self.args.world_size} processes: "
                "use adamw, or a larger adapter.r"
            )
        return self.optimizer

    def losses(self, model: nn.Module, inputs: TrainingInputs) -> SBDLoss:
        """Run a forward pass, and compute both terms of eq. 14. An adapter on noisy tokens does not affect the
        next-token term, so training with one leaves the term out, and runs the clean half separately, without a
        graph."""
        clean_half: CleanHalf | None = None
        if self._gate is not None:
            self._gate.set(inputs.block_ids != CLEAN)
            if model.training:
                none = inputs.ntp.index[:0]
                inputs = replace(inputs, ntp=Targets(none, none))
                # The noisy half can run after the clean one if attention is a function that we can wrap.
                if len(inputs.matp.index) and plan_of(self._base).by_document:
                    clean_half = self._frozen_half
        return training_loss(
            self.accelerator.unwrap_model(model),
            inputs,
            head=self._head,
            ntp_weight=self.args.ntp_weight,
            matp_weight=self.args.matp_weight / self.args.noisy_copies * inputs.matp_scale,
            wrapped=model,
            always_chunked=self.args.cross_entropy == "chunked",
            masked_loss=self.args.masked_loss,
            clean_half=clean_half,
        )

    @one_at_a_time(of=lambda trainer: trainer._base)
    def training_step(self, *args: Any, **kwargs: Any) -> Tensor:
        """Run the Trainer's step. Its backward pass may run layers again, under the same attention as the forward
        pass."""
        # PEFT would cast inputs of an adapter's layers to float32, which autocast casts back to half precision at once.
        uncast = uncast_inputs if self.accelerator.mixed_precision in ("bf16", "fp16") else nullcontext
        try:
            with document_attention(self._base), uncast(self.model), self._compiled_layers.active():
                loss: Tensor = super().training_step(*args, **kwargs)
                return loss
        finally:
            if self._gate is not None:
                self._gate.set(None)

    def compute_loss(
        self, model: nn.Module, inputs: dict[str, Any], *, num_items_in_batch: Tensor | int | None = None
    ) -> Tensor:
        """Compute eq. 14 over one micro-batch, scaled so that accumulated micro-batches add up to the loss of the batch."""
        prepared: TrainingInputs = inputs["inputs"].to(self.args.device)
        if model.training:
            assert inputs["step"] == self.state.global_step, "the noise is of another step"
            self._sums["tokens"] += prepared.clean_tokens
            self._sums["operations"] += self._cost.of(prepared)
        loss = self.losses(model, prepared)

        prefix = "" if model.training else "eval_"
        for name in _SUMS:
            value = getattr(loss, name)
            self._sums[prefix + name] += value.detach() if isinstance(value, Tensor) else value
        targets = loss.ntp_count if num_items_in_batch is None else num_items_in_batch
        total = loss.total / torch.as_tensor(targets).clamp(min=1)
        if model.training and self.args.average_tokens_across_devices and num_items_in_batch is not None:
            total = total * self.accelerator.num_processes  # DDP averages gradients, the count is of all processes
        return total

    def _figures(self, prefix: str) -> dict[str, float]:
        """Return the mean of each term since the last call and, of training steps, the tokens per second and the share
        of the peak. Sums are over all processes: every one must call this."""
        names = [prefix + name for name in _SUMS] + ([] if prefix else ["tokens", "operations"])
        taken = [float(self._sums.pop(name, 0.0)) for name in names]
        if self.accelerator.num_processes > 1:
            sums = torch.tensor(taken, dtype=torch.float64, device=self.args.device)
            taken = self.accelerator.reduce(sums, reduction="sum").tolist()
        ntp_sum, ntp_count, matp_sum, matp_count, *throughput = taken
        terms = (("ntp", ntp_sum, ntp_count), ("matp", matp_sum, matp_count))
        figures = {f"{prefix}{term}_loss": total / count for term, total, count in terms if count}
        if throughput and (seconds := self._clock.take()):
            tokens, operations = throughput
            figures["tokens_per_second"] = tokens / seconds
            if self._peak is not None:
                figures["mfu"] = operations / (seconds * self._peak * self.accelerator.num_processes)
        return figures

    def log(self, logs: dict[str, float], start_time: float | None = None) -> None:
        """Add the mean of each loss term and the throughput since the last log of a loss."""
        if "eval_loss" in logs:
            logs = {**logs, **self._figures("eval_")}
        elif "loss" in logs:
            logs = {**logs, **self._figures("")}
        super().log(logs, start_time)

    def evaluation_loop(self, *args: Any, **kwargs: Any) -> EvalLoopOutput:
        """Run the Trainer's evaluation."""
        try:
            output: EvalLoopOutput = super().evaluation_loop(*args, **kwargs)
            return output
        finally:
            reshard(self.model_wrapped)

    @one_at_a_time(of=lambda trainer: trainer._base)
    def prediction_step(
        self, model: nn.Module, inputs: dict[str, Tensor], *options: Any, **more: Any
    ) -> tuple[Tensor, None, None]:
        """Compute only the losses. The logits of an evaluation are never kept."""
        try:
            with torch.no_grad(), self.compute_loss_context_manager():
                return self.compute_loss(model, self._prepare_inputs(inputs)).detach(), None, None
        finally:
            if self._gate is not None:
                self._gate.set(None)
