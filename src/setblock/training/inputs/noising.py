"""The noise: which blocks of a row are noised, and which of their tokens become the mask token (Algorithm 1, eq. 13)."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Literal

import numpy as np

from setblock.data.packing import IGNORE, PADDING
from setblock.errors import check_at_least

MaskRatePer = Literal["document", "block"]
NoiseOn = Literal["document", "targets"]
MaskPlaces = Literal["anywhere", "tail"]


@dataclass(kw_only=True)
class Noising:
    """The options of the noisy half. The defaults are the paper's.

    Attributes:
        mask_rate_per: the unit that shares one draw of the mask rate η ~ U(0, 1): a `document` or a `block`.
        noise_on: the part that blocks tile: the whole `document`, or only its `targets`, each run of tokens that carry a loss.
            `targets` is faster with long prompts, and its blocks start at the same places as in decoding.
        noisy_copies: the number of independent noisy copies for each clean document.
        complete_last_block: fill the last block of a run up to `block_size` with end-of-text. Decoding always opens whole
            blocks. A model trained only on last blocks that stop at the end of the text never learns to predict that end.
        random_offsets: the share of runs whose first block is shortened at random, so that later blocks start anywhere. In
            decoding, blocks do so after a gap or a wrong draft.
        complementary_masks: every second copy has the blocks of the previous copy and masks exactly its other tokens, so two
            copies learn every token once (Fast-dLLM v2, arXiv 2509.26328; LLaDA 2.0, arXiv 2512.15745). `noisy_copies` must be
            even.
        full_mask_share: the share of blocks that are fully masked, as in the first pass of a block (TiDAR, arXiv 2511.08923,
            masks all blocks fully).
        mask_places: the positions of a block that a mask rate η masks. `anywhere` (the paper): each with probability η.
            `tail`: the last floor(η (n + 1)) of n tokens, as in blocks that are revealed from the left. CARD (Ruan et al.,
            2026) also moves its noise to the tail.
    """

    mask_rate_per: MaskRatePer = "document"
    noise_on: NoiseOn = "document"
    noisy_copies: int = 1
    complete_last_block: bool = False
    random_offsets: float = 0.0
    complementary_masks: bool = False
    full_mask_share: float = 0.0
    mask_places: MaskPlaces = "anywhere"

    def check_noising(self) -> None:
        """Raise ValueError where an option is outside of its range."""
        check_at_least(1, noisy_copies=self.noisy_copies)
        if self.complementary_masks and self.noisy_copies % 2:
            raise ValueError(f"complementary_masks needs an even number of noisy_copies, not {self.noisy_copies}")
        for name in ("random_offsets", "full_mask_share"):
            if not 0 <= getattr(self, name) <= 1:
                raise ValueError(f"{name} must be between 0 and 1, not {getattr(self, name)}")


@dataclass(frozen=True)
class NoisyHalf:
    """The noisy tokens of one row; arrays of one length N."""

    input_ids: np.ndarray  # int, x̂: the token, or noise where `is_masked`
    labels: np.ndarray  # int, the token that belongs there, or `IGNORE` where it carries no loss
    is_masked: np.ndarray  # bool
    position_ids: np.ndarray  # int, position in the document
    document_ids: np.ndarray  # int, the document
    block_ids: np.ndarray  # int, 0, 1, 2, ..., one for each block of each copy
    block_starts: np.ndarray  # int, position of the first token of the block


def concatenated(parts: Sequence[NoisyHalf]) -> NoisyHalf:
    """Return the tokens of several halves, one after the other."""
    empty = [np.zeros(0, dtype=np.int64)]
    columns = {name: [getattr(part, name) for part in parts] or empty for name in NoisyHalf.__dataclass_fields__}
    return NoisyHalf(**{name: np.concatenate(column) for name, column in columns.items()})


def noised_runs(labels: np.ndarray, document_ids: np.ndarray, *, noise_on: NoiseOn) -> list[tuple[int, int]]:
    """Return the [start, end) runs of a row that blocks tile, each inside one document."""
    wanted = document_ids != PADDING
    if noise_on == "targets":
        wanted &= labels != IGNORE
    starts_document = np.diff(document_ids, prepend=document_ids[:1], append=document_ids[-1:]) != 0  # [L + 1]
    changes = np.flatnonzero(np.diff(wanted, prepend=False, append=False) | starts_document)
    return [(int(a), int(b)) for a, b in pairwise(changes) if wanted[a]]


def noise_row(
    *,
    input_ids: np.ndarray,
    labels: np.ndarray,
    position_ids: np.ndarray,
    document_ids: np.ndarray,
    block_size: int,
    noising: Noising,
    noise_ids: range,
    end_of_text_id: int,
    context_length: int,
    rng: np.random.Generator,
) -> NoisyHalf:
    """Draw the noisy half of one packed row (eq. 13).

    Args:
        input_ids, labels, position_ids, document_ids: int arrays [L], as in `setblock.data.packing.Row`.
        block_size: k.
        noise_ids: the tokens that masked positions have at random: the mask token alone, or for uniform noise all.
        context_length: positions stay below it, also those of completed blocks.
        rng: the only source of randomness.
    """
    parts: list[NoisyHalf] = []
    blocks = 0
    runs = noised_runs(labels, document_ids, noise_on=noising.noise_on)
    drawn: dict[int, tuple[int, np.ndarray, np.ndarray]] = {}  # of each run, in the copy before
    for copy in range(noising.noisy_copies):
        rates: dict[int, float] = {}  # document -> η; a document's runs share it
        for run, (start, end) in enumerate(runs):
            length, first = end - start, int(position_ids[start])
            if noising.complementary_masks and copy % 2:
                missing, block_of, is_masked = drawn[run]
                is_masked = ~is_masked
            else:
                document, room = int(document_ids[start]), context_length - first
                missing, block_of, is_masked = _draw_blocks(length, document, room, block_size, noising, rates, rng)
            drawn[run] = missing, block_of, is_masked
            extra = len(block_of) - length
            if noising.full_mask_share:
                is_masked = is_masked | (rng.random(block_of[-1] + 1) < noising.full_mask_share)[block_of]
            tokens = np.concatenate([input_ids[start:end], np.full(extra, end_of_text_id)])
            parts.append(
                NoisyHalf(
                    input_ids=tokens,
                    labels=np.concatenate([labels[start:end], np.full(extra, end_of_text_id)]),
                    is_masked=is_masked,
                    position_ids=first + np.arange(length + extra),
                    document_ids=np.full(length + extra, document_ids[start]),
                    block_ids=blocks + block_of,
                    block_starts=first + np.maximum(block_of * block_size - missing, 0),
                )
            )
            blocks += int(block_of[-1]) + 1
    half = concatenated(parts)
    # Drawn last, so that the same positions are masked whatever stands there
    noise = rng.integers(noise_ids.start, noise_ids.stop, size=len(half.input_ids))
    return replace(half, input_ids=np.where(half.is_masked, noise, half.input_ids))


def _draw_blocks(
    length: int,
    document: int,
    room: int,
    block_size: int,
    noising: Noising,
    rates: dict[int, float],
    rng: np.random.Generator,
) -> tuple[int, np.ndarray, np.ndarray]:
    """Draw the blocks of a run of `length` tokens, which may grow to `room`. `rates` are the mask rates of documents
    drawn before. Return the number of tokens that the first block lacks, each token's block [N], and whether each is
    masked [N]."""
    is_short = noising.random_offsets > 0 and rng.random() < noising.random_offsets
    missing = int(rng.integers(block_size)) if is_short else 0
    padded = length
    if noising.complete_last_block:
        padded = -(-(length + missing) // block_size) * block_size - missing
    padded = max(length, min(padded, room))
    block_of = (np.arange(padded) + missing) // block_size
    if noising.mask_rate_per == "block":
        rate = rng.random(block_of[-1] + 1)[block_of]
    else:
        rate = np.full(padded, rates.setdefault(document, rng.random()))
    return missing, block_of, _draw_mask(rate, block_of, noising.mask_places, rng)


def _draw_mask(rate: np.ndarray, block_of: np.ndarray, places: MaskPlaces, rng: np.random.Generator) -> np.ndarray:
    """Return [N] bool: whether each token is masked; `rate` [N] is η, the same for all tokens of a block."""
    if places == "anywhere":
        return rng.random(len(rate)) < rate
    sizes = np.bincount(block_of)
    place = np.arange(len(block_of)) - (np.cumsum(sizes) - sizes)[block_of]  # in its block, from 0
    size = sizes[block_of]
    is_masked: np.ndarray = place >= size - np.floor(rate * (size + 1))
    return is_masked
