"""Wrap a context of llama.cpp: its cache of keys and values, and passes over it.

Knows tokens, positions and sequences. A token is fed with the sequences that its cell of the cache will belong to, and sees the
cells of one of them, its own. Knows nothing of rows, requests or blocks.
"""

import ctypes
import weakref
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from setblock.errors import SetBlockError
from setblock.integrations.llama_cpp.library import ModelFile, last_error
from setblock.integrations.llama_cpp.options import LlamaOptions

_GGML_TYPES = {"f32": 0, "f16": 1, "q4_0": 2, "q4_1": 3, "q5_0": 6, "q5_1": 7, "q8_0": 8, "bf16": 30}
_PADDING = 256  # cells; llama.cpp rounds up to it


class Fed(NamedTuple):
    """Describe a token of a pass."""

    token_id: int
    position: int
    sequences: Sequence[int]  # those that its cell will belong to
    is_wanted: bool  # whether its logits are


class Context:
    """Hold a context with an empty cache."""

    def __init__(self, file: ModelFile, options: LlamaOptions, *, cells: int, sequences: int | None = None) -> None:
        """Make the context, or raise `SetBlockError` if llama.cpp can't. `cells` are the positions of the cache, for all
        sequences together; there are by default as many sequences as llama.cpp allows with these options."""
        self._file, lib = file, file.lib
        self.most_tokens = options.n_ubatch  # that one pass over blocks may feed
        self.sequences = sequences or min(int(lib.llama_max_parallel_sequences()), options.n_ubatch)
        wanted = lib.llama_context_default_params()
        wanted.n_ctx = -(-cells // _PADDING) * _PADDING
        wanted.n_batch = wanted.n_ubatch = options.n_ubatch
        wanted.n_seq_max = self.sequences
        wanted.n_threads = wanted.n_threads_batch = options.n_threads or torch.get_num_threads()
        wanted.type_k, wanted.type_v = _GGML_TYPES[options.type_k], _GGML_TYPES[options.type_v]
        wanted.flash_attn_type = _flash_attention(options, has_gpu=bool(lib.llama_supports_gpu_offload()))
        wanted.kv_unified = True  # so that a cell may be in several sequences
        wanted.swa_full = True  # layers with a window keep what a taken-back token leaves in it
        handle = self._handle = lib.llama_init_from_model(file.handle, wanted)
        if not handle:
            raise SetBlockError(f"llama.cpp can't make a context of {cells} positions: {last_error()}")
        # Whoever is to close it holds the model's file, which must be closed later
        weakref.finalize(self, lambda: file.lib.llama_free(handle))
        self._memory = lib.llama_get_memory(handle)

    def keep(self, sequence: int, end: int) -> None:
        """Take a sequence's cells from position `end` on out of it; those of all for -1. A cell that is in none is free."""
        self._file.lib.llama_memory_seq_rm(self._memory, sequence, end, -1)

    def copy(self, source: int, target: int, start: int, end: int) -> None:
        """Put the cells of positions `start` to `end` of one sequence into another too."""
        self._file.lib.llama_memory_seq_cp(self._memory, source, target, start, end)

    def logits(self, tokens: Sequence[Fed], *, is_causal: bool) -> Tensor:
        """Return [M, V] float32, the logits of the M tokens that want them, in order. The tokens are at most `most_tokens`, and
        those of a sequence continue where it ends, in order. `is_causal`: whether a token sees nothing behind it."""
        lib, count = self._file.lib, len(tokens)
        lists = [(lib.llama_seq_id * len(each.sequences))(*each.sequences) for each in tokens]
        pointer = ctypes.POINTER(lib.llama_seq_id)
        batch = lib.llama_batch(
            n_tokens=count,
            token=(lib.llama_token * count)(*(each.token_id for each in tokens)),
            pos=(lib.llama_pos * count)(*(each.position for each in tokens)),
            n_seq_id=(ctypes.c_int32 * count)(*map(len, lists)),
            seq_id=(pointer * count)(*(ctypes.cast(each, pointer) for each in lists)),
            logits=(ctypes.c_int8 * count)(*(each.is_wanted for each in tokens)),
        )
        lib.llama_set_causal_attn(self._handle, is_causal)
        code = lib.llama_decode(self._handle, batch)
        if code:
            raise SetBlockError(f"llama.cpp failed in a pass over {count} tokens (code {code}): {last_error()}")
        wanted = sum(each.is_wanted for each in tokens)
        if not wanted:
            return torch.zeros((0, self._file.vocab_size))
        found = np.ctypeslib.as_array(lib.llama_get_logits(self._handle), (wanted, self._file.vocab_size))
        return torch.from_numpy(found.copy())  # the next pass overwrites them


def _flash_attention(options: LlamaOptions, *, has_gpu: bool) -> int:
    """Return llama.cpp's number for whether it is used: -1 where that is llama.cpp's own choice."""
    if options.flash_attn != "auto":
        return int(options.flash_attn == "on")
    if options.has_quantised_values:
        return 1
    return -1 if has_gpu and options.n_gpu_layers else 0
