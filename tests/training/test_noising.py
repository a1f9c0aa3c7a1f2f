"""Noising: eq. 13 and the blocks that tile a document."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from setblock.data.packing import IGNORE, PADDING, Document, Row, pack
from setblock.training.inputs.noising import Noising, NoisyHalf, _draw_mask, noise_row, noised_runs

MASK, END, CONTEXT, VOCABULARY = 1, 0, 64, 100


@st.composite
def rows(draw: st.DrawFn) -> Row:
    """A packed row of documents, each a prompt, targets, and sometimes more of both."""
    documents = []
    for _ in range(draw(st.integers(1, 3))):
        carries_loss: list[bool] = []
        for _ in range(draw(st.integers(1, 2))):
            carries_loss += [False] * draw(st.integers(0, 4)) + [True] * draw(st.integers(1, 7))
        documents.append(Document([draw(st.integers(2, 99)) for _ in carries_loss], carries_loss))
    return pack(documents, row_length=sum(map(len, documents)) + draw(st.integers(0, 3)), pad_token_id=END)[0]


NOISINGS = st.builds(
    Noising,
    mask_rate_per=st.sampled_from(["document", "block"]),
    noise_on=st.sampled_from(["document", "targets"]),
    noisy_copies=st.integers(1, 3),
    complete_last_block=st.booleans(),
    full_mask_share=st.sampled_from([0.0, 0.4]),
    mask_places=st.sampled_from(["anywhere", "tail"]),
)
NOISINGS |= NOISINGS.map(lambda noising: replace(noising, noisy_copies=2, complementary_masks=True))


def noised(
    row: Row,
    noising: Noising,
    *,
    block_size: int,
    seed: int = 0,
    context_length: int = CONTEXT,
    noise_ids: range = range(MASK, MASK + 1),
) -> NoisyHalf:
    return noise_row(
        **vars(row),
        block_size=block_size,
        noising=noising,
        noise_ids=noise_ids,
        end_of_text_id=END,
        context_length=context_length,
        rng=np.random.default_rng(seed),
    )


def runs_by_hand(row: Row, noise_on: str) -> list[list[int]]:
    """The runs of places that blocks tile, as a loop."""
    runs: list[list[int]] = []
    for i, document in enumerate(row.document_ids):
        wanted = document != PADDING and (noise_on == "document" or row.labels[i] != IGNORE)
        if not wanted:
            continue
        goes_on = runs and runs[-1][-1] == i - 1 and row.document_ids[i - 1] == document
        if goes_on:
            runs[-1].append(i)
        else:
            runs.append([i])
    return runs


@given(rows(), NOISINGS, st.integers(1, 8), st.integers(0, 99))
def test_uniform_noise_stands_where_the_mask_token_does_and_nowhere_else(
    row: Row, noising: Noising, block_size: int, seed: int
) -> None:
    """What is masked does not change with it, and what is not is the text's own token, to the bit."""
    masked = noised(row, noising, block_size=block_size, seed=seed)
    half = noised(row, noising, block_size=block_size, seed=seed, noise_ids=range(VOCABULARY))
    for name, column in vars(masked).items():
        if name != "input_ids":
            assert np.array_equal(getattr(half, name), column), name
    assert np.array_equal(half.input_ids[~half.is_masked], masked.input_ids[~half.is_masked])
    assert ((half.input_ids >= 0) & (half.input_ids < VOCABULARY)).all()


def test_uniform_noise_is_uniform_and_drawn_anew_in_each_copy() -> None:
    row = pack([Document([9] * 4000, [True] * 4000)], row_length=4000, pad_token_id=END)[0]
    noising = Noising(full_mask_share=1.0, noisy_copies=2)
    half = noised(row, noising, block_size=8, context_length=4000, noise_ids=range(10))
    counts = np.bincount(half.input_ids, minlength=10)
    assert len(counts) == 10
    assert (abs(counts - 800) < 5 * 800**0.5).all()
    assert (half.input_ids[:4000] != half.input_ids[4000:]).any()


@given(rows(), st.sampled_from(["document", "targets"]))
def test_runs(row: Row, noise_on: str) -> None:
    found = noised_runs(row.labels, row.document_ids, noise_on=noise_on)  # type: ignore[arg-type]
    assert [list(range(a, b)) for a, b in found] == runs_by_hand(row, noise_on)


@given(rows(), NOISINGS, st.integers(1, 8), st.integers(0, 99), st.integers(20, 40))
def test_blocks_tile_each_run_from_its_first_token(
    row: Row, noising: Noising, block_size: int, seed: int, context_length: int
) -> None:
    """Places, labels, block ids and starts; only tokens that are masked differ from the text."""
    half = noised(row, noising, block_size=block_size, seed=seed, context_length=context_length)
    places = zip(*(getattr(half, name).tolist() for name in NoisyHalf.__dataclass_fields__), strict=True)
    block = -1
    for _ in range(noising.noisy_copies):
        for run in runs_by_hand(row, noising.noise_on):
            first, document = int(row.position_ids[run[0]]), int(row.document_ids[run[0]])
            length = len(run)
            if noising.complete_last_block:
                while length % block_size and first + length < context_length:
                    length += 1
            for offset in range(length):
                token = int(row.input_ids[run[offset]]) if offset < len(run) else END
                label = int(row.labels[run[offset]]) if offset < len(run) else END
                block += offset % block_size == 0
                start = first + offset - offset % block_size
                token_id, noisy_label, is_masked, position, in_document, block_id, block_start = next(places)
                assert token_id == (MASK if is_masked else token)
                assert (noisy_label, position, in_document) == (label, first + offset, document)
                assert (block_id, block_start) == (block, start)
    assert next(places, None) is None


@given(rows(), NOISINGS, st.integers(1, 8), st.integers(0, 99), st.integers(20, 40))
def test_a_random_offset_cuts_the_first_block_of_a_run_short(
    row: Row, noising: Noising, block_size: int, seed: int, context_length: int
) -> None:
    """Every other block is whole but for the last, and the text is what it is without an offset."""
    noising = replace(noising, random_offsets=1.0)
    half = noised(row, noising, block_size=block_size, seed=seed, context_length=context_length)
    blocks = [np.flatnonzero(half.block_ids == each) for each in np.unique(half.block_ids)][::-1]
    for run in runs_by_hand(row, noising.noise_on) * noising.noisy_copies:
        done = 0
        while done < len(run):
            places, start = blocks.pop(), int(row.position_ids[run[0]]) + done
            assert half.block_starts[places].tolist() == [start] * len(places)
            assert half.position_ids[places].tolist() == list(range(start, start + len(places)))
            is_first, is_last = done == 0, done + len(places) >= len(run)
            if not is_first and (noising.complete_last_block or not is_last):
                assert len(places) == block_size or start + len(places) == context_length
            assert len(places) <= block_size
            done += len(places)
        assert done == len(run) or noising.complete_last_block
    assert not blocks
    for token_id, label, is_masked in zip(half.input_ids, half.labels, half.is_masked, strict=True):
        assert token_id == MASK if is_masked else (token_id == label or label == IGNORE)


def test_offsets_are_uniform_and_as_frequent_as_requested() -> None:
    row = pack([Document([5] * 16, [True] * 16)], row_length=16, pad_token_id=END)[0]
    noising = Noising(random_offsets=0.5)
    first_sizes = [int((noised(row, noising, block_size=4, seed=s).block_ids == 0).sum()) for s in range(2000)]
    counts = np.bincount(first_sizes, minlength=5)
    expected = np.array([0, 250, 250, 250, 1250])  # half of the runs are whole, and of the others a quarter by chance
    assert counts[0] == 0
    assert ((counts - expected)[1:] ** 2 / expected[1:]).sum() < 3 + 4 * np.sqrt(2 * 3)


def test_the_defaults_are_the_papers() -> None:
    assert Noising() == Noising(
        mask_rate_per="document",
        noise_on="document",
        noisy_copies=1,
        complete_last_block=False,
        random_offsets=0.0,
        complementary_masks=False,
        full_mask_share=0.0,
        mask_places="anywhere",
    )


def counts_of(noising: Noising, *, length: int, block_size: int, draws: int, per: str) -> np.ndarray:
    """Histogram of how many tokens of a document (or of each block) are masked."""
    row = pack([Document([5] * length, [True] * length)], row_length=length, pad_token_id=END)[0]
    sizes = length if per == "document" else block_size
    masked = [noised(row, noising, block_size=block_size, seed=seed).is_masked for seed in range(draws)]
    return np.bincount(np.concatenate(masked).reshape(-1, sizes).sum(axis=1), minlength=sizes + 1)


@pytest.mark.parametrize("per", ["document", "block"])
def test_number_of_masked_tokens_is_uniform(per: str) -> None:
    """With the rate drawn from U(0, 1), the number of masked tokens among n is uniform on 0..n."""
    noising = Noising(mask_rate_per=per)  # type: ignore[arg-type]
    counts = counts_of(noising, length=8, block_size=4, draws=2000, per=per)
    expected = counts.sum() / len(counts)
    degrees = len(counts) - 1
    assert ((counts - expected) ** 2 / expected).sum() < degrees + 4 * np.sqrt(2 * degrees)


def test_what_shares_a_mask_rate() -> None:
    """Two blocks of one document go together under `document`, and are independent under `block`."""
    row = pack([Document([5] * 32, [True] * 32)], row_length=32, pad_token_id=END)[0]
    correlation = {}
    for per in ("document", "block"):
        halves = [noised(row, Noising(mask_rate_per=per), block_size=16, seed=s).is_masked for s in range(600)]  # type: ignore[arg-type]
        rates = np.stack(halves).reshape(-1, 2, 16).mean(axis=2)
        correlation[per] = np.corrcoef(rates.T)[0, 1]
    assert correlation["document"] > 0.8
    assert abs(correlation["block"]) < 0.15


def test_runs_of_a_document_share_its_rate_and_copies_do_not() -> None:
    carries_loss = ([False] + [True] * 24) * 2
    row = pack([Document([5] * len(carries_loss), carries_loss)], row_length=50, pad_token_id=END)[0]
    noising = Noising(noise_on="targets", noisy_copies=2)
    rates = np.stack(
        [noised(row, noising, block_size=8, seed=s).is_masked.reshape(2, 2, 24).mean(axis=2) for s in range(400)]
    )  # [draw, copy, run]
    assert np.corrcoef(rates[:, 0, 0], rates[:, 0, 1])[0, 1] > 0.8
    assert abs(np.corrcoef(rates[:, 0, 0], rates[:, 1, 0])[0, 1]) < 0.2


@given(rows(), NOISINGS, st.integers(1, 8))
def test_the_same_seed_gives_the_same_noise(row: Row, noising: Noising, block_size: int) -> None:
    first, second = (noised(row, noising, block_size=block_size, seed=3) for _ in range(2))
    for name in NoisyHalf.__dataclass_fields__:
        assert np.array_equal(getattr(first, name), getattr(second, name))


def test_a_row_without_anything_to_noise() -> None:
    row = pack([Document([5, 6], [False, False])], row_length=3, pad_token_id=END)[0]
    half = noised(row, replace(Noising(), noise_on="targets"), block_size=4)
    assert all(len(getattr(half, name)) == 0 for name in NoisyHalf.__dataclass_fields__)


def masked_by_hand(rate: float, sizes: list[int], places: str, draws: list[float]) -> list[bool]:
    """Which tokens of consecutive blocks a mask rate masks, by the words of `Noising`; `draws` are one for each token."""
    masked = []
    for size in sizes:
        for j in range(size):
            if places == "tail":
                masked.append(size - j <= int(rate * (size + 1)))
            else:
                masked.append(draws[len(masked)] < rate)
    return masked


@given(
    st.sampled_from(["anywhere", "tail"]),
    st.lists(st.integers(1, 6), min_size=1, max_size=4),
    st.floats(0, 0.999),
    st.integers(0, 99),
)
def test_where_a_mask_rate_masks(places: str, sizes: list[int], rate: float, seed: int) -> None:
    block_of = np.repeat(np.arange(len(sizes)), sizes)
    draws = np.random.default_rng(seed).random(len(block_of)).tolist()
    expected = masked_by_hand(rate, sizes, places, draws)
    rng = np.random.default_rng(seed)
    found = _draw_mask(np.full(len(block_of), rate), block_of, places, rng)  # type: ignore[arg-type]
    assert found.tolist() == expected


def test_the_length_of_a_masked_tail_is_uniform() -> None:
    counts = counts_of(Noising(mask_places="tail"), length=4, block_size=4, draws=2000, per="block")
    expected = counts.sum() / len(counts)
    assert ((counts - expected) ** 2 / expected).sum() < 4 + 4 * np.sqrt(2 * 4)


@given(rows(), NOISINGS, st.integers(1, 8), st.integers(0, 99))
def test_a_copy_and_its_complement_mask_everything_once(row: Row, noising: Noising, block_size: int, seed: int) -> None:
    noising = replace(noising, noisy_copies=4, complementary_masks=True, full_mask_share=0.0, random_offsets=0.5)
    half = noised(row, noising, block_size=block_size, seed=seed)
    bounds = _bounds_of_copies(half, row, noising)
    assert len(bounds) == 3
    for name in NoisyHalf.__dataclass_fields__:
        copies = np.split(getattr(half, name), bounds)
        for first, second in ((copies[0], copies[1]), (copies[2], copies[3])):
            if name == "is_masked":
                assert (first ^ second).all()
            elif name not in ("input_ids", "block_ids"):
                assert np.array_equal(first, second), name


def _bounds_of_copies(half: NoisyHalf, row: Row, noising: Noising) -> list[int]:
    """Where the second, third and fourth copies begin: a copy begins where the first run does, once more."""
    first = runs_by_hand(row, noising.noise_on)[0][0]
    start = (int(row.document_ids[first]), int(row.position_ids[first]))
    places = zip(half.document_ids.tolist(), half.position_ids.tolist(), strict=True)
    return [i for i, place in enumerate(places) if place == start][1:]


def test_blocks_that_are_masked_whole() -> None:
    """As many as asked for, in each copy; a complement masks at least what its copy reveals."""
    row = pack([Document([5] * 64, [True] * 64)], row_length=64, pad_token_id=END)[0]
    assert noised(row, Noising(full_mask_share=1.0), block_size=8).is_masked.all()
    noising = Noising(mask_rate_per="block", noisy_copies=2, complementary_masks=True, full_mask_share=0.3)
    halves = np.stack([noised(row, noising, block_size=8, seed=s).is_masked.reshape(2, 8, 8) for s in range(300)])
    whole = halves.all(axis=-1).mean(axis=(0, 2))
    expected = 0.3 + 0.7 / 9  # and one in nine where the number of masked tokens is uniform in 0..8
    assert whole == pytest.approx([expected, expected], abs=4 * np.sqrt(0.25 / 2400))
    assert (halves[:, 0] | halves[:, 1]).all()
