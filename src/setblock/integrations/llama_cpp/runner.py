"""The runner of llama.cpp: it turns a `ModelInput` into passes of a llama.cpp context, and their outputs into logits.

A row is a sequence: its committed tokens and, during a pass, the block. llama.cpp's only attention mask is its sequences. So
in a fused pass each causal token has a *helper*, a sequence of the tokens committed before and the causal ones up to this one:

    the row's sequence   committed, c0 c1 c2, block    own sequence of the block's tokens
    helpers              committed, c0 c1 c2           own sequence of c2
                         committed, c0 c1                              c1
                         committed, c0                                 c0

Cells are shared and computed once. If sequences or room in a pass run short, a row's commit is a separate pass within the same
call, which gives the same logits. llama.cpp does not document which of its sequences a token sees: `own_sequence` finds out at
start-up, by some fifteen passes over few tokens.
"""

import ctypes
import weakref
from collections.abc import Iterable, Sequence
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from setblock.errors import SetBlockError
from setblock.integrations.llama_cpp.library import ModelFile, last_error
from setblock.integrations.llama_cpp.options import LlamaOptions
from setblock.model.protocol.runtime import ModelInput, Runner

_GGML_TYPES = {"f32": 0, "f16": 1, "q4_0": 2, "q4_1": 3, "q5_0": 6, "q5_1": 7, "q8_0": 8, "bf16": 30}
_PADDING = 256  # cells; llama.cpp rounds up to it


class Fed(NamedTuple):
    """A token of a pass."""

    token_id: int
    position: int
    sequences: Sequence[int]  # the sequences that its cell will belong to
    is_wanted: bool  # whether its logits are returned


class Context:
    """A context of llama.cpp. A token is fed with the sequences that its cell of the cache will belong to, and attends to the
    cells of one of them, its own sequence."""

    def __init__(self, file: ModelFile, options: LlamaOptions, *, cells: int, sequences: int | None = None) -> None:
        """Make the context with an empty cache, or raise `SetBlockError` if llama.cpp can't. `cells`: the number of cache
        positions, for all sequences together. `sequences`: their number; by default the most that llama.cpp allows."""
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
        wanted.swa_full = True  # layers with a sliding window keep all cells, since tokens may be taken back
        handle = self._handle = lib.llama_init_from_model(file.handle, wanted)
        if not handle:
            raise SetBlockError(f"llama.cpp can't make a context of {cells} positions: {last_error()}")
        # The finaliser keeps a reference to the model's file, which must be closed after the context
        weakref.finalize(self, lambda: file.lib.llama_free(handle))
        self._memory = lib.llama_get_memory(handle)

    def keep(self, sequence: int, end: int) -> None:
        """Remove a sequence's cells from position `end` on; for -1, those of all sequences. A cell in no sequence is free."""
        self._file.lib.llama_memory_seq_rm(self._memory, sequence, end, -1)

    def copy(self, source: int, target: int, start: int, end: int) -> None:
        """Add the cells of positions `start` to `end` of one sequence to another."""
        self._file.lib.llama_memory_seq_cp(self._memory, source, target, start, end)

    def logits(self, tokens: Sequence[Fed], *, is_causal: bool) -> Tensor:
        """Return [M, V] float32, the logits of the M tokens with `is_wanted`, in order. There are at most `most_tokens` tokens;
        those of a sequence continue it, in order. `is_causal`: whether attention is causal."""
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
    """Return llama.cpp's number for flash attention; -1 leaves the choice to llama.cpp."""
    if options.flash_attn != "auto":
        return int(options.flash_attn == "on")
    if options.has_quantised_values:
        return 1
    return -1 if has_gpu and options.n_gpu_layers else 0


_Placed = tuple[tuple[int, int], Fed]  # a token's place in the feed, row and column, and the token
MOST_HELPERS = 32  # of a row; at most this many tokens are committed in a pass with a block


class LlamaRunner(Runner):
    """A `Runner` (see `setblock.model.protocol.runtime`) in llama.cpp. Ids identify rows; rows share no cells."""

    shares_pages = False

    def __init__(self, context: Context, *, own: int | None, rows: int) -> None:
        """Make a runner with an empty cache and no rows, or raise `SetBlockError` if llama.cpp has not so many sequences.

        Args:
            own: which of its sequences a token attends to: -1 for the last, 0 for the first; None for neither, so that passes
                can't be fused.
            rows: the maximum number of rows at once.
        """
        if rows > context.sequences:
            raise SetBlockError(f"llama.cpp decodes at most {context.sequences} requests at once, not {rows}")
        self.context, self.fuses_commit, self._own = context, own is not None, own
        self._width = min(context.sequences // rows, 1 + MOST_HELPERS)
        # The sequence of each row, by the row's id. Its helpers have the numbers that follow: llama.cpp may keep a token's
        # sequences in a hash table, whose order is then the same for all rows
        self._rows: dict[int, int] = {}
        self._free = [row * self._width for row in reversed(range(rows))]
        self._lengths = [0] * (rows * self._width)  # the number of positions in each helper
        self._ids: list[int] = []

    def place(self, pages: Sequence[Sequence[int]], ids: Iterable[int]) -> None:
        """Set the rows of the next pass's batch, by their ids. The cells of all other rows are freed."""
        self._ids = list(ids)
        for gone in self._rows.keys() - set(self._ids):
            row = self._rows.pop(gone)
            self._take_back(row, 0)
            self._free.append(row)
        for each in self._ids:
            if each not in self._rows:
                self._rows[each] = self._free.pop()

    def logits(self, inputs: ModelInput) -> Tensor:
        """Run one pass over the causal tokens of rows without a block, and one over blocks and the tokens committed with them;
        more if they exceed a pass. Return the logits in the order of `ModelInput.spread`."""
        # 1. The tokens of each row, and their sequences
        causal: list[_Placed] = []
        blocks: list[list[_Placed]] = []  # of each row
        places, columns = inputs.wanted.nonzero(as_tuple=True)
        # The row and column of the token of each requested output, in the order of `ModelInput.spread`
        outputs = list(zip(places.tolist(), inputs.outputs[places, columns].tolist(), strict=True))
        wanted = set(outputs)
        fed = zip(inputs.plan.rows.tolist(), inputs.tokens.tolist(), inputs.positions.tolist(), strict=True)
        lengths, in_block = inputs.is_real.sum(dim=1).tolist(), inputs.in_block.sum(dim=1).tolist()
        for place, (index, tokens, positions) in enumerate(fed):
            length, commits = lengths[place], lengths[place] - in_block[place]
            if not length:
                continue
            row, start = self._rows[self._ids[index]], positions[0]
            self._take_back(row, start)
            seen_by = self._sequences(row, start, commits=commits, block=length - commits)
            together = [
                (at := (place, column), Fed(tokens[column], positions[column], sequences, at in wanted))
                for column, sequences in enumerate(seen_by)
            ]
            alone = 0 if len(seen_by[0]) > 1 else commits
            causal += together[:alone]
            if together[alone:]:
                blocks.append(together[alone:])

        # 2. The passes, and their logits in the order of the input
        most = self.context.most_tokens
        passes = [(causal[first : first + most], True) for first in range(0, len(causal), most)]
        passes += [(part, False) for part in _joined(blocks, most)]
        found = [self.context.logits([each for _, each in part], is_causal=is_causal) for part, is_causal in passes]
        given = [at for part, _ in passes for at, each in part if each.is_wanted]
        number = {at: row for row, at in enumerate(given)}
        return torch.cat(found)[[number[at] for at in outputs]]

    def _sequences(self, row: int, start: int, *, commits: int, block: int) -> list[list[int]]:
        """Return the sequences of each token of a row from `start` on: `commits` causal tokens, then `block` tokens."""
        alone = [[row]] * (commits + block)
        is_fused = bool(commits and block) and self.fuses_commit
        if not is_fused or commits >= self._width or commits + block > self.context.most_tokens:
            return alone
        helpers = range(row + 1, row + 1 + commits)
        for number, helper in enumerate(helpers):
            if self._lengths[helper] < start:
                self.context.copy(row, helper, self._lengths[helper], start)
            self._lengths[helper] = start + commits - number
        causal = [[row, *helpers[: commits - place]] for place in range(commits)]
        return [each if self._own else each[::-1] for each in causal] + alone[commits:]

    def _take_back(self, row: int, start: int) -> None:
        """Remove a row's cells from position `start` on: those of a block are noise, and those of drafts may be wrong."""
        self.context.keep(row, start)
        for helper in range(row + 1, row + self._width):
            if self._lengths[helper] > start:
                self.context.keep(helper, start)
                self._lengths[helper] = start


def _joined(blocks: Sequence[list[_Placed]], most: int) -> list[list[_Placed]]:
    """Group whole rows into passes of at most `most` tokens."""
    passes: list[list[_Placed]] = []
    for each in blocks:
        if len(each) > most:
            raise SetBlockError(f"a block of {len(each)} tokens needs n_ubatch {len(each)} or more, not {most}")
        if passes and len(passes[-1]) + len(each) <= most:
            passes[-1] += each
        else:
            passes.append(each)
    return passes


PROBED_SEQUENCES = 1 + MOST_HELPERS
_LISTS = (2, 3, 4, 8, 13, 14, 17, 29, 30, PROBED_SEQUENCES)
"""The numbers of sequences that a token is tried with: hash tables may change their order when they grow."""


def own_sequence(context: Context, *, vocab_size: int) -> int | None:
    """Return which of its sequences a token attends to: -1 for the last, 0 for the first, None if neither is always so. Raise
    `SetBlockError` if llama.cpp can't let a block's tokens attend to each other in this model. The context has
    `PROBED_SEQUENCES` sequences, empty before and after the call."""
    step = vocab_size // (PROBED_SEQUENCES + 2)
    *held, last, changed = (number * step for number in range(PROBED_SEQUENCES + 2))

    def run(fed: list[Fed], *, keep: int) -> Tensor:
        logits = context.logits(fed, is_causal=False)
        context.keep(-1, keep)
        return logits

    def before(token_id: int) -> Tensor:
        return run([Fed(held[0], 0, [0], is_wanted=True), Fed(token_id, 1, [0], is_wanted=False)], keep=0)

    if torch.equal(before(last), before(changed)):
        raise SetBlockError("llama.cpp computes only causal attention for this model, so it can't decode in blocks")

    # Each sequence has a different token, so the logits of a token in several sequences show which one it attends to
    run([Fed(token_id, 0, [each], is_wanted=False) for each, token_id in enumerate(held)], keep=1)
    alone = run([Fed(last, 1, [each], is_wanted=True) for each in range(PROBED_SEQUENCES)], keep=1)

    def sees_last(count: int, *, own: int) -> bool:
        sequences = range(count) if own else range(count)[::-1]
        distances = (run([Fed(last, 1, sequences, is_wanted=True)], keep=1) - alone).norm(dim=1)
        return bool(distances[count - 1] < distances.mean() / 10)

    found = next((own for own in (-1, 0) if all(sees_last(count, own=own) for count in _LISTS)), None)
    context.keep(-1, 0)
    return found
