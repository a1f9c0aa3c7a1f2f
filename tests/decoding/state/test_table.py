"""Rows of the table are the states that were written there, whatever else is written, changed or replaced by wider tensors."""

import random
from dataclasses import fields
from typing import Any

import pytest
import torch

from setblock.decoding.settings.table import DecodingSettings, RequestParams
from setblock.decoding.state.joining import open_state
from setblock.decoding.state.state import BatchState
from setblock.decoding.state.table import StateTable
from setblock.model.protocol.sbd_config import SBDModelConfig

CONFIG = SBDModelConfig(mask_token_id=99, block_sizes=(4,))
CPU = torch.device("cpu")


def request(rng: random.Random) -> tuple[BatchState, RequestParams]:
    """A request's state, changed as passes might have changed it."""
    length, size = rng.randrange(1, 300), rng.choice([1, 4, 9])
    settings = DecodingSettings(
        method=rng.choice(["ntp", "sbd", "exact"]),
        logprobs=rng.choice([None, None, 0, 3]),
        temperature=rng.random(),
        seed=rng.randrange(2**40),
    )
    ends = tuple(range(rng.randrange(1, 4)))
    params = RequestParams(settings, block_size=size, prompt_length=length, limit=length + 40, ends=ends)
    state = open_state([[rng.randrange(90) for _ in range(length)]], [params], sbd_config=CONFIG, device=CPU)
    assert state.record is not None
    for group in (state.cache, state.block, state.answer, state.record):
        for name, value in list(vars(group).items()):
            if value.dtype == torch.bool:
                setattr(group, name, torch.rand(value.shape) > 0.5)
            elif value.is_floating_point():
                setattr(group, name, torch.rand(value.shape))
            elif name != "positions":
                setattr(group, name, torch.randint(0, 50, value.shape))
    if rng.random() < 0.5:
        state.first_logits = torch.rand(1, 100)
    return state, params


def tensors(state: BatchState) -> dict[str, torch.Tensor]:
    found = {"tokens": state.tokens, "first_logits": state.first_logits}
    for name in ("cache", "block", "answer", "record"):
        group = getattr(state, name)
        found |= {f"{name}.{each.name}": getattr(group, each.name) for each in fields(group) if each.init}
    wanted = ("prompt_length", "limit", "ends", "block_size", "is_ntp", "is_exact", "seeds", "prompt_lookup")
    return found | {name: getattr(state.params, name) for name in wanted}


def assert_has(loaded: BatchState, row: int, one: BatchState) -> None:
    """A row has all that its own state has; a wider tensor has zeros, or no token, behind it."""
    ours = tensors(loaded)
    for name, value in tensors(one).items():
        part: Any = ours[name][row]
        for dim, size in enumerate(value.shape[1:]):
            part = part.narrow(dim, 0, size)
        assert torch.equal(part, value[0]), name
        if name == "ends":
            assert (ours[name][row, value.shape[1] :] == -1).all()


@pytest.mark.parametrize("seed", range(8))
def test_rows_are_what_was_written(seed: int) -> None:
    rng = random.Random(seed)
    torch.manual_seed(seed)
    table, held = StateTable(4, sbd_config=CONFIG, device=CPU), dict[int, tuple[BatchState, RequestParams]]()
    for _ in range(25):
        row = rng.randrange(4)
        held[row] = request(rng)
        table.write(row, held[row][0])
        rows = rng.sample(sorted(held), k=rng.randint(1, len(held)))
        loaded = table.load(torch.tensor(rows), [held[each][1] for each in rows])
        for place, each in enumerate(rows):
            assert_has(loaded, place, held[each][0])
        # A pass changes the rows, and they are stored
        loaded.cache.committed = loaded.cache.committed + 1
        loaded.block.revealed = ~loaded.block.revealed
        table.store(torch.tensor(rows), loaded)
        for each in rows:
            state = held[each][0]
            state.cache.committed = state.cache.committed + 1
            state.block.revealed = ~state.block.revealed
    assert table.version > 0


def test_without_records_the_table_keeps_its_own() -> None:
    rng = random.Random(1)
    torch.manual_seed(1)
    table, (state, params) = StateTable(2, sbd_config=CONFIG, device=CPU), request(rng)
    table.write(1, state)
    rows = torch.tensor([1])
    loaded = table.load(rows, [params], records=False)
    assert loaded.record is None
    loaded.cache.committed = loaded.cache.committed + 5
    table.store(rows, loaded)
    state.cache.committed += 5
    assert_has(table.load(rows, [params]), 0, state)


def test_a_row_may_come_without_a_record() -> None:
    """Before those with one and after, and longer."""
    rng = random.Random(2)
    torch.manual_seed(2)
    table, held = StateTable(4, sbd_config=CONFIG, device=CPU), [request(rng) for _ in range(4)]
    kept = [state.record for state, _ in held]
    for row, (state, _) in enumerate(held):
        state.record = None if row % 2 == 0 else state.record
        table.write(row, state)
    loaded = table.load(torch.arange(4), [params for _, params in held])
    for row in (1, 3):
        assert_has(loaded, row, held[row][0])
    table.store(torch.arange(4), loaded)
    held[0][0].record = kept[0]
    table.write(0, held[0][0])
    assert_has(table.load(torch.arange(4), [params for _, params in held]), 0, held[0][0])


def test_the_vacant_row_is_finished_and_stays_so() -> None:
    rng = random.Random(1)
    table, (state, params) = StateTable(2, sbd_config=CONFIG, device=CPU), request(rng)
    table.write(0, state)
    loaded = table.load(torch.tensor([0, table.vacant, table.vacant]), [params] * 3)
    assert loaded.answer.finished.tolist()[1:] == [True, True]
    assert loaded.next_end(fuses_commit=True)[1:].tolist() == [0, 0]


def test_a_snapshot_is_put_back() -> None:
    table, (state, params) = StateTable(2, sbd_config=CONFIG, device=CPU), request(random.Random(2))
    table.write(1, state)
    before = table.snapshot()
    loaded = table.load(torch.tensor([1]), [params])
    loaded.tokens = loaded.tokens + 1
    table.store(torch.tensor([1]), loaded)
    assert not table.is_like(before)
    table.restore(before)
    assert table.is_like(before)
    assert_has(table.load(torch.tensor([1]), [params]), 0, state)
