"""The masks, against oracles written as loops over what the paper says in words."""

import itertools
from collections.abc import Callable
from dataclasses import dataclass

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor
from torch.nn.attention.flex_attention import create_block_mask, create_mask, flex_attention
from torch.nn.functional import scaled_dot_product_attention

from setblock.masks import CLEAN, MaskMod, decode_mask, to_block_mask, to_dense, train_mask


@dataclass(frozen=True)
class Token:
    """One place of the doubled input."""

    document: int
    position: int
    block: int | None  # None: clean
    block_start: int = 0


@st.composite
def layouts(draw: st.DrawFn, longest: int = 7) -> list[list[Token]]:
    """Rows of equal length: documents, each a clean half and the blocks of some noisy copies of it."""
    copies, k = draw(st.integers(0, 2)), draw(st.integers(1, 5))
    rows = []
    for _ in range(draw(st.integers(1, 2))):
        lengths = draw(st.lists(st.integers(1, longest), min_size=1, max_size=3))
        row = [Token(d, p, None) for d, n in enumerate(lengths) for p in range(n)]
        blocks = itertools.count()
        for _ in range(copies):
            for document, length in enumerate(lengths):
                for start in range(0, length, k):
                    block = next(blocks)
                    row += [Token(document, p, block, start) for p in range(start, min(start + k, length))]
        rows.append(row)
    longest_row = max(map(len, rows))
    return [row + [Token(-1, 0, None)] * (longest_row - len(row)) for row in rows]


def mask_of(rows: list[list[Token]], window: int | None, device: str = "cpu", *, causal_block: bool = False) -> MaskMod:
    def column(read: Callable[[Token], int]) -> Tensor:
        return torch.tensor([[read(token) for token in row] for row in rows], device=device)

    return train_mask(
        position_ids=column(lambda t: t.position),
        document_ids=column(lambda t: t.document),
        block_ids=column(lambda t: CLEAN if t.block is None else t.block),
        limits=column(lambda t: t.position + 1 if t.block is None else t.block_start),
        window=window,
        causal_block=causal_block,
    )


def may_attend(query: Token, key: Token, window: int | None) -> bool:
    """The table of the paper, section 2."""
    if query.document != key.document:
        return False
    if window is not None and query.position - key.position >= window:
        return False
    if query.block is None:
        return key.block is None and key.position <= query.position
    if key.block is None:
        return key.position < query.block_start
    return key.block == query.block


def dense(rows: list[list[Token]], window: int | None = None) -> Tensor:
    length = len(rows[0])
    return to_dense(mask_of(rows, window), batch=len(rows), queries=length, keys=length)[:, 0]


@given(layouts(), st.one_of(st.none(), st.integers(1, 6)))
def test_a_causal_block_hides_its_later_tokens_and_nothing_else(rows: list[list[Token]], window: int | None) -> None:
    length = len(rows[0])
    mask_mod = mask_of(rows, window, causal_block=True)
    found = to_dense(mask_mod, batch=len(rows), queries=length, keys=length)[:, 0]
    expected = [
        [[may_attend(q, k, window) and (k.block is None or k.position <= q.position) for k in row] for q in row]
        for row in rows
    ]
    assert found.tolist() == expected


@given(layouts(), st.one_of(st.none(), st.integers(1, 6)))
def test_train_mask_is_the_papers_table(rows: list[list[Token]], window: int | None) -> None:
    expected = [[[may_attend(q, k, window) for k in row] for q in row] for row in rows]
    assert dense(rows, window).tolist() == expected


@given(layouts(), st.one_of(st.none(), st.integers(1, 6)))
def test_no_query_is_left_without_a_key(rows: list[list[Token]], window: int | None) -> None:
    assert dense(rows, window).any(dim=-1).all()


@given(
    committed=st.lists(st.tuples(st.integers(0, 9), st.integers(0, 5), st.integers(0, 5)), min_size=1, max_size=3),
    window=st.one_of(st.none(), st.integers(1, 6)),
)
def test_decode_mask_for_prefill_block_and_fused_pass(
    committed: list[tuple[int, int, int]], window: int | None
) -> None:
    """A row feeds `causal` tokens after what is committed (prefill, commit) and then a block of `k` (either may be 0)."""
    rows = [(held, causal, k) for held, causal, k in committed if causal + k]
    if not rows:
        return
    length = max(causal + k for _, causal, k in rows)
    keys = max(sum(row) for row in rows) + 2  # slots that hold nothing of the row are there too
    positions, limits = torch.zeros(len(rows), length, dtype=torch.long), torch.ones(len(rows), length).long()
    expected = torch.zeros(len(rows), length, keys, dtype=torch.bool)
    for b, (held, causal, k) in enumerate(rows):
        for q in range(causal + k):
            position, end = held + q, held + causal + k
            positions[b, q] = position
            limits[b, q] = position + 1 if q < causal else end
            for slot in range(keys):
                in_reach = window is None or position - slot < window
                expected[b, q, slot] = in_reach and (slot <= position if q < causal else slot < end)
    found = to_dense(
        decode_mask(position_ids=positions, limits=limits, window=window), batch=len(rows), queries=length, keys=keys
    )
    for b, (_, causal, k) in enumerate(rows):
        assert torch.equal(found[b, 0, : causal + k], expected[b, : causal + k])


@pytest.fixture
def long_rows() -> list[list[Token]]:
    """Two rows of 300 tokens: more than one of FlexAttention's blocks of 128."""
    rows = []
    for lengths, k in (((70, 50, 30), 8), ((97, 53), 5)):
        row = [Token(d, p, None) for d, n in enumerate(lengths) for p in range(n)]
        blocks = [(d, s, min(s + k, n)) for d, n in enumerate(lengths) for s in range(0, n, k)]
        row += [Token(d, p, b, s) for b, (d, s, e) in enumerate(blocks) for p in range(s, e)]
        rows.append(row)
    return rows


@pytest.mark.parametrize("window", [None, 17])
def test_block_mask_equals_dense_mask(long_rows: list[list[Token]], window: int | None) -> None:
    length = len(long_rows[0])
    expected = dense(long_rows, window)
    block_mask = to_block_mask(mask_of(long_rows, window), batch=2, queries=length, keys=length)
    assert torch.equal(create_mask(block_mask.mask_mod, 2, 1, length, length, device="cpu")[:, 0], expected)

    size = block_mask.BLOCK_SIZE[0]
    blocks = block_mask.to_dense()[:, 0].bool()
    for b, q, kv in itertools.product(range(2), range(blocks.shape[1]), range(blocks.shape[2])):
        part = expected[b, q * size : (q + 1) * size, kv * size : (kv + 1) * size]
        assert bool(blocks[b, q, kv]) == bool(part.any())


@pytest.mark.parametrize("window", [None, 17])
@pytest.mark.parametrize("pairs_at_once", [1, 1 << 17, 1 << 30])
def test_block_mask_is_flex_attentions_own(
    long_rows: list[list[Token]], window: int | None, pairs_at_once: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Tile for tile what `create_block_mask` makes, however many rows of tiles are evaluated at a time."""
    monkeypatch.setattr("setblock.masks._PAIRS_AT_ONCE", pairs_at_once)
    queries, keys = len(long_rows[0]) - 5, len(long_rows[0])
    mask_mod = mask_of(long_rows, window)
    ours = to_block_mask(mask_mod, batch=2, queries=queries, keys=keys)
    theirs = create_block_mask(mask_mod, B=2, H=None, Q_LEN=queries, KV_LEN=keys, device="cpu")
    assert ours.shape == theirs.shape
    for name in ("kv", "full_kv", "q", "full_q"):
        count, order = f"{name}_num_blocks", f"{name}_indices"
        assert torch.equal(getattr(ours, count), getattr(theirs, count)), name
        for wanted, mine, their in zip(
            getattr(ours, count).flatten(),
            getattr(ours, order).flatten(0, 2),
            getattr(theirs, order).flatten(0, 2),
            strict=True,
        ):
            assert torch.equal(mine[:wanted], their[:wanted]), name


def test_a_block_mask_is_made_of_few_rows_at_a_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """No tensor of queries x keys is ever made: at 32k tokens and as many noisy ones it would be 4 GiB of booleans."""
    length, at_once, evaluated = 4096, 1 << 20, 0
    monkeypatch.setattr("setblock.masks._PAIRS_AT_ONCE", at_once)

    def mask_mod(b: Tensor, h: Tensor, q_idx: Tensor, kv_idx: Tensor) -> Tensor:
        nonlocal evaluated
        assert q_idx.numel() * kv_idx.numel() <= at_once
        evaluated += q_idx.numel()
        return q_idx >= kv_idx

    block_mask = to_block_mask(mask_mod, batch=1, queries=length, keys=length)
    assert evaluated == length
    assert int(block_mask.kv_num_blocks.sum()) == 32  # tiles on the diagonal
    assert int(block_mask.full_kv_num_blocks.sum()) == 32 * 31 / 2


@pytest.mark.filterwarnings("ignore:flex_attention called without torch.compile")
@pytest.mark.parametrize("window", [None, 17])
def test_flex_attention_equals_sdpa(long_rows: list[list[Token]], window: int | None) -> None:
    """Outputs; and gradients where FlexAttention has them, which is not on CPUs."""
    on_gpu = torch.cuda.is_available()
    device = "cuda" if on_gpu else "cpu"
    length, mask_mod = len(long_rows[0]), mask_of(long_rows, window, device=device)
    block_mask = to_block_mask(mask_mod, batch=2, queries=length, keys=length, device=device)
    index = torch.arange(length, device=device)
    allowed = to_dense(mask_mod, batch=2, queries=length, keys=length, index=index)
    generator = torch.Generator().manual_seed(0)
    q, k, v, upstream = (torch.randn(2, 2, length, 8, generator=generator).to(device) for _ in range(4))
    states = [s.requires_grad_(on_gpu) for s in (q, k, v)]
    flex = flex_attention(q, k, v, block_mask=block_mask)
    sdpa = scaled_dot_product_attention(q, k, v, attn_mask=allowed)
    torch.testing.assert_close(flex, sdpa, atol=1e-5, rtol=1e-4)
    if on_gpu:
        for ours, theirs in zip(*(torch.autograd.grad(o, states, upstream) for o in (flex, sdpa)), strict=True):
            torch.testing.assert_close(ours, theirs, atol=1e-4, rtol=1e-3)
