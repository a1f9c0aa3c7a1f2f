"""One forward pass of training: inputs -> logits, under the training mask."""

from torch import Tensor, nn
from transformers import PreTrainedModel

from setblock.masks import train_mask
from setblock.model.attention import attention_mask
from setblock.model.forward import logits_at
from setblock.training.inputs import TrainingInputs


def training_logits(
    model: PreTrainedModel, inputs: TrainingInputs, index: Tensor, *, wrapped: nn.Module | None = None
) -> Tensor:
    """The logits [M, V] at `index` [M] of the flattened [B * T] inputs.

    Args:
        model: the model itself.
        wrapped: what to call in the model's stead, where a trainer has wrapped it.
    """
    batch, length = inputs.input_ids.shape
    mask = attention_mask(
        model.config.get_text_config(),
        lambda window: train_mask(
            position_ids=inputs.position_ids,
            document_ids=inputs.document_ids,
            block_ids=inputs.block_ids,
            limits=inputs.limits,
            window=window,
        ),
        batch=batch,
        queries=length,
        keys=length,
        device=inputs.input_ids.device,
        dtype=model.dtype,
    )
    return logits_at(
        model,
        index,
        input_ids=inputs.input_ids,
        position_ids=inputs.position_ids,
        attention_mask=mask,
        wrapped=wrapped,
    )
