"""GGUF files (llama.cpp's one-file format) as checkpoints, read through Transformers.

The module has the keys of the SBD config and the tokenizer, and the arguments with which Transformers reads such a file.
"""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import gguf
import transformers
from tokenizers import Tokenizer
from transformers import AutoTokenizer, PreTrainedTokenizerBase, PreTrainedTokenizerFast

from setblock.errors import SetBlockError, one_line, prefixed
from setblock.files import is_gguf
from setblock.json_lines import read_json
from setblock.model.protocol.sbd_config import SBDModelConfig, sbd_config_from_json

FACTS_KEY = "setblock.facts"
"""The SBD config, as JSON."""
END_OF_TEXT_KEY = "setblock.end_of_text_ids"
"""The ids that end an answer, as JSON: llama.cpp's own keys have room for two."""
TOKENIZER_KEY = gguf.Keys.Tokenizer.HF_JSON
"""The content of `tokenizer.json`, a key of GGUF's own."""
ROLES = {"bos": "bos", "eos": "eos", "unk": "unknown", "pad": "padding", "mask": "mask"}
"""GGUF's names for special tokens, by Transformers' names."""

Metadata = Callable[[str], str | None]
"""Returns the value under a key of a GGUF file, as text, or None if there is none."""


def pretrained_arguments(source: str) -> dict[str, str]:
    """Return the arguments with which Transformers' `from_pretrained` finds a folder, a hub id or a GGUF file."""
    if not is_gguf(source):
        return {"pretrained_model_name_or_path": source}
    path = Path(source)
    return {"pretrained_model_name_or_path": str(path.parent), "gguf_file": path.name}


def weights_arguments(source: str) -> dict[str, Any]:
    """Return `pretrained_arguments` for loading weights: the weights of a GGUF file are dequantised, and can be
    trained. Raise
    `SetBlockError` if the installed Transformers can't do that."""
    arguments: dict[str, Any] = {**pretrained_arguments(source)}
    if is_gguf(source):
        config = getattr(transformers, "GgufConfig", None)
        if config is None:
            raise SetBlockError(
                f"model {source}: GGUF files need Transformers 5.23 or newer, not {transformers.__version__}"
            )
        arguments["quantization_config"] = config(dequantize=True)
    return arguments


def metadata_of(source: str | Path) -> Metadata:
    """Return the metadata of a file. With a large vocabulary this takes seconds. Raise `SetBlockError` if it is damaged."""
    try:
        fields = gguf.GGUFReader(source).fields
    except Exception as error:  # the reader raises errors of any type over a damaged file
        raise SetBlockError(
            f"model {source} is a damaged or truncated GGUF file: {one_line(error)}; download it again"
        ) from error
    return lambda key: str(fields[key].contents()) if key in fields else None


def sbd_config_in(metadata: Metadata, source: str | Path, *, vocab_size: int) -> SBDModelConfig | None:
    """Return the SBD config in a file, or None if it has none. Raise `SetBlockError` if it is not valid."""
    where, recorded = f"{source}: {FACTS_KEY}", _json(metadata, FACTS_KEY, source)
    return None if recorded is None else sbd_config_from_json(recorded, vocab_size=vocab_size, where=where)


def end_of_text_in(metadata: Metadata, source: str | Path) -> tuple[int, ...]:
    """Return the ids that end an answer; empty if the file was not written by setblock."""
    return tuple(_json(metadata, END_OF_TEXT_KEY, source) or ())


def tokenizer_in(metadata: Metadata, source: str | Path) -> PreTrainedTokenizerBase:
    """Return the tokenizer in a file: its `tokenizer.json`, else the one that Transformers makes from llama.cpp's vocabulary.
    Raise `SetBlockError` if Transformers can read neither."""
    whole = metadata(TOKENIZER_KEY)
    # Transformers and tokenizers raise errors of any type over files that they can't read
    with prefixed(f"model {source}: its tokenizer can't be read", Exception):
        if whole is None:
            return AutoTokenizer.from_pretrained(**pretrained_arguments(str(source)))
        backend = Tokenizer.from_str(whole)
        ids = {role: metadata(f"tokenizer.ggml.{name}_token_id") for role, name in ROLES.items()}
        special = {f"{role}_token": backend.id_to_token(int(each)) for role, each in ids.items() if each is not None}
        made = PreTrainedTokenizerFast(tokenizer_object=backend, clean_up_tokenization_spaces=False, **special)
    made.chat_template = metadata(gguf.Keys.Tokenizer.CHAT_TEMPLATE)
    return made


def _json(metadata: Metadata, key: str, source: str | Path) -> Any:
    text = metadata(key)
    with prefixed(f"model {source}: {key} is not JSON", ValueError):
        return None if text is None else read_json(text)
