"""What the plugin runs in vLLM's steps, counted."""

from collections.abc import Iterator
from contextlib import contextmanager
from statistics import median
from typing import Any

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode, _disable_current_modes

from measuring.operations import _ONLY_MEMORY
from measuring.synchronisations import Synchronisations, as_on_an_accelerator
from setblock_vllm import vllm_api
from setblock_vllm.model_state import BlockSampler, SetBlockModelState


class Counted(TorchDispatchMode):
    """Counts operations, and those in which a host list becomes a tensor."""

    def __init__(self) -> None:
        super().__init__()
        self.operations = self.lists = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        name = func.overloadpacket.__name__
        self.lists += name == "lift_fresh"
        self.operations += not func.is_view and name not in _ONLY_MEMORY
        return func(*args, **(kwargs or {}))


class Steps:
    """What methods of vLLM's model runner run, by kind: a "step" over the requests of the last one, one over "others", a
    "join", a "leave"."""

    def __init__(self) -> None:
        self.counts: dict[str, list[Counted]] = {"step": [], "others": [], "join": [], "leave": []}
        self.waits: list[Any] = []
        self._last: list[str] = []
        self._step = Counted()

    def of(self, method: Any, kind: str | None) -> Any:
        """A method, counted. None: one of a step, which `prepare_attn` begins."""

        def counted(owner: Any, *args: Any, **named: Any) -> Any:
            if kind is not None:
                current = Counted()
                self.counts[kind].append(current)
            elif method.__name__ == "prepare_attn":
                req_ids = list(args[0].req_ids)
                self._step = current = Counted()
                self.counts["step" if req_ids == self._last else "others"].append(current)
                self._last = req_ids
            else:
                current = self._step
            waits = Synchronisations()
            with waits, current:
                result = method(owner, *args, **named)
            self.waits += [dict(waits.counts)] if waits.total else []
            return result

        return counted

    def most(self, kind: str, what: str) -> int:
        """The median of operations, or the most lists."""
        found = [getattr(each, what) for each in self.counts[kind]]
        return int(median(found)) if what == "operations" else max(found)


@contextmanager
def counted(steps: Steps) -> Iterator[None]:
    """Count what the plugin runs in vLLM's steps."""
    build, from_numpy = vllm_api.build_attn_metadata, torch.from_numpy

    def uncounted(function: Any) -> Any:
        def run(*args: Any, **named: Any) -> Any:
            with _disable_current_modes():
                return function(*args, **named)

        return run

    methods = {
        (SetBlockModelState, "prepare_attn"): None,
        (SetBlockModelState, "prepare_inputs"): None,
        (BlockSampler, "__call__"): None,
        (SetBlockModelState, "add_request"): "join",
        (SetBlockModelState, "remove_request"): "leave",
    }
    with pytest.MonkeyPatch.context() as patch, as_on_an_accelerator():
        patch.setitem(vars(vllm_api), "build_attn_metadata", uncounted(build))  # vLLM's own
        patch.setattr(torch, "from_numpy", uncounted(from_numpy))  # what the host keeps
        patch.setattr(vllm_api.DefaultModelState, "add_request", uncounted(vllm_api.DefaultModelState.add_request))
        for (owner, name), kind in methods.items():
            patch.setattr(owner, name, steps.of(getattr(owner, name), kind))
        yield
