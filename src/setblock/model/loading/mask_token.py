"""The choice of the mask token: a reserved id of the tokenizer if it has one, else a new one."""

import re
from collections.abc import Set

import torch
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from setblock.errors import SetBlockError

MASK_TOKEN = "<|mask|>"

# Ids that tokenizers keep free for their users: Llama 3, Phi, Gemma, BERT-like, Qwen 1, Mistral, Falcon.
_RESERVED = re.compile(
    r"<\|reserved_special_token_\d+\|>|<\|reserved_\d+\|>|<unused_?\d+>|\[unused_?\d+\]|<\|extra_\d+\|>"
    r"|\[control_\d+\]|<\|dummy_\d+\|>|<SPECIAL_\d+>|>>UNUSED_\d+<<"
)


def add_mask_token(model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase) -> int:
    """Give the model a mask token and return its id: the tokenizer's own, else the first reserved token that nothing uses, else
    `<|mask|>`, appended. The embedding rows of a reserved or appended token start from the mean of all rows, not from the noise
    of an untrained row."""
    own: int | None = tokenizer.mask_token_id
    mask_token_id = reserved_id(tokenizer, in_use=_special_ids(model)) if own is None else own
    if mask_token_id is None:
        tokenizer.add_special_tokens({"mask_token": MASK_TOKEN})
        mask_token_id = int(tokenizer.convert_tokens_to_ids(MASK_TOKEN))
    # Many models have more rows than their tokenizer has tokens; they need no resizing.
    rows, heads = (len(each.weight) for each in (model.get_input_embeddings(), model.get_output_embeddings()))
    if rows != heads and mask_token_id >= min(rows, heads):
        raise SetBlockError(
            f"{model.config.model_type} can't be given a mask token: its embedding has {rows} rows and its head {heads}, "
            "and no token that both have is free"
        )
    is_new_row = mask_token_id >= rows
    if is_new_row:
        model.resize_token_embeddings(mask_token_id + 1, mean_resizing=False)
    if own is None or is_new_row:
        _start_from_mean(model, mask_token_id)
    return mask_token_id


def reserved_id(tokenizer: PreTrainedTokenizerBase, *, in_use: Set[int] = frozenset()) -> int | None:
    """Return the smallest reserved special id of a tokenizer that has no role, or None. The named special tokens, those that
    the chat template writes and the ids `in_use` have a role."""
    roles = {getattr(tokenizer, f"{role}_token_id") for role in ("bos", "eos", "pad", "unk", "sep", "cls")} | in_use
    template = str(tokenizer.chat_template or "")
    found = [
        token_id
        for token_id, token in tokenizer.added_tokens_decoder.items()
        if _RESERVED.fullmatch(token.content) and token_id not in roles and token.content not in template
    ]
    return min(found, default=None)


def _special_ids(model: PreTrainedModel) -> set[int]:
    """Return the special ids that the model's own configs name."""
    found: set[int] = set()
    for config in (model.config.get_text_config(), getattr(model, "generation_config", None)):
        for role in ("bos", "eos", "pad"):
            ids = getattr(config, f"{role}_token_id", None)
            found.update([] if ids is None else ids if isinstance(ids, list) else [ids])
    return found


@torch.no_grad()
def _start_from_mean(model: PreTrainedModel, token_id: int) -> None:
    for layer in (model.get_input_embeddings(), model.get_output_embeddings()):
        for values in (layer.weight, getattr(layer, "bias", None)):
            if values is not None:
                # No boolean indexing: processes that load no weights have tensors without storage
                others = torch.cat([values[:token_id], values[token_id + 1 :]])
                values[token_id] = others.float().mean(dim=0).to(values.dtype)
