"""Training of an adapter, by PEFT, in place of all weights, and running the model without it.

Contains LoRA's settings, how PEFT puts it into a model, and how such a model is run.
"""

from functools import partial

import torch
from pydantic import Field
from torch import Tensor, nn
from transformers import PreTrainedModel

from setblock.errors import check_installed, prefixed
from setblock.model.adapter.adapter import gate_of, gated, quiet_peft
from setblock.model.attention.document_attention import CleanKeys
from setblock.model.sbd_model import SBDModel
from setblock.section import Section
from setblock.training.inputs.doubled import TrainingInputs
from setblock.training.loss.forward import CleanHalf, split_head, training_logits
from setblock.training.loss.loss import LogitsOf, logits_of_hidden


class AdapterSection(Section):
    """The `adapter` section of a recipe: LoRA (arXiv 2106.09685), and the mask token's embedding."""

    r: int = Field(16, ge=1, description="rank of the update of each layer")
    alpha: int = Field(32, ge=1, description="the update is scaled by alpha / r")
    dropout: float = Field(0.0, ge=0, lt=1, description="dropout of the inputs of the update, in training")
    target_modules: str | list[str] = Field(
        "all-linear",
        min_length=1,
        description="names of layers, a regular expression, or `all-linear`: all linear layers except the head",
    )
    only_noisy: bool = Field(False, description="act on the future block only: plain decoding stays the base model's")
    keep_adapter: bool = Field(False, description="also save the adapter, next to the weights that it was merged into")


def add_adapter(sbd: SBDModel, section: AdapterSection) -> PreTrainedModel:
    """Put a new adapter into the layers of `sbd.model`, freeze everything else, and return the model in PEFT's wrapper,
    which adds saving and loading. Raise `SetBlockError` if PEFT is not installed, or the model has no such layers."""
    check_installed("training an adapter", "peft", extra="peft")
    from peft import LoraConfig, get_peft_model

    mask_token_id = None if sbd.sbd_config is None else sbd.sbd_config.mask_token_id
    config = LoraConfig(
        task_type="CAUSAL_LM",
        r=section.r,
        lora_alpha=section.alpha,
        lora_dropout=section.dropout,
        target_modules=section.target_modules,
        trainable_token_indices=None if mask_token_id is None else [mask_token_id],
    )
    with prefixed("adapter", (ValueError, RuntimeError)), quiet_peft():
        wrapped: PreTrainedModel = get_peft_model(sbd.model, config)
    # Where this is set, PEFT asks the hub on each save whether the vocabulary has grown, and then saves all embeddings.
    config.base_model_name_or_path = None
    if section.only_noisy:
        gated(sbd.model)
    return wrapped


def frozen_half(base: PreTrainedModel) -> CleanHalf | None:
    """Return the function that runs the clean half of inputs, for a model whose adapter acts on noisy tokens only; None
    for any other. The base model runs that half, without gradient: all noisy copies attend to its keys, and its logits
    are the teacher's. For the teacher, the hidden states are kept where the head is known, else the logits. The
    adapter's gate is open afterwards, for the noisy half."""
    gate = gate_of(base)
    if gate is None:
        return None
    head = split_head(base)

    def clean_half(inputs: TrainingInputs, wrapped: nn.Module | None) -> tuple[CleanKeys, LogitsOf]:
        keys: CleanKeys = {}
        kept: list[Tensor] = []

        def keep(hidden: Tensor) -> Tensor:
            kept.append(hidden)
            return hidden[:0]

        take, training = None if head is None else keep, base.training
        run = partial(training_logits, base.eval(), inputs, inputs.teacher_index, wrapped=wrapped, take=take)
        gate.set(None)
        try:
            with torch.no_grad():
                logits = run(half="clean", clean_keys=keys)
        finally:
            base.train(training)
            gate.open()
        return keys, logits.__getitem__ if head is None else logits_of_hidden(kept[0], head)

    return clean_half
