"""The draft text of a served model (docs/exact.md): the file that `--hf-overrides` names, or the checkpoint's own."""

from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from transformers import PreTrainedTokenizerBase
from transformers.utils import cached_file

from setblock.errors import SetBlockError
from setblock.model.protocol.draft_text import DRAFT_TEXT_FILE, DraftText, draft_text_of, read_texts
from setblock_vllm import vllm_api

DRAFT_TEXT_KEY = "sbd_draft_text"
"""The key of `--hf-overrides` that names a file of texts."""


@dataclass
class _Served:
    """What a draft text needs to know of the model."""

    tokenizer: PreTrainedTokenizerBase
    end_of_text_ids: tuple[int, ...]
    vocab_size: int
    device: torch.device


def draft_text_file(model_config: Any) -> Path | None:
    """Return the file of a model's draft text, or None if it has none. Raise `SetBlockError` if `--hf-overrides` names a file
    that is not there. That name becomes absolute: processes may run in another folder."""
    hf_config = model_config.hf_config
    if (named := getattr(hf_config, DRAFT_TEXT_KEY, None)) is None:
        revision = getattr(model_config, "revision", None)
        with suppress(OSError):  # it has none, or there is no connection to the hub; the text is optional
            return Path(cached_file(model_config.model, DRAFT_TEXT_FILE, revision=revision))
        return None
    if not isinstance(named, str) or not Path(named).is_file():
        raise SetBlockError(f"{DRAFT_TEXT_KEY} of --hf-overrides must be a file of texts, not {named!r}")
    setattr(hf_config, DRAFT_TEXT_KEY, str(Path(named).resolve()))
    return Path(named)


def read_draft_text(model_config: Any) -> DraftText | None:
    """Return the draft text of a model, on the CPU, or None if it has none. Raise `SetBlockError` if it is broken."""
    if (file := draft_text_file(model_config)) is None:
        return None
    tokenizer = vllm_api.cached_tokenizer_from_config(model_config)
    ends = () if tokenizer.eos_token_id is None else (tokenizer.eos_token_id,)
    served = _Served(tokenizer, ends, model_config.get_vocab_size(), torch.device("cpu"))
    return draft_text_of(read_texts(file), served)
