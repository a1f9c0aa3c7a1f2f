"""Several processes that train together, forked from this one: what torchrun starts, without importing all again in each."""

import gc
import os
import signal
import socket
import sys
import time
import traceback
import warnings
from collections.abc import Callable
from pathlib import Path

import torch

TIMEOUT, GRACE = 600, 1  # seconds


def in_processes(count: int, work: Callable[[], None], folder: Path, *, nodes: int = 1) -> list[str]:
    """Do `work` in so many processes of one group (none for a single one), and return what each has written to stdout.

    The environment is the one that torchrun makes on so many nodes. `folder` takes what they write.
    """
    children = _started(count, work, folder, nodes=nodes)
    statuses = [os.waitpid(child, 0)[1] for child in children]
    said = [(folder / f"stdout-{rank}").read_text() for rank in range(count)]
    errors = [(folder / f"stderr-{rank}").read_text() for rank in range(count)]
    assert not any(statuses), "\n".join(text[-3000:] for text in errors)
    return said


def ends_of(count: int, work: Callable[[], None], folder: Path) -> list[int]:
    """Do the same until one process ends, kill the others soon after, as torchrun does, and return how each has ended."""
    children = _started(count, work, folder, nodes=1)
    ends: dict[int, int] = {}
    last = None
    while len(ends) < count:
        for child in set(children) - ends.keys():
            ended, status = os.waitpid(child, os.WNOHANG)
            if ended:
                ends[child] = os.waitstatus_to_exitcode(status)
                last = last or time.monotonic() + GRACE
        if last is not None and time.monotonic() > last:
            for child in set(children) - ends.keys():
                os.kill(child, signal.SIGKILL)
        time.sleep(0.02)
    return [ends[child] for child in children]


def _started(count: int, work: Callable[[], None], folder: Path, *, nodes: int) -> list[int]:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    return [_forked(rank, count, nodes, port, work, folder) for rank in range(count)]


def _forked(rank: int, count: int, nodes: int, port: int, work: Callable[[], None], folder: Path) -> int:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # of forks beside threads, from Python 3.12 on
        child = os.fork()
    if child:
        return child
    code = 1
    try:
        signal.alarm(TIMEOUT)  # one that hangs must not outlive the test
        gc.freeze()  # the garbage collector would copy every page of what this process shares with its parent
        for number, name in ((1, "stdout"), (2, "stderr")):
            os.dup2(os.open(folder / f"{name}-{rank}", os.O_CREAT | os.O_WRONLY | os.O_TRUNC), number)
        sys.stdout, sys.stderr = os.fdopen(1, "w"), os.fdopen(2, "w")
        if count > 1:
            on_node = count // nodes
            names = {
                "RANK": rank,
                "LOCAL_RANK": rank % on_node,
                "GROUP_RANK": rank // on_node,
                "WORLD_SIZE": count,
                "LOCAL_WORLD_SIZE": on_node,
                "MASTER_PORT": port,
            }
            os.environ.update({name: str(value) for name, value in names.items()}, MASTER_ADDR="127.0.0.1")
        # PyTorch makes the thread pool that a fork lost anew at its next use, which must not be by two threads at once
        torch.set_num_threads(1)
        forget_processes()
        work()
        code = 0
    except BaseException:
        traceback.print_exc()
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)


def forget_processes() -> None:
    """Accelerate remembers, for as long as a process lives, how its first run was set up."""
    from accelerate.state import AcceleratorState, GradientState, PartialState

    AcceleratorState._reset_state(reset_partial_state=True)
    PartialState._reset_state()
    GradientState._reset_state()
