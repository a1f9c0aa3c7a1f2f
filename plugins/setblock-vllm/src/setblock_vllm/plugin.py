"""The plugin that registers the architectures in each of vLLM's processes. It costs nothing if none of them is served."""

import logging
from typing import Any

from setblock_vllm import hooks, vllm_api

PREFIX = "SetBlock"
STOCK = tuple(name for name in vllm_api.HOMES if name.endswith("ForCausalLM"))


class SetBlockDecoding:
    """A mixin that makes one of vLLM's causal LMs decode in blocks, by another model state."""

    @staticmethod
    def get_model_state_cls() -> type:
        """Return the class that vLLM's model runner asks for."""
        from setblock_vllm.model_state import SetBlockModelState

        return SetBlockModelState

    def compute_logits(self, hidden_states: Any) -> Any:
        """Return [N, V] logits of [N, H] hidden states. If no output is wanted (N = 0, in a pass over part of a prompt),
        return an empty tensor: vLLM's gathering from several processes fails on empty input on some devices."""
        if hidden_states.shape[0] == 0:
            return hidden_states.new_empty((0, self.config.vocab_size))  # type: ignore[attr-defined]
        return super().compute_logits(hidden_states)  # type: ignore[misc]


def __getattr__(name: str) -> type:
    stock = name.removeprefix(PREFIX)
    if not name.startswith(PREFIX) or stock not in STOCK:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    made = type(name, (SetBlockDecoding, getattr(vllm_api, stock)), {"__module__": __name__})
    globals()[name] = made
    return made


def register() -> None:
    """Register the architectures, as an entry point of the group `vllm.general_plugins`.

    With a vLLM that lacks something that the plugin uses, nothing is registered: other models are served as before, and the log
    says why ours are not.
    """
    if (problem := hooks.problem()) is not None:
        instead = f"pip install 'vllm{vllm_api.SUPPORTED}', or serve without vLLM by `setblock serve`"
        logging.getLogger("vllm.setblock").warning(
            "no model is decoded in blocks: setblock-vllm %s; %s", problem, instead
        )
        return
    from setblock_vllm.config import SetBlockConfig

    for stock in STOCK:
        name = PREFIX + stock
        vllm_api.ModelRegistry.register_model(name, f"setblock_vllm.plugin:{name}")
        vllm_api.MODELS_CONFIG_MAP[name] = SetBlockConfig
