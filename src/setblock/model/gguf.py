"""GGUF files as checkpoints: llama.cpp's one-file format, read through Transformers.

Knows how a GGUF file is named to Transformers. Knows nothing of blocks.
"""

from pathlib import Path
from typing import Any

import transformers

from setblock.errors import SetBlockError

_MAGIC = b"GGUF"


def is_gguf(source: str | Path) -> bool:
    """Whether a model's name is that of a GGUF file."""
    return Path(source).suffix.lower() == ".gguf"


def check_gguf(source: str | Path) -> None:
    """Check that a GGUF file is there and looks like one.

    Raises:
        SetBlockError: there is no such file, it can't be read, or it holds something else.
    """
    path = Path(source)
    try:
        with path.open("rb") as file:
            magic = file.read(len(_MAGIC))
    except OSError as error:
        raise SetBlockError(f"model {source}: can't read the file: {error.strerror}") from error
    if magic != _MAGIC:
        raise SetBlockError(f"model {source} is no GGUF file: it does not begin with {_MAGIC.decode()!r}")


def pretrained_arguments(source: str) -> dict[str, str]:
    """The arguments by which Transformers' `from_pretrained` finds what `source` names: a folder, a hub id or a GGUF file."""
    if not is_gguf(source):
        return {"pretrained_model_name_or_path": source}
    path = Path(source)
    return {"pretrained_model_name_or_path": str(path.parent), "gguf_file": path.name}


def weights_arguments(source: str) -> dict[str, Any]:
    """`pretrained_arguments` for a model's weights: every weight of a GGUF file becomes a plain one, which can be trained.

    Raises:
        SetBlockError: the installed Transformers can't do that.
    """
    arguments: dict[str, Any] = {**pretrained_arguments(source)}
    if is_gguf(source):
        config = getattr(transformers, "GgufConfig", None)
        if config is None:
            raise SetBlockError(
                f"model {source}: GGUF files need Transformers 5.23 or newer, not {transformers.__version__}"
            )
        arguments["quantization_config"] = config(dequantize=True)
    return arguments
