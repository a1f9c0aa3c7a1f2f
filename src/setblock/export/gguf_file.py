"""The export of a model to a GGUF file, which stock llama.cpp runs and which also contains the SBD config and the tokenizer.

What depends on the model's family is in `setblock.export.families`.
"""

import json
import os
import re
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any, Literal, get_args

import gguf
import gguf.quants
import numpy as np
from torch import Tensor
from transformers import PreTrainedModel

from setblock.chat.template import closing_ids
from setblock.errors import SetBlockError, check_one_of
from setblock.export.families import family_of, tensors_of, write_config
from setblock.files import writing
from setblock.model.loading.gguf import END_OF_TEXT_KEY, FACTS_KEY, ROLES, TOKENIZER_KEY
from setblock.model.sbd_model import SBDModel

WeightType = Literal["f32", "f16", "bf16", "q8_0", "q5_1", "q5_0", "q4_1", "q4_0"]
"""Types in which matrices are stored, by GGML's names; the `gguf` package can write these."""


def write_gguf(sbd: SBDModel, path: Path, *, weights: WeightType = "f16") -> None:
    """Write a model, its tokenizer and its SBD config. The file appears once it is complete. Raise `SetBlockError` if the model
    has an adapter or is quantised, llama.cpp lacks its family or its tokenizer, or the file can't be written."""
    if sbd.gate is not None:
        raise SetBlockError(
            "a model with an adapter on its future block can't be exported: llama.cpp has no place for it; "
            "--runtime transformers decodes the checkpoint"
        )
    if sbd.sbd_config is not None and sbd.sbd_config.special_form:
        raise SetBlockError(
            f"a model with {sbd.sbd_config.special_form} can't be exported: llama.cpp's blocks are not so; "
            "--runtime transformers decodes the checkpoint"
        )
    if sbd.quantization is not None or sbd.prepacked:
        raise SetBlockError(
            "a model whose weights are quantised or prepacked can't be exported: load it without --quantization and --prepack"
        )
    with model_file(sbd.model, path, weights=weights) as writer:
        _write_vocabulary(writer, sbd)
        writer.add_string(END_OF_TEXT_KEY, json.dumps(list(sbd.end_of_text_ids)))
        if sbd.sbd_config is not None:
            writer.add_string(FACTS_KEY, json.dumps(sbd.sbd_config.to_json()))


@contextmanager
def model_file(model: PreTrainedModel, path: Path, *, weights: WeightType) -> Iterator[gguf.GGUFWriter]:
    """Write the config, yield the writer for the vocabulary, then write the weights. Errors are those of `write_gguf`."""
    check_one_of("type", weights, get_args(WeightType))
    family = family_of(model)
    temporary = path.with_name(f".{path.name}.writing")
    writer = gguf.GGUFWriter(temporary, family.architecture)
    with writing(path), _deleted(temporary), closing(writer):
        writer.add_type(gguf.GGUFType.MODEL)
        if name := Path(model.name_or_path).name:
            writer.add_name(name)
        writer.add_file_type(int(gguf.LlamaFileType[f"{'ALL' if weights == 'f32' else 'MOSTLY'}_{weights.upper()}"]))
        writer.add_quantization_version(gguf.GGML_QUANT_VERSION)
        write_config(writer, model, family)
        yield writer
        for name, weight in tensors_of(model, family):
            values, kind = _stored(name, weight, weights)
            writer.add_tensor(name, values, raw_dtype=kind)
        writer.write_header_to_file()
        writer.write_kv_data_to_file()
        writer.write_tensors_to_file()
        writer.close()
        os.replace(temporary, path)


@contextmanager
def _deleted(path: Path) -> Iterator[None]:
    """Delete a file on exit, if it exists."""
    try:
        yield
    finally:
        if path.exists():
            path.unlink()


def _stored(name: str, weight: Tensor, weights: WeightType) -> tuple[np.ndarray, gguf.GGMLQuantizationType]:
    """Return a weight as it is stored: vectors in float32, matrices whose row length fits no quantised type in float16, and
    embeddings and head in at least eight bits."""
    values = weight.detach().float().cpu().contiguous().numpy()
    kind = gguf.GGMLQuantizationType[weights.upper()]
    if kind.name.startswith(("Q4", "Q5")) and name in ("token_embd.weight", "output.weight"):
        kind = gguf.GGMLQuantizationType.Q8_0  # since they lose the most precision
    if values.ndim == 1:
        kind = gguf.GGMLQuantizationType.F32
    elif values.shape[-1] % gguf.GGML_QUANT_SIZES[kind][0]:
        kind = gguf.GGMLQuantizationType.F16
    return gguf.quants.quantize(values, kind), kind


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
"""llama.cpp's names for the pre-tokenizers of a byte-level BPE, by their regular expressions or the names of their steps."""


def _write_vocabulary(writer: gguf.GGUFWriter, sbd: SBDModel) -> None:
    """Write the vocabulary of V tokens, the special tokens, the chat template, and for setblock `tokenizer.json`. Ids beyond
    the tokenizer's become unused tokens. Raise `SetBlockError` if llama.cpp does not support the tokenizer."""
    tokenizer = sbd.tokenizer
    mask_token_id = None if sbd.sbd_config is None else sbd.sbd_config.mask_token_id
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
    known = [tokenizer.convert_ids_to_tokens(number) for number in range(sbd.vocab_size)]
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
    for token_id in [each for each in closing_ids(tokenizer) if each != tokenizer.eos_token_id][:1]:
        writer.add_eot_token_id(token_id)  # llama.cpp also ends an answer there
    around = tokenizer("x").input_ids
    writer.add_add_bos_token(tokenizer.bos_token_id is not None and around[0] == tokenizer.bos_token_id)
    writer.add_add_eos_token(tokenizer.eos_token_id is not None and around[-1] == tokenizer.eos_token_id)
    if tokenizer.chat_template is not None:
        writer.add_chat_template(tokenizer.chat_template)
    writer.add_string(TOKENIZER_KEY, backend.to_str())


def _split_of(pre_tokenizer: dict[str, Any] | None) -> str:
    """Return llama.cpp's name for a pre-tokenizer."""
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
    """Return whether the tokenizer puts a space before a text."""
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
