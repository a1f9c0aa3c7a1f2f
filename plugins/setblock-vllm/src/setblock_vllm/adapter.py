"""Where the adapter of a served model is (docs/vllm.md): the folder that `--hf-overrides` names, or the checkpoint's own.

Imports nothing of vLLM.
"""

import hashlib
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from torch import Tensor
from transformers.utils import cached_file

from setblock.errors import SetBlockError
from setblock.model.adapter.adapter import ADAPTER_FOLDER
from setblock.model.adapter.files import CONFIG_NAME, WEIGHTS_NAME, adapter_sbd_config, read_lora
from setblock.model.protocol.sbd_config import SBDModelConfig, read_sbd_config

ADAPTER_KEY = "sbd_adapter"
"""The key of `--hf-overrides` that names an adapter's folder."""
_FORM_KEY = "sbd_adapter_form"


def sbd_config_of(hf_config: Any) -> SBDModelConfig:
    """Return the SBD config of a model: its adapter's, if `--hf-overrides` names one, else the checkpoint's. Raise
    `SetBlockError` if it has none."""
    recorded, folder = read_sbd_config(hf_config), getattr(hf_config, ADAPTER_KEY, None)
    if folder is not None:
        if not isinstance(folder, str) or not Path(folder).is_dir():
            raise SetBlockError(f"{ADAPTER_KEY} of --hf-overrides must be the folder of an adapter, not {folder!r}")
        if recorded is not None and recorded.noisy_adapter:
            raise SetBlockError(f"this checkpoint has an adapter on its future block already: leave out {ADAPTER_KEY}")
        return adapter_sbd_config(Path(folder), vocab_size=hf_config.get_text_config().vocab_size)
    if recorded is None or not recorded.block_sizes:
        raise SetBlockError(
            "it was never trained for block decoding: serve it without --hf-overrides, name an adapter of it as "
            f"{ADAPTER_KEY} there, or fine-tune it with `setblock train`"
        )
    return recorded


def read_adapter(model_config: Any, sbd_config: SBDModelConfig) -> tuple[dict[str, Any], dict[str, Tensor]] | None:
    """Return the config and the weights of the adapter that a model is served with: the one named in `--hf-overrides`, else the
    checkpoint's own; None if it has none. Raise `SetBlockError` if it is missing or broken."""
    if not sbd_config.noisy_adapter:
        return None
    folder = getattr(model_config.hf_config, ADAPTER_KEY, None)
    if folder is not None:
        return read_lora(Path(folder), row=sbd_config.mask_token_id is not None)
    found = [
        cached_file(model_config.model, f"{ADAPTER_FOLDER}/{name}", revision=getattr(model_config, "revision", None))
        for name in (CONFIG_NAME, WEIGHTS_NAME)
    ]
    return read_lora(Path(found[0]).parent, row=True)


def record_adapter(model_config: Any, config: Mapping[str, Any]) -> None:
    """Record in the model's config where its adapter is, for processes that may run in another folder, and a digest of its
    form: vLLM keeps compiled code by the model's config."""
    hf_config = model_config.hf_config
    if (folder := getattr(hf_config, ADAPTER_KEY, None)) is not None:
        setattr(hf_config, ADAPTER_KEY, str(Path(folder).resolve()))
    form = json.dumps(config, sort_keys=True, default=str)
    setattr(hf_config, _FORM_KEY, hashlib.sha256(form.encode()).hexdigest())
