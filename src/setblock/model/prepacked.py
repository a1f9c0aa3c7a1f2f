"""Weights in the layout that a CPU's matrix kernels read, laid out once.

Knows oneDNN's operators. Knows nothing of decoding: a prepacked model is called as any other.

`nn.Linear` keeps a weight row by row. A kernel that multiplies few tokens by it either reads it so, slower than memory could
give it, or lays it out anew in every pass.
"""

import warnings
from collections import defaultdict
from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel

from setblock.errors import SetBlockError, SetBlockWarning

_EXPECTED_TOKENS = 32
"""oneDNN chooses a layout for a number of tokens: those of a fused pass over two blocks of 16."""


class PrepackedLinear(nn.Module):
    """What an `nn.Linear` computes, up to rounding; for inference alone.

    Its weight is no parameter: it can't be moved or cast. A state dict has it as it was before.
    """

    def __init__(self, linear: nn.Linear) -> None:
        super().__init__()
        self.training = linear.training
        self.in_features, self.out_features = linear.in_features, linear.out_features
        self.bias = linear.bias
        self.weight: Tensor = torch.ops.mkldnn._reorder_linear_weight(linear.weight.detach(), _EXPECTED_TOKENS)

    def forward(self, hidden: Tensor) -> Tensor:
        """[..., in_features] to [..., out_features]."""
        output: Tensor = torch.ops.mkldnn._linear_pointwise(hidden, self.weight, self.bias, "none", [], "")
        return output

    def _apply(self, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> "PrepackedLinear":
        raise SetBlockError("prepacked weights can't be moved or cast: load the model as it is to be, then prepack it")

    def _save_to_state_dict(self, destination: dict[str, Any], prefix: str, keep_vars: bool) -> None:
        super()._save_to_state_dict(destination, prefix, keep_vars)
        destination[f"{prefix}weight"] = self.weight.to_dense()

    def extra_repr(self) -> str:
        """Return the same text as `nn.Linear`."""
        return f"in_features={self.in_features}, out_features={self.out_features}, bias={self.bias is not None}"


def prepack(model: PreTrainedModel) -> None:
    """Replace every `nn.Linear`, the LM head too, by a `PrepackedLinear`.

    One layer at a time, so that little more memory is needed than before; a head that was tied to the embeddings gets a weight
    of its own. What is no `nn.Linear` stays as it is: GPT-2's `Conv1D`, experts that are kept in one tensor. Warns where
    that is most of the model.

    Raises:
        SetBlockError: the model is not on a CPU, or has no `nn.Linear`, or weights of a type that oneDNN does not have here.
    """
    if model.device.type != "cpu":
        raise SetBlockError(f"weights can be prepacked on a CPU, and the model is on {model.device}")
    places: dict[nn.Linear, list[tuple[nn.Module, str]]] = defaultdict(list)  # several where modules share a layer
    for module in model.modules():
        for name, child in module._modules.items():
            if type(child) is nn.Linear:
                places[child].append((module, name))
    if not places:
        raise SetBlockError(f"{model.config.model_type} has no linear layers that could be prepacked")
    for dtype in {linear.weight.dtype for linear in places}:
        if not is_supported(dtype):
            raise SetBlockError(f"{str(dtype).removeprefix('torch.')} weights can't be prepacked on this processor")
    if (left := _share_left(model, places)) > 0.5:
        warnings.warn(
            f"prepacking gains little here: {left:.0%} of the weights of {model.config.model_type} are not in linear layers "
            "(nn.Linear) and stay as they are",
            SetBlockWarning,
            stacklevel=2,
        )
    while places:
        linear, where = places.popitem()
        packed = PrepackedLinear(linear)
        for module, name in where:
            setattr(module, name, packed)


def _share_left(model: PreTrainedModel, linears: Iterable[nn.Linear]) -> float:
    """The share of the matrices that no linear layer has. Embeddings are not counted: a pass reads a few rows of them."""
    laid_out = {linear.weight for linear in linears}
    looked_up = {module.weight for module in model.modules() if isinstance(module, nn.Embedding)}
    left = sum(weight.numel() for weight in {*model.parameters()} - laid_out - looked_up if weight.ndim > 1)
    share: float = left / (left + sum(weight.numel() for weight in laid_out))
    return share


def is_supported(dtype: torch.dtype) -> bool:
    """Whether oneDNN multiplies by weights of this type on this processor."""
    if not torch.backends.mkldnn.is_available():  # type: ignore[no-untyped-call]
        return False
    if dtype is torch.bfloat16:
        return bool(torch.ops.mkldnn._is_mkldnn_bf16_supported())
    if dtype is torch.float16:
        return bool(torch.ops.mkldnn._is_mkldnn_fp16_supported())
    return dtype is torch.float32
