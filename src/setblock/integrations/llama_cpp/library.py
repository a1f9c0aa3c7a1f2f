"""The llama.cpp library, by llama-cpp-python's low-level functions: whether it is installed, what it logs, open model files,
and k-quants."""

import ctypes
import importlib
import importlib.util
import weakref
from functools import cache
from pathlib import Path
from typing import Any, Literal

from setblock.errors import SetBlockError, install_command, one_line
from setblock.integrations.llama_cpp.options import LlamaOptions

_ERROR, _CONTINUED = 4, 5  # levels of llama.cpp's log
_MROPE = (8, 40, 24)  # rope types whose tokens have several positions: LLAMA_ROPE_TYPE_MROPE, IMROPE, VISION
_said: list[str] = []


def is_installed() -> bool:
    """Return whether llama-cpp-python is installed."""
    return importlib.util.find_spec("llama_cpp") is not None


@cache
def library() -> Any:
    """Return the module of low-level functions. Raise `SetBlockError` if it is not installed or can't be used here."""
    if not is_installed():
        raise SetBlockError(
            f"runtime llama-cpp needs llama.cpp: {install_command('llama-cpp')} (a C++ compiler and CMake build it)"
        )
    try:
        found = importlib.import_module("llama_cpp.llama_cpp")
        found.llama_log_set(_listener(found), None)
        found.llama_backend_init()
    except (ImportError, OSError, RuntimeError) as error:
        reason = one_line(error)
        raise SetBlockError(
            f"llama-cpp-python can't be used here: {reason}; install it again: {install_command('llama-cpp')}"
        ) from error
    return found


@cache
def _listener(found: Any) -> Any:
    """Return a callback for llama.cpp's log, kept alive as long as the process."""
    level = 0

    def listen(of_line: int, text: bytes, _: Any) -> None:
        nonlocal level
        level = level if of_line == _CONTINUED else of_line
        if level == _ERROR:
            _said.append(text.decode(errors="replace"))
            del _said[:-20]

    return found.llama_log_callback(listen)


def last_error() -> str:
    """Return the first line of an error that llama.cpp has logged since the last call."""
    lines = [line.strip() for line in "".join(_said).splitlines() if line.strip()]
    _said.clear()
    message = lines[0] if lines else "llama.cpp gave no reason"
    return message.partition(": ")[2] or message  # without the name of the function


class ModelFile:
    """A GGUF file that llama.cpp has loaded."""

    def __init__(self, path: Path, options: LlamaOptions) -> None:
        """Load the file, or raise `SetBlockError` if llama.cpp can't, or can't run such a model in blocks."""
        self.lib = lib = library()
        wanted = lib.llama_model_default_params()
        wanted.n_gpu_layers = options.n_gpu_layers
        cpu = Path("/proc/cpuinfo")  # with AMX, llama.cpp's own layout of weights crashes
        wanted.use_extra_bufts = not (cpu.exists() and "amx_int8" in cpu.read_text(errors="replace"))
        _said.clear()
        self.handle = lib.llama_model_load_from_file(str(path).encode(), wanted)
        if not self.handle:
            raise SetBlockError(f"llama.cpp can't load model {path}: {last_error()}")
        self._close = weakref.finalize(self, lib.llama_model_free, self.handle)
        self.vocab = lib.llama_model_get_vocab(self.handle)
        self.vocab_size = int(lib.llama_vocab_n_tokens(self.vocab))
        self.context_length = int(lib.llama_model_n_ctx_train(self.handle))  # the positions that it was trained for
        for reason, is_so in (
            ("keeps a recurrent state", lib.llama_model_is_recurrent(self.handle)),
            ("keeps a recurrent state in some layers", lib.llama_model_is_hybrid(self.handle)),
            ("has an encoder", lib.llama_model_has_encoder(self.handle)),
            ("has no decoder", not lib.llama_model_has_decoder(self.handle)),
            ("gives each token several positions", lib.llama_model_rope_type(self.handle) in _MROPE),
        ):
            if is_so:
                raise SetBlockError(f"model {path} can't be decoded in blocks by llama.cpp: it {reason}")

    def metadata(self, key: str) -> str | None:
        """Return the file's value of a key, as text; None if it has none."""
        length = self.lib.llama_model_meta_val_str(self.handle, key.encode(), None, 0)
        if length < 0:
            return None
        text = ctypes.create_string_buffer(length + 1)
        self.lib.llama_model_meta_val_str(self.handle, key.encode(), text, len(text))
        return text.value.decode()

    def end_of_text_ids(self) -> tuple[int, ...]:
        """Return the ids at which llama.cpp itself ends an answer."""
        return tuple(each for each in range(self.vocab_size) if self.lib.llama_vocab_is_eog(self.vocab, each))

    def tokens_of(self, text: str) -> list[int]:
        """Return the token ids of a plain text by llama.cpp's own tokenizer, with no special token added."""
        content = text.encode()
        room = len(content) + 8
        tokens = (self.lib.llama_token * room)()
        count = self.lib.llama_tokenize(self.vocab, content, len(content), tokens, room, False, False)
        return list(tokens[:count])


KQuant = Literal["q2_k", "q3_k_m", "q4_k_s", "q4_k_m", "q5_k_s", "q5_k_m", "q6_k"]


def quantise(source: Path, target: Path, kind: KQuant) -> None:
    """Write a file's weights as `kind`, or raise `SetBlockError` if llama.cpp is not installed, or can't do it."""
    lib = library()
    wanted = lib.llama_model_quantize_default_params()
    wanted.ftype = getattr(lib, f"LLAMA_FTYPE_MOSTLY_{kind.upper()}")
    if lib.llama_model_quantize(str(source).encode(), str(target).encode(), wanted):
        raise SetBlockError(f"llama.cpp can't write {target} as {kind}: {last_error()}")
