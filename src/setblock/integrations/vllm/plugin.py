"""Register the architectures in each of vLLM's processes. Costs nothing where none of them is served."""

from typing import Any

from setblock.errors import SetBlockError
from setblock.integrations.vllm import vllm_api
from setblock.integrations.vllm.architectures import PREFIX, STOCK


def register() -> None:
    """Register the architectures, as an entry point of the group `vllm.general_plugins`.

    With a version of vLLM that is not supported, every other model is served as ever, and one of ours is refused with what to
    do.
    """
    try:
        vllm_api.check_version()
    except SetBlockError as error:
        _register_refusal(str(error))
        return
    from setblock.integrations.vllm.config import SetBlockConfig

    for stock in STOCK:
        name = PREFIX + stock
        vllm_api.ModelRegistry.register_model(name, f"setblock.integrations.vllm.architectures:{name}")
        vllm_api.MODELS_CONFIG_MAP[name] = SetBlockConfig


def _register_refusal(reason: str) -> None:
    class Refusal:
        @staticmethod
        def verify_and_update_model_config(model_config: Any) -> None:
            raise SetBlockError(reason)

    for stock in STOCK:
        home = vllm_api.HOMES[stock]
        vllm_api.ModelRegistry.register_model(PREFIX + stock, home)
        vllm_api.MODELS_CONFIG_MAP[PREFIX + stock] = Refusal
