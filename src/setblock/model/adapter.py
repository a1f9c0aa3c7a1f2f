"""An adapter that acts on the future block alone, and so leaves next-token decoding to the base model, to the bit.

Knows PEFT's LoRA layers and where a checkpoint keeps them. Knows nothing of how an adapter is trained.

LoRA adds `B A x` to what a linear layer gives. Here it does so for some of the tokens only: those of the noisy half in
training, those of the future block in decoding. All others, and all of the key-value cache, are the base model's.
"""

import warnings
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any

from torch import Tensor, nn
from transformers import PreTrainedModel

from setblock.errors import SetBlockError

ADAPTER_FOLDER = "sbd_adapter"
"""Where a checkpoint keeps its adapter. Transformers looks for one beside the weights, and so loads the base model alone."""

_GATE = "_setblock_gate"


class Gate:
    """Says which tokens of a pass the adapter of a model acts on. As long as nothing is said, it acts on none."""

    def __init__(self, model: nn.Module) -> None:
        """Args: a model with LoRA layers, whose gate this becomes.

        Raises:
            SetBlockError: one of them changes a weight for all tokens at once, as PEFT's do in experts.
        """
        from peft.tuners.lora import LoraLayer, ParamWrapper

        self._tokens: Tensor | None = None
        self._is_open = False
        for name, layer in model.named_modules():
            if not isinstance(layer, LoraLayer):
                continue
            if isinstance(layer, ParamWrapper) or not layer.lora_B:
                raise SetBlockError(
                    f"adapter.only_noisy can't be had with {name}, whose weights PEFT changes for all tokens at once: name "
                    "other layers in adapter.target_modules, such as [q_proj, k_proj, v_proj, o_proj]"
                )
            for second in layer.lora_B.values():
                second.register_forward_hook(self._gated)
        setattr(model, _GATE, self)

    def set(self, tokens: Tensor | None) -> None:
        """Let the adapter act on the tokens of the next passes where `tokens` [B, T] is True, or on none.

        Stays so until it is said otherwise: with activation checkpointing, the backward pass runs layers again.
        """
        self._tokens, self._is_open = tokens, False

    def open(self) -> None:
        """Let it act on all tokens of the next passes, until it is said otherwise."""
        self._tokens, self._is_open = None, True

    @contextmanager
    def open_at(self, tokens: Tensor) -> Iterator[None]:
        """`set` for a while."""
        self.set(tokens)
        try:
            yield
        finally:
            self.set(None)

    def _gated(self, module: nn.Module, args: tuple[Any, ...], delta: Tensor) -> Tensor:
        """[B, T, D] or, where a layer sees its tokens in a row, [B * T, D]."""
        if self._is_open:
            return delta
        if self._tokens is None:
            return delta.new_zeros(()).expand_as(delta)
        if delta.shape[:-1].numel() != self._tokens.numel():
            raise SetBlockError(
                "an adapter on noisy tokens only needs layers that see every token of a pass, and one sees a part"
            )
        # Not a product: what is not a number stays so when multiplied by 0.
        return delta.masked_fill(~self._tokens.reshape(*delta.shape[:-1], 1), 0)


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
    return nullcontext() if gate is None else gate.open_at(in_block)


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
