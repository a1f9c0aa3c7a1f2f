"""Start a confined process from outside of the sandbox, wait for it, end it, and report how it ended.

Knows processes. Knows nothing of how a process confines itself, which is `inside.py`'s.
"""

import json
import os
import platform
import signal
import subprocess
import sys
import sysconfig
import tempfile
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import IO, Literal, get_args

from setblock.errors import ParameterError, SetBlockError, check_one_of

Level = Literal["confined", "files-readable"]
LEVELS: tuple[Level, ...] = get_args(Level)

_MIB = 1 << 20


class SandboxError(SetBlockError):
    """Report that programs can't be confined here as was asked. The message says why, and what else there is."""


@dataclass(frozen=True)
class Limits:
    """Limit what a program may use. All of it together: there is only one process.

    Attributes:
        seconds: wall-clock, the interpreter's start included; then it is killed. More than `cpu_seconds`, so that a verdict
            does not depend on what else a machine does.
        cpu_seconds: of computing; then it gets SIGXCPU, and a second later SIGKILL.
        memory: bytes of address space; more is a MemoryError.
        output: bytes of each, stdout and stderr; more is an OSError.
        open_files: how many at once.
    """

    seconds: float = 30.0
    cpu_seconds: int = 10
    memory: int = 1024 * _MIB
    output: int = _MIB
    open_files: int = 64

    def __post_init__(self) -> None:
        least = {"seconds": 0.01, "cpu_seconds": 1, "memory": 64 * _MIB, "output": 1, "open_files": 16}
        for name, value in least.items():
            if not value <= getattr(self, name) < 1 << 62:
                raise ParameterError(f"{name} of a sandbox must be at least {value}, not {getattr(self, name)}")


@dataclass(frozen=True)
class Outcome:
    """Describe how a program ended.

    Attributes:
        status: `finished`: it ran to its last line. `raised`: an exception ended it. `exited`: it left before its last line, by
            sys.exit or otherwise. `killed`: a signal ended it, such as that of the CPU limit. `timed out`: it ran out of
            wall-clock and was killed.
        reason: the exception, exit code, signal or limit, in a line; empty where it finished.
        stdout: what it wrote; bytes that are not UTF-8 are replaced.
        stderr: the same, with tracebacks.
        seconds: wall-clock.
        level: how it was confined.
    """

    status: Literal["finished", "raised", "exited", "killed", "timed out"]
    reason: str
    stdout: str
    stderr: str
    seconds: float
    level: Level

    @property
    def finished(self) -> bool:
        """Return whether it ran to its last line: for a program that ends in assertions, whether they hold."""
        return self.status == "finished"


def run(
    program: str,
    *,
    stdin: str = "",
    limits: Limits | None = None,
    level: Level = "confined",
    landlock_abi: int | None = None,
) -> Outcome:
    """Run a Python program in a separate process that can harm nobody, and wait for its end.

    Args:
        program: its source, run as `__main__`. May be anything, also what doesn't compile.
        stdin: what it reads from there.
        limits: what it may use.
        level: `confined`, or `files-readable` for kernels without Landlock: there it can read what its user can.
        landlock_abi: be content with this version of Landlock where the kernel has a later one.

    Raises:
        SandboxError: it can't be confined like that here. Nothing of it has run then.
    """
    limits = limits or Limits()
    check_one_of("level of a sandbox", level, LEVELS)
    if sys.platform != "linux":
        raise SandboxError(f"{_CANT}: it needs Linux, and this is {platform.system()}: use a Linux container")
    with (
        tempfile.TemporaryDirectory(prefix="setblock-", ignore_cleanup_errors=True) as folder,
        tempfile.TemporaryFile() as given,
        tempfile.TemporaryFile() as stdout,
        tempfile.TemporaryFile() as stderr,
    ):
        path = Path(folder, "program.py")
        path.write_bytes(program.encode("utf-8", "replace"))  # lone surrogates become question marks
        given.write(stdin.encode("utf-8", "replace"))
        given.seek(0)
        status, told_to = os.pipe()
        try:
            command = _command(path, limits=limits, level=level, landlock_abi=landlock_abi, status=told_to)
            started = time.monotonic()
            process = subprocess.Popen(
                command,
                cwd=folder,
                env=_environment(folder),
                stdin=given,
                stdout=stdout,
                stderr=stderr,
                pass_fds=(told_to,),
                start_new_session=True,
            )
        except BaseException:
            os.close(status)
            raise
        finally:
            os.close(told_to)
        with open(status, "rb") as told:
            in_time = _wait(process, limits.seconds)
            seconds = time.monotonic() - started
            lines = (
                told.read().decode("utf-8", "replace").splitlines()
            )  # as much as a pipe holds: no one writes any more
        texts = [_text(file, limits.output) for file in (stdout, stderr)]
    ending, reason = _ending(lines, process.returncode, in_time=in_time, limits=limits, stderr=texts[1])
    return Outcome(ending, reason, texts[0], texts[1], seconds, level)


def run_all(
    programs: Sequence[str],
    *,
    limits: Limits | None = None,
    level: Level = "confined",
    workers: int | None = None,
    on_progress: Callable[[int], None] | None = None,
) -> list[Outcome]:
    """Run several programs, a few at a time. Arguments and errors as in `run`.

    Args:
        workers: how many at a time; None for the processors there are.
        on_progress: called with the number of outcomes so far, in the order of the programs.

    Returns:
        The outcomes in the order of the programs.
    """
    outcomes = []
    with ThreadPoolExecutor(workers or len(os.sched_getaffinity(0))) as pool:
        for outcome in pool.map(lambda program: run(program, limits=limits, level=level), programs):
            outcomes.append(outcome)
            if on_progress is not None:
                on_progress(len(outcomes))
    return outcomes


@lru_cache
def check(level: Level = "confined") -> None:
    """See whether programs can be confined here, by trying to get out. To be called before anything that takes long.

    Raises:
        SandboxError: they can't.
    """
    outcome = run(_ESCAPES, level=level, limits=Limits(seconds=600.0))
    if not outcome.finished:
        raise SandboxError(f"the sandbox does not hold here: {outcome.reason or outcome.status}")


_ESCAPES = """
import ctypes, os, socket
for escape in (os.fork, socket.socket, lambda: os.kill(os.getppid(), 0), lambda: open("file", "w"), lambda: os.mkdir("folder")):
    try:
        escape()
    except PermissionError:
        continue
    raise SystemExit(f"{escape} was not refused")
"""

_START = "import sys; sys.path.insert(0, {root!r}); from setblock.evaluation.sandbox.inside import main; "
_START += "sys.path[:] = [path for path in sys.path if path != {root!r}] + {packages!r}; main()"


def _command(path: Path, *, limits: Limits, level: Level, landlock_abi: int | None, status: int) -> list[str]:
    places = sysconfig.get_paths()
    packages = list(dict.fromkeys((places["purelib"], places["platlib"])))
    library = [places["stdlib"], places["platstdlib"], f"{sys.base_prefix}/lib"]
    system = "/lib /lib64 /usr/lib /usr/lib64 /usr/local/lib /usr/share/zoneinfo /etc/localtime /etc/ld.so.cache"
    given = {
        "program": str(path),
        "status": status,
        "parent": os.getpid(),
        "level": level,
        "landlock_abi": landlock_abi,
        "readable": [str(path.parent), *packages, *library, *system.split(), "/dev/urandom"],
        "limits": [
            ("RLIMIT_CPU", limits.cpu_seconds, limits.cpu_seconds + 1),
            ("RLIMIT_AS", limits.memory, limits.memory),
            ("RLIMIT_FSIZE", limits.output, limits.output),
            ("RLIMIT_NOFILE", limits.open_files, limits.open_files),
            ("RLIMIT_CORE", 0, 0),
        ],
    }
    root = str(Path(__file__).parents[3])
    start = _START.format(root=root, packages=packages)
    # Nothing of the site: what packages run at the start of an interpreter, they would run unconfined.
    return [sys.executable, "-s", "-S", "-P", "-B", "-c", start, json.dumps(given)]


def _environment(folder: str) -> dict[str, str]:
    """Return the same environment for every program, with nothing of ours: environments hold keys. One thread is all
    that libraries get."""
    threads = {f"{name}_NUM_THREADS": "1" for name in ("OMP", "OPENBLAS", "MKL", "NUMEXPR")}
    python = {"PYTHONHASHSEED": "0", "PYTHONUTF8": "1"}  # an outcome must not depend on the order of a set
    return {"HOME": folder, "LANG": "C.UTF-8", "PATH": os.defpath, "TZ": "UTC", **python, **threads}


def _wait(process: "subprocess.Popen[bytes]", seconds: float) -> bool:
    """Return whether it ended in time. Afterwards it is gone in any case: there is no other process that it could have
    left."""
    try:
        process.wait(seconds)
        return True
    except subprocess.TimeoutExpired:
        return False
    finally:
        process.kill()
        process.wait()


def _ending(
    lines: list[str], code: int, *, in_time: bool, limits: Limits, stderr: str
) -> tuple[Literal["finished", "raised", "exited", "killed", "timed out"], str]:
    first, last = (lines[0], lines[-1]) if lines else ("", "")
    if not in_time:
        return "timed out", f"after {limits.seconds:g} seconds"
    if first.startswith("refused "):
        raise SandboxError(f"{_CANT}: {first.removeprefix('refused ')}{_INSTEAD}")
    if first != "confined":
        told = (stderr.strip().splitlines() or [f"its interpreter ended with {code}"])[-1]
        raise SandboxError(f"{_CANT}: {told}")
    if code < 0:
        name = signal.Signals(-code).name
        return "killed", f"{name}: {limits.cpu_seconds} CPU seconds are over" if name == "SIGXCPU" else name
    if last == "finished" and code == 0:
        return "finished", ""
    if last.startswith("raised "):
        return "raised", last.removeprefix("raised ")
    return "exited", last.removeprefix("exited ") if last.startswith("exited ") else str(code)


_CANT = "can't run programs in a sandbox here"
_INSTEAD = "; to let them read all files that you can, and nothing worse, accept the level files-readable"


def _text(file: IO[bytes], most: int) -> str:
    file.seek(0)
    return file.read(most).decode("utf-8", "replace")
