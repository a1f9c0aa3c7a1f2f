"""An adapter that acts on the future block alone, and so leaves next-token decoding to the base model, to the bit.

Knows PEFT's LoRA layers and where a checkpoint keeps them. Knows nothing of how an adapter is trained.

LoRA adds `B A x` to what a linear layer gives. Here it does so for some of the tokens only: those of the noisy half in
training, those of the future block in decoding. All others, and all of the key-value cache, are the base model's.
"""

import warnings
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel

from setblock.errors import SetBlockError

ADAPTER_FOLDER = "sbd_adapter"
"""Where a checkpoint keeps its adapter. Transformers looks for one beside the weights, and so loads the base model alone."""

_GATE = "_setblock_gate"


class Gate:
    """Says which tokens of a pass the adapter of a model acts on. As long as nothing is said, it acts on none.

    PEFT's layers are switched off, and the gate adds their updates itself to what their base layers give, so that a pass
    through a closed gate is the base model's own and costs no more. Of the mask token, it puts in the trained embedding; the
    head stays the base model's.
    """

    def __init__(self, model: nn.Module) -> None:
        """Args: a model with LoRA layers, whose gate this becomes.

        Raises:
            SetBlockError: one of them changes a weight for all tokens at once, as PEFT's do in experts.
        """
        from peft.tuners.lora import LoraLayer, ParamWrapper
        from peft.utils import TrainableTokensWrapper

        self._tokens: Tensor | None = None
        self._is_open = False
        for name, layer in model.named_modules():
            if isinstance(layer, TrainableTokensWrapper):
                _switch_off(layer)
                if layer.token_adapter.tied_adapter is None:
                    layer.original_module.register_forward_hook(partial(_embedded, layer.token_adapter))
            if not isinstance(layer, LoraLayer):
                continue
            if isinstance(layer, ParamWrapper) or not layer.lora_B:
                raise SetBlockError(
                    f"adapter.only_noisy can't be had with {name}, whose weights PEFT changes for all tokens at once: name "
                    "other layers in adapter.target_modules, such as [q_proj, k_proj, v_proj, o_proj]"
                )
            _switch_off(layer)
            layer.get_base_layer().register_forward_hook(partial(self._updated, layer))
        setattr(model, _GATE, self)

    def set(self, tokens: Tensor | None) -> None:
        """Let the adapter act on the tokens of the next passes where `tokens` [B, T] is True, or on none.

        Stays so until it is said otherwise: with activation checkpointing, the backward pass runs layers again.
        """
        self._tokens, self._is_open = tokens, tokens is not None

    def open(self) -> None:
        """Let it act on all tokens of the next passes, until it is said otherwise."""
        self._tokens, self._is_open = None, True

    @contextmanager
    def closed(self) -> Iterator[None]:
        """Act on none for a while."""
        before = self._tokens, self._is_open
        self.set(None)
        try:
            yield
        finally:
            self._tokens, self._is_open = before

    @contextmanager
    def open_at(self, tokens: Tensor) -> Iterator[None]:
        """`set` for a while."""
        self.set(tokens)
        try:
            yield
        finally:
            self.set(None)

    def _updated(self, layer: Any, base: nn.Module, args: tuple[Any, ...], output: Tensor) -> Tensor | None:
        """What a layer gives: the base layer's output plus the update where the gate is open."""
        if not self._is_open:
            return None
        assert layer.disable_adapters, "PEFT would add the update once more"
        if not isinstance(output, Tensor):
            raise SetBlockError(
                f"adapter.only_noisy can't be had with a {type(base).__name__}, which gives more than one tensor: name other "
                "layers in adapter.target_modules, such as [q_proj, k_proj, v_proj, o_proj]"
            )
        (name,) = layer.active_adapters
        first, second, scaling = layer.lora_A[name], layer.lora_B[name], layer.scaling[name]
        is_cast = torch.is_autocast_enabled(output.device.type)
        inside = first(layer.lora_dropout[name](args[0] if is_cast else args[0].to(first.weight.dtype)))
        if torch.is_grad_enabled() and inside.dtype == output.dtype and type(base) is nn.Linear:
            add: Any = _AddedUpdate.apply
            updated: Tensor = add(output, self._gated(inside), second.weight.to(output.dtype), scaling)
            return updated
        summed: Tensor = output + self._gated(second(inside)) * scaling
        return summed.to(output.dtype)

    def _gated(self, update: Tensor) -> Tensor:
        """[B, T, ...] or, where a layer sees its tokens in a row, [B * T, ...]; zeros for tokens it does not act on."""
        if self._tokens is None:
            return update
        if update.shape[:-1].numel() != self._tokens.numel():
            raise SetBlockError(
                "an adapter on noisy tokens only needs layers that see every token of a pass, and one sees a part"
            )
        # Not a product: what is not a number stays so when multiplied by 0.
        return update.masked_fill(~self._tokens.reshape(*update.shape[:-1], 1), 0)


def _switch_off(layer: Any) -> None:
    """Have one of PEFT's layers do nothing by itself, and its parameters still be trained."""
    trained = [parameter for parameter in layer.parameters() if parameter.requires_grad]
    layer.enable_adapters(False)
    for parameter in trained:
        parameter.requires_grad_(True)


def _embedded(trained: Any, base: nn.Module, args: tuple[Tensor, ...], output: Tensor) -> Tensor:
    """What an embedding gives [B, T, D], with the trained row for the token that has one."""
    (name,) = trained.active_adapters
    (token,) = trained.token_indices[name]
    row = trained.trainable_tokens_delta[name][0].to(output.dtype) * getattr(base, "embed_scale", 1)
    return torch.where((args[0] == token)[..., None], row.to(output.dtype), output)


class _AddedUpdate(torch.autograd.Function):
    """`output` [..., D] + scaling * `inside` [..., r] @ `weight` [D, r]ᵀ, in place: what a linear layer gives is not needed for
    its own backward pass. As PEFT has it, three more passes over all outputs go through memory."""

    @staticmethod
    def forward(ctx: Any, output: Tensor, inside: Tensor, weight: Tensor, scaling: float) -> Tensor:
        ctx.save_for_backward(inside, weight)
        ctx.scaling = scaling
        output.view(-1, output.shape[-1]).addmm_(inside.reshape(-1, inside.shape[-1]), weight.t(), alpha=scaling)
        ctx.mark_dirty(output)
        return output

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> Any:
        inside, weight = ctx.saved_tensors
        flat = gradients[0].reshape(-1, weight.shape[0])
        of_inside = (flat @ weight).mul_(ctx.scaling).view_as(inside)
        of_weight = (flat.t() @ inside.reshape(-1, inside.shape[-1])).mul_(ctx.scaling)
        return gradients[0], of_inside, of_weight, None


@contextmanager
def quiet_peft() -> Iterator[None]:
    """Without warnings over what PEFT does by itself and users can't change."""
    with warnings.catch_warnings():
        for message in (
            "`is_gradient_checkpointing` is dep",
            "fan_in_fan_out is set",
            "The following (rank|alpha)_pattern",
        ):
            warnings.filterwarnings("ignore", message)
        yield


@contextmanager
def uncast_inputs(model: nn.Module) -> Iterator[None]:
    """While active, an adapter's layers take their inputs as they are, which under autocast is half precision.

    PEFT's own context for this fails at layers of trainable tokens, which have no such switch.
    """
    layers = [module for module in model.modules() if getattr(module, "cast_input_dtype_enabled", False)]
    for layer in layers:
        layer.cast_input_dtype_enabled = False  # type: ignore[assignment]
    try:
        yield
    finally:
        for layer in layers:
            layer.cast_input_dtype_enabled = True  # type: ignore[assignment]


def gate_of(model: nn.Module) -> Gate | None:
    """The gate of a model whose adapter acts on some tokens only."""
    return getattr(model, _GATE, None)


def block_only(model: nn.Module, in_block: Tensor) -> AbstractContextManager[None]:
    """While active, the adapter, if there is one, acts where `in_block` [B, T] is True, in the future block."""
    gate = gate_of(model)
    # Where nothing is in a block, a pass is the base model's. Only a CPU can say so without a wait.
    if gate is None or (in_block.device.type == "cpu" and not in_block.any()):
        return nullcontext()
    return gate.open_at(in_block)


def load_adapter(model: PreTrainedModel, source: str) -> Gate:
    """Put the adapter that lies in the checkpoint `source` into the model that was loaded from it.

    Raises:
        SetBlockError: PEFT is not installed.
        Exception: whatever PEFT raises over a file that is missing or broken.
    """
    try:
        from peft import PeftModel
    except ImportError as error:
        raise SetBlockError("the checkpoint's adapter needs PEFT: pip install 'setblock[peft]'") from error
    with quiet_peft():
        PeftModel.from_pretrained(model, source, subfolder=ADAPTER_FOLDER)  # changes the model's layers in place
    return Gate(model)
