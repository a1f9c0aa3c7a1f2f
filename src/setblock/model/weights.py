"""Other forms of linear layers' weights: eight bits (torchao), four bits (bitsandbytes), or prepacked for a CPU's kernels.

A model with such weights is called as any other, compiled or not.

`nn.Linear` stores a weight row by row. A kernel that multiplies few tokens by it either reads that layout below the speed of
memory, or rearranges it in every pass. A prepacked weight is in oneDNN's layout. `torch.compile` can't trace such a tensor: it
sees a custom operator, which finds the weight by a number.
"""

import importlib.util
import itertools
from collections import defaultdict
from collections.abc import Callable, Iterable
from functools import cache, partial
from typing import Any, Literal
from weakref import WeakValueDictionary

import torch
from torch import Tensor, nn
from torch.nn import functional
from transformers import BitsAndBytesConfig, PreTrainedModel
from transformers.pytorch_utils import Conv1D

from setblock.errors import SetBlockError, install_command, warn

Quantization = Literal["int8", "nf4"]


def quantize(model: PreTrainedModel) -> None:
    """Store the weight of every linear layer, the LM head's too, as int8 with one scale for each output channel.

    Activations, embeddings and the key-value cache stay as they are. A head that was tied to the embeddings becomes untied.
    Raise `SetBlockError` if torchao is not installed.
    """
    try:
        from torchao.quantization import Int8WeightOnlyConfig, quantize_
    except ImportError as error:  # also raised for an old version without these names
        raise SetBlockError(f"quantising to int8 needs torchao: {install_command('quantize')}") from error

    # Inductor's own settings are left alone: they hold for all models of a process.
    quantize_(model, Int8WeightOnlyConfig(set_inductor_config=False))


def four_bits() -> BitsAndBytesConfig:
    """Return a config for `from_pretrained` that stores linear layers except the head as four-bit NormalFloat, as in QLoRA
    (arXiv 2305.14314). Raise `SetBlockError` if there is no GPU, or bitsandbytes is not installed."""
    if not torch.cuda.is_available():
        raise SetBlockError("quantisation nf4 needs a GPU, and there is none: use int8")
    if importlib.util.find_spec("bitsandbytes") is None:
        raise SetBlockError("quantising to nf4 needs bitsandbytes: pip install bitsandbytes")
    return BitsAndBytesConfig(
        load_in_4bit=True,
        bnb_4bit_quant_type="nf4",
        bnb_4bit_use_double_quant=True,
        bnb_4bit_compute_dtype=torch.bfloat16,
    )


_MOST_TOKENS = 32  # the most tokens of a product for which a token's bits don't depend on their number


def is_invariant(dtype: torch.dtype, device: torch.device) -> bool:
    """Return whether a token must get the same bits in all passes of this type on this device: in half precision, on a CPU.
    In float32 the differences are too small to change a token."""
    return dtype in (torch.bfloat16, torch.float16) and device.type == "cpu"


@cache
def _bits_vary(dtype: torch.dtype, device: torch.device) -> bool:
    """Return whether a token must get the same bits in all passes (`is_invariant`), but gets others in a product of many tokens
    than in one of few. So it is with AMX, where oneDNN sums in another order. The trial takes a few milliseconds."""
    if not is_invariant(dtype, device):
        return False
    numbers = torch.Generator().manual_seed(0)
    with torch.inference_mode():
        hidden, weight = (torch.randn(n, 1024, generator=numbers).to(dtype) for n in (4 * _MOST_TOKENS, 2048))
        apart = [functional.linear(each, weight) for each in hidden.tensor_split(4)]
        return not torch.equal(functional.linear(hidden, weight), torch.cat(apart))


def product_in_parts(product: Callable[[Tensor], Tensor], hidden: Tensor) -> Tensor:
    """Return a product with `hidden` [..., D], computed for so few tokens at a time that each gets the same bits in all passes.
    In training, and in compiled passes, it is one product."""
    tokens, is_whole = hidden.shape[:-1].numel(), torch.is_grad_enabled() or torch.compiler.is_compiling()
    if is_whole or tokens <= _MOST_TOKENS or not _bits_vary(hidden.dtype, hidden.device):
        return product(hidden)
    parts = hidden.reshape(tokens, -1).tensor_split(-(-tokens // _MOST_TOKENS))  # equal: one token has another kernel
    return torch.cat([product(each) for each in parts]).view(*hidden.shape[:-1], -1)


def make_batch_invariant(model: PreTrainedModel) -> None:
    """Make a model's linear layers decode by `product_in_parts`, if that is needed. A second call changes nothing.

    Products outside of such layers, such as those of experts stored in one tensor, stay as they are.
    """
    if _bits_vary(model.dtype, model.device):
        for module in model.modules():
            if isinstance(module, (nn.Linear, Conv1D, PrepackedLinear)) and "forward" not in vars(module):
                vars(module)["forward"] = partial(product_in_parts, module.forward)


_EXPECTED_TOKENS = 32  # oneDNN chooses a layout for a number of tokens; here a fused pass over two blocks of 16
_WEIGHTS: WeakValueDictionary[int, Tensor] = WeakValueDictionary()  # of all living prepacked layers, by number
_NUMBERS = itertools.count()

_OPERATORS: Any = torch.library.Library("setblock", "DEF")  # type: ignore[no-untyped-call]
_OPERATORS.define("prepacked_linear(Tensor hidden, Tensor? bias, int weight, int out_features) -> Tensor")


def _linear(hidden: Tensor, bias: Tensor | None, weight: int, out_features: int) -> Tensor:
    """Map [..., in_features] to [..., out_features], by the weight with the number `weight`."""
    output: Tensor = torch.ops.mkldnn._linear_pointwise(hidden, _WEIGHTS[weight], bias, "none", [], "")
    return output


def _shape(hidden: Tensor, bias: Tensor | None, weight: int, out_features: int) -> Tensor:
    """Return an empty result of `_linear`, for `torch.compile`."""
    return hidden.new_empty((*hidden.shape[:-1], out_features))


_OPERATORS.impl("prepacked_linear", _linear, "CPU")
torch.library.register_fake("setblock::prepacked_linear", _shape, lib=_OPERATORS)


class PrepackedLinear(nn.Module):
    """A replacement of an `nn.Linear` with the same result up to rounding; for inference only.

    Its weight is no parameter: it can't be moved or cast. A state dict contains the original weight.
    """

    def __init__(self, linear: nn.Linear) -> None:
        super().__init__()
        self.training = linear.training
        self.in_features, self.out_features = linear.in_features, linear.out_features
        self.bias = linear.bias
        self.weight: Tensor = torch.ops.mkldnn._reorder_linear_weight(linear.weight.detach(), _EXPECTED_TOKENS)
        self._number = next(_NUMBERS)
        _WEIGHTS[self._number] = self.weight

    def forward(self, hidden: Tensor) -> Tensor:
        """Map [..., in_features] to [..., out_features]."""
        if torch.compiler.is_compiling():
            traced: Tensor = torch.ops.setblock.prepacked_linear(hidden, self.bias, self._number, self.out_features)
            return traced
        return _linear(hidden, self.bias, self._number, self.out_features)

    def _apply(self, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> "PrepackedLinear":
        raise SetBlockError("prepacked weights can't be moved or cast: load the model as it is to be, then prepack it")

    def _save_to_state_dict(self, destination: dict[str, Any], prefix: str, keep_vars: bool) -> None:
        super()._save_to_state_dict(destination, prefix, keep_vars)
        destination[f"{prefix}weight"] = self.weight.to_dense()


_MOST_LEFT = 0.5  # the share of a model's matrices outside of linear layers from which on prepacking gains little


def prepack(model: PreTrainedModel) -> None:
    """Replace every `nn.Linear`, the LM head too, by a `PrepackedLinear`. Raise `SetBlockError` if the model is not on a CPU,
    has no `nn.Linear`, or has weights of a type that oneDNN does not support here.

    Layers are replaced one at a time, so that little extra memory is needed. A head that was tied to the embeddings becomes
    untied. Other matrices stay, such as GPT-2's `Conv1D` or experts in one tensor; there is a warning if they are most of the
    model.
    """
    if model.device.type != "cpu":
        raise SetBlockError(
            f"weights can be prepacked on a CPU only, and the model is on {model.device}: leave prepacking out"
        )
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
    if (left := _share_left(model, places)) > _MOST_LEFT:
        warn(
            f"prepacking gains little here: {left:.0%} of the weights of {model.config.model_type} are not in linear layers "
            "(nn.Linear) and stay as they are"
        )
    while places:
        linear, where = places.popitem()
        packed = PrepackedLinear(linear)
        for module, name in where:
            setattr(module, name, packed)


def prepacking_pays(model: PreTrainedModel) -> bool:
    """Return whether prepacked weights make all passes faster, and give each product the same bits.

    In half precision on a CPU they are: one token 1.1 to 1.3 times, a block of 16 1.1 to 1.4 times, for 5M to 410M parameters
    (docs/performance.md). In float32 a block gains and a token loses, and sums have another order.
    """
    linears = [module for module in model.modules() if type(module) is nn.Linear]
    dtypes = {linear.weight.dtype for linear in linears}
    is_half = bool(linears) and all(dtype.itemsize == 2 and is_supported(dtype) for dtype in dtypes)
    return model.device.type == "cpu" and is_half and _share_left(model, linears) <= _MOST_LEFT


def _share_left(model: PreTrainedModel, linears: Iterable[nn.Linear]) -> float:
    """Return the share of the matrices outside of `linears`, without embeddings, of which a pass reads few rows."""
    laid_out = {linear.weight for linear in linears}
    looked_up = {module.weight for module in model.modules() if isinstance(module, nn.Embedding)}
    left = sum(weight.numel() for weight in {*model.parameters()} - laid_out - looked_up if weight.ndim > 1)
    return float(left / (left + sum(weight.numel() for weight in laid_out)))


def is_supported(dtype: torch.dtype) -> bool:
    """Return whether oneDNN supports weights of this type on this processor."""
    if not torch.backends.mkldnn.is_available():  # type: ignore[no-untyped-call]
        return False
    if dtype is torch.bfloat16:
        return bool(torch.ops.mkldnn._is_mkldnn_bf16_supported())
    if dtype is torch.float16:
        return bool(torch.ops.mkldnn._is_mkldnn_fp16_supported())
    return dtype is torch.float32
