"""Write types of weights that only llama.cpp can write: its mixtures of k-quants.

Knows llama.cpp's names for them. Knows nothing of models: a GGUF file goes in and another comes out, its metadata kept.
"""

from pathlib import Path
from typing import Literal

from setblock.errors import SetBlockError
from setblock.integrations.llama_cpp.library import last_error, library

KQuant = Literal["q2_k", "q3_k_m", "q4_k_s", "q4_k_m", "q5_k_s", "q5_k_m", "q6_k"]


def quantise(source: Path, target: Path, kind: KQuant) -> None:
    """Write a file's weights as `kind`.

    Raises:
        SetBlockError: llama.cpp is not installed, or can't do it.
    """
    lib = library()
    wanted = lib.llama_model_quantize_default_params()
    wanted.ftype = getattr(lib, f"LLAMA_FTYPE_MOSTLY_{kind.upper()}")
    if lib.llama_model_quantize(str(source).encode(), str(target).encode(), wanted):
        target.unlink(missing_ok=True)
        raise SetBlockError(f"llama.cpp can't write {target} as {kind}: {last_error()}")
