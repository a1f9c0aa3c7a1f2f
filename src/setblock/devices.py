"""Device utilities: checks, copies to the host that don't wait, and the time of passes."""

import time
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from setblock.errors import SetBlockError


def waits(device: torch.device) -> bool:
    """Return whether the host has to wait for the device to read a value. On a CPU it never does."""
    return device.type != "cpu"


def check(device: torch.device) -> None:
    """Raise `SetBlockError` for a type of device on which this package was never run."""
    if device.type not in ("cpu", "cuda", "meta"):
        raise SetBlockError(f"device must be cpu or cuda (cuda:1, ...), not {str(device)!r}: no other was tried")


def current(device: torch.device) -> AbstractContextManager[None]:
    """While active, make a device PyTorch's current one: events are recorded on it, and some kernels run on it whatever the
    device of their tensors."""
    return torch.cuda.device(device) if device.type == "cuda" else nullcontext()


def sent(values: Any, device: torch.device) -> Tensor:
    """Return numbers of the host as a tensor on a device, int64 for integers, without waiting for the device."""
    made = torch.tensor(values)
    return made if device.type == "cpu" else made.pin_memory().to(device, non_blocking=True)


@dataclass(frozen=True)
class Packed:
    """Several tables [B, n] in one tensor, for one copy to the host."""

    values: Tensor  # [B, N] int64; float32 as integers with the same bits
    tables: Sequence[tuple[int, bool]]  # of each, n and whether its numbers are float32


def packed(*tables: Tensor) -> Packed:
    """Pack `tables` [B, n], each bool, int64 or float32."""
    whole = [each.view(torch.int32) if each.is_floating_point() else each for each in tables]
    values = torch.cat(whole, dim=1) if len(whole) > 1 else whole[0]  # int64
    return Packed(values, [(each.shape[1], each.is_floating_point()) for each in tables])


class HostCopy:
    """A copy of packed tables to the host, started at once. If it is read after a further pass was launched, the device does
    not idle: that pass runs while the host reads."""

    def __init__(self, tables: Packed) -> None:
        """Start to copy. On a CPU, the values must not be changed in place before they are read."""
        self._tables, values = tables.tables, tables.values
        self._values, self._arrived = values, None
        if values.device.type != "cpu":
            self._values = torch.empty(values.shape, dtype=values.dtype, pin_memory=True)
            self._values.copy_(values, non_blocking=True)
            with current(values.device):
                self._arrived = torch.Event(device=values.device)
                self._arrived.record()

    def read(self) -> list[list[list[Any]]]:
        """Wait for the copy and return each table's rows: integers (0 and 1 for bool) or floats."""
        if self._arrived is not None:
            self._arrived.synchronize()
        parts = torch.split(self._values, [width for width, _ in self._tables], dim=1)
        pairs = zip(parts, self._tables, strict=True)
        return [(part.int().view(torch.float32) if is_float else part).tolist() for part, (_, is_float) in pairs]


def seconds_of(run: Callable[[], object], device: torch.device) -> float:
    """Call `run` while the device does nothing else, wait for the device, and return the seconds."""
    _wait_for_all(device)
    started = time.perf_counter()
    run()
    _wait_for_all(device)
    return time.perf_counter() - started


def _wait_for_all(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)


class PassClock:
    """A clock for passes. On a CPU it reads the host's clock; on other devices it records events, which are read once they are
    complete, a pass or more later, so that nothing waits."""

    def __init__(self) -> None:
        """Make a clock without any timed passes."""
        self._started: float = 0.0
        self._event: torch.Event | None = None
        self._pending: deque[tuple[torch.Event, torch.Event, Any]] = deque()

    def start(self, device: torch.device) -> None:
        """Start to time a pass."""
        self._event = None if device.type == "cpu" else _recorded(device)
        self._started = time.perf_counter()

    def stop(self, device: torch.device, what: Any) -> list[tuple[Any, float]]:
        """End the pass, labelled `what`. Return the label and the seconds of each pass whose time is known by now."""
        if self._event is None:
            return [(what, time.perf_counter() - self._started)]
        self._pending.append((self._event, _recorded(device), what))
        self._event, found = None, []
        while self._pending and self._pending[0][1].query():
            start, end, earlier = self._pending.popleft()
            found.append((earlier, start.elapsed_time(end) / 1e3))
        return found


def _recorded(device: torch.device) -> torch.Event:
    event = torch.Event(device=device, enable_timing=True)
    event.record()
    return event
