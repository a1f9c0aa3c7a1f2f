"""Time passes without waiting for them.

Knows clocks and devices. Knows nothing of what a pass does.
"""

import time
from collections import deque

import torch

from setblock.decoding.drafts.costs import TimedPass


class PassClock:
    """Time passes: on a CPU by a clock, on other devices by events that the device records between its operations. These are
    read when they have been recorded, a pass or more later."""

    def __init__(self) -> None:
        self._started: float = 0.0
        self._event: torch.Event | None = None
        self._pending: deque[tuple[torch.Event, torch.Event, TimedPass]] = deque()

    def start(self, device: torch.device) -> None:
        """Begin to time a pass."""
        self._event = None if device.type == "cpu" else _recorded(device)
        self._started = time.perf_counter()

    def stop(self, device: torch.device, timed: TimedPass) -> list[TimedPass]:
        """End it. Return the passes whose time is known now."""
        if self._event is None:
            return [timed._replace(seconds=time.perf_counter() - self._started)]
        self._pending.append((self._event, _recorded(device), timed))
        self._event, found = None, []
        while self._pending and self._pending[0][1].query():
            start, end, earlier = self._pending.popleft()
            found.append(earlier._replace(seconds=start.elapsed_time(end) / 1e3))
        return found


def _recorded(device: torch.device) -> torch.Event:
    event = torch.Event(device=device, enable_timing=True)
    event.record()
    return event
