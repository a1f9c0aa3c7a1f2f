"""Write a tokenizer as GGUF's vocabulary, so that stock llama.cpp splits a text as it does.

Knows `tokenizer.json` and llama.cpp's names for ways to split a text. Knows nothing of weights.
"""

import json
import re
from typing import Any

import gguf
from transformers import PreTrainedTokenizerBase

from setblock.errors import SetBlockError
from setblock.model.loading.gguf import ROLES, TOKENIZER_KEY

_CONTRACTIONS = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|"
_WORDS = r"[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}%s| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
_CASED = (
    r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+|"
    r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n/]*|"
    r"\s*[\r\n]+|\s+(?!\S)|\s+"
)
_SPLITS: dict[tuple[str, ...], str] = {
    ("ByteLevel",): "gpt-2",
    ("Digits", "ByteLevel"): "smollm",
    (_CONTRACTIONS + _WORDS % "{1,3}",): "llama-bpe",
    (_CONTRACTIONS + _WORDS % "",): "qwen2",
    (_WORDS % "",): "ufakzeka",
    (_CASED,): "tekken",
}
"""llama.cpp's names for what a byte-level BPE does before its merges: regular expressions, or steps of a name."""


def write_vocabulary(
    writer: gguf.GGUFWriter, tokenizer: PreTrainedTokenizerBase, *, size: int, mask_token_id: int | None
) -> None:
    """Write the vocabulary of `size` V, the special tokens and the chat template, and the tokenizer itself for setblock. Ids
    beyond the tokenizer's become tokens that nothing uses. Raise `SetBlockError` if llama.cpp has no such tokenizer."""
    backend = getattr(tokenizer, "backend_tokenizer", None)
    if backend is None:
        raise SetBlockError(
            "a tokenizer without tokenizer.json can't be exported: save a fast tokenizer with the model"
        )
    whole = json.loads(backend.to_str())
    model = whole["model"]
    if model["type"] != "BPE":
        raise SetBlockError(f"a {model['type']} tokenizer can't be exported: only BPE tokenizers can")
    merges = [each if isinstance(each, list) else each.split(" ") for each in model["merges"]]
    known = [tokenizer.convert_ids_to_tokens(number) for number in range(size)]
    tokens = [f"[PAD{number}]" if token is None else token for number, token in enumerate(known)]
    if model.get("byte_fallback"):
        writer.add_tokenizer_model("llama")
        rank = {left + right: -float(place) for place, (left, right) in reversed([*enumerate(merges, start=1)])}
        writer.add_token_scores([rank.get(token, 0.0) for token in tokens])
        writer.add_add_space_prefix(_puts_space_before(whole))
    else:
        writer.add_tokenizer_model("gpt2")
        writer.add_tokenizer_pre(_split_of(whole["pre_tokenizer"]))
        writer.add_token_merges([" ".join(each) for each in merges])
    writer.add_token_list(tokens)
    added = {each["content"]: bool(each["special"]) for each in whole["added_tokens"]}
    writer.add_token_types([_kind(token, model, added) for token in tokens])
    for role, name in ROLES.items():
        token_id = mask_token_id if role == "mask" else getattr(tokenizer, f"{role}_token_id")
        if token_id is not None:
            writer.add_uint32(f"tokenizer.ggml.{name}_token_id", token_id)
    around = tokenizer("x").input_ids
    writer.add_add_bos_token(tokenizer.bos_token_id is not None and around[0] == tokenizer.bos_token_id)
    writer.add_add_eos_token(tokenizer.eos_token_id is not None and around[-1] == tokenizer.eos_token_id)
    if tokenizer.chat_template is not None:
        writer.add_chat_template(tokenizer.chat_template)
    writer.add_string(TOKENIZER_KEY, backend.to_str())


def _split_of(pre_tokenizer: dict[str, Any] | None) -> str:
    """Return llama.cpp's name for what comes before the merges."""
    steps = [] if pre_tokenizer is None else pre_tokenizer.get("pretokenizers", [pre_tokenizer])
    found = tuple(
        each["pattern"].get("Regex", "") if each["type"] == "Split" else each["type"]
        for each in steps
        if each["type"] != "ByteLevel" or each["use_regex"]
    )
    if any(each["type"] == "ByteLevel" and each["add_prefix_space"] for each in steps) or found not in _SPLITS:
        raise SetBlockError(
            f"this tokenizer can't be exported: llama.cpp has no name for how it splits a text, {found}"
        )
    return _SPLITS[found]


def _puts_space_before(tokenizer: dict[str, Any]) -> bool:
    """Return whether a text is read as if a space came before it."""
    normalizer, before = tokenizer["normalizer"] or {}, tokenizer["pre_tokenizer"] or {}
    steps = normalizer.get("normalizers", [normalizer])
    return any(each.get("type") == "Prepend" for each in steps) or before.get("prepend_scheme") in ("first", "always")


def _kind(token: str, model: dict[str, Any], added: dict[str, bool]) -> int:
    """Return GGUF's type of a token. `added`: whether each of the added tokens is special."""
    if token == model.get("unk_token"):
        return int(gguf.TokenType.UNKNOWN)
    if token in added:
        return int(gguf.TokenType.CONTROL if added[token] else gguf.TokenType.USER_DEFINED)
    if model.get("byte_fallback") and re.fullmatch("<0x[0-9A-F]{2}>", token):
        return int(gguf.TokenType.BYTE)
    return int(gguf.TokenType.UNUSED if re.fullmatch(r"\[PAD\d+\]", token) else gguf.TokenType.NORMAL)
