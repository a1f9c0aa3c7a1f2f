"""The attention plan of a Hugging Face causal LM: the function that its attention layers call, and the form of their masks.

The masks themselves come from the caller, as a function that makes the `mask_mod` for a window.
"""

from dataclasses import dataclass

import torch
from transformers import PretrainedConfig, PreTrainedModel
from transformers.cache_utils import DYNAMIC_LAYER_TYPE_MAPPING, LinearAttentionCacheLayerMixin

from setblock.masks import MaskForm

FULL, SLIDING = "full_attention", "sliding_attention"

OURS = "setblock_"
"""The prefix of the names of this package's attention functions."""

LAYERED = {"sdpa": f"{OURS}document_sdpa", "flex_attention": f"{OURS}document_flex"}
"""Names of the functions that attend documents one by one (`document_attention`), by the implementation that they use."""

_PLAN = "_setblock_attention"


@dataclass(frozen=True)
class AttentionPlan:
    """How a model's attention must be called so that its logits are right, as `setblock.model.probe.probe` finds out."""

    implementation: str  # Transformers' name of the attention implementation
    grouped: bool  # whether decoding may replace it by its own function (module `grouped`)
    by_document: bool  # whether training may replace it, to attend one document at a time (`document_attention`)
    untrainable: str | None = None  # why the model can't be trained, or None where it can
    unpackable: str | None = None  # why requests can't be packed in one row, as `PackedRunner` does, or None
    context: int | None = None  # the most positions for which the plan holds; None without a limit
    context_reason: str | None = None  # the reason for that limit
    keeps_state: bool = False  # whether its cache has a recurrent state, which is put back and not cut (`StateRunner`)
    together: bool = True  # whether a model with a recurrent state may be called for several rows at once


def set_plan(model: PreTrainedModel, plan: AttentionPlan) -> None:
    """Set the plan by which a model's attention is called."""
    if model.config.get_text_config()._attn_implementation != plan.implementation:
        model.set_attn_implementation(plan.implementation)
    setattr(model, _PLAN, plan)


def planned(model: PreTrainedModel) -> AttentionPlan | None:
    """Return the plan of a model, or None if there is none for its present attention implementation."""
    plan: AttentionPlan | None = getattr(model, _PLAN, None)
    implementation: str = model.config.get_text_config()._attn_implementation
    return plan if plan and (implementation == plan.implementation or implementation.startswith(OURS)) else None


def plan_of(model: PreTrainedModel) -> AttentionPlan:
    """Return the plan of a model; if it was never probed, the fastest plan that its attention allows."""
    if (plan := planned(model)) is not None:
        return plan
    name: str = model.config.get_text_config()._attn_implementation
    usual = next((usual for usual, ours in LAYERED.items() if ours == name), "sdpa" if name.startswith(OURS) else name)
    if has_state(model.config):
        return AttentionPlan(usual, grouped=False, by_document=False, keeps_state=True)
    return AttentionPlan(usual, grouped=usual == "sdpa", by_document=usual in LAYERED)


def has_state(config: PretrainedConfig) -> bool:
    """Return whether a model's cache has layers with a recurrent state."""
    types = getattr(config.get_text_config(), "layer_types", None) or ()
    kinds = [DYNAMIC_LAYER_TYPE_MAPPING.get(each) for each in types]
    return any(kind is not None and issubclass(kind, LinearAttentionCacheLayerMixin) for kind in kinds)


def layer_windows(config: PretrainedConfig) -> dict[str, int | None]:
    """Return the sliding window of each attention layer type of a model, None for full attention. Raise `ValueError` if it has
    a layer type that block decoding does not support."""
    window = getattr(config, "sliding_window", None)
    if getattr(config, "use_sliding_window", True) is False:
        window = None
    layer_types = getattr(config, "layer_types", None)
    if not layer_types:
        return {SLIDING: window} if window else {FULL: None}
    if unknown := sorted(set(layer_types) - {FULL, SLIDING}):
        raise ValueError(f"layer type {unknown[0]!r} is not supported, only {FULL!r} and {SLIDING!r}")
    return {kind: window if kind == SLIDING else None for kind in sorted(set(layer_types))}


def mask_form(
    model: PreTrainedModel, *, most: int, device: torch.device, implementation: str | None = None
) -> MaskForm:
    """Return the form of a model's masks up to `most` rows, queries or keys; by default for the model's implementation."""
    config = model.config.get_text_config()
    index = torch.arange(most, device=device)
    return MaskForm(layer_windows(config), implementation or config._attn_implementation, model.dtype, index)
