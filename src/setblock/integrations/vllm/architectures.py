"""Define vLLM's own architectures, with blocks: each is the stock class and `SetBlockDecoding` before it.

Classes are made when vLLM asks for them by name, since importing all architectures takes seconds.
"""

from typing import Any

from setblock.integrations.vllm import vllm_api

PREFIX = "SetBlock"
STOCK = (
    "LlamaForCausalLM",
    "MistralForCausalLM",
    "MixtralForCausalLM",
    "Qwen2ForCausalLM",
    "Qwen3ForCausalLM",
    "Qwen3MoeForCausalLM",
)


class SetBlockDecoding:
    """Make a causal LM of vLLM one that is decoded in blocks, by another model state."""

    @staticmethod
    def get_model_state_cls() -> type:
        """Return the class that vLLM's model runner asks for."""
        from setblock.integrations.vllm.model_state import SetBlockModelState

        return SetBlockModelState

    def compute_logits(self, hidden_states: Any) -> Any:
        """Return [N, V] logits of [N, H] hidden states. A pass over part of a prompt asks for none at all, which
        gathering from several processes does not take on every device."""
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
