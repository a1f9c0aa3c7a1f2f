"""Run programs that a model wrote, each in a separate process with limits.

Bubblewrap confines a program: it has no network, sees no other process, and can read only the system's files and Python's.
Where bubblewrap does not run, a warning says so, and only time, memory and output are limited.
"""

import os
import secrets
import shutil
import signal
import subprocess
import sys
import sysconfig
import tempfile
from contextlib import suppress
from functools import lru_cache

from setblock.errors import SetBlockError, warn

_SECONDS = 30.0  # of wall-clock: more than of computing, so that a verdict does not depend on what else a machine does
_LIMITS = {
    "RLIMIT_CPU": 10,  # seconds of computing, for each process
    "RLIMIT_AS": 1 << 30,  # bytes of its address space
    "RLIMIT_FSIZE": 1 << 20,  # bytes of each file that it writes, its output included
    "RLIMIT_CORE": 0,
    "RLIMIT_NPROC": 1,  # no process or thread can be started, but by root
}
_ENVIRONMENT = {  # sets have the same order in each run, and numerical libraries start no thread
    "LC_ALL": "C.UTF-8",
    "PYTHONDONTWRITEBYTECODE": "1",
    "PYTHONHASHSEED": "0",
    **dict.fromkeys(("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"), "1"),
}
# It binds no name that the program could see. The token is written to the descriptor, whatever became of sys.stdout.
_START = """
[__import__("resource").setrlimit(getattr(__import__("resource"), name), (most, most)) for name, most in {limits}.items()]
exec(compile(__import__("sys").stdin.buffer.read(), "program.py", "exec"))
__import__("os").write(1, {token!r})
"""


def check_programs_run() -> None:
    """Raise `SetBlockError` if programs can't be run here."""
    _confinement()


def finishes(program: str) -> bool:
    """Run a Python program, and return whether it ran to its last line. A program that exits earlier has failed, whatever its
    exit code. Raise `SetBlockError` if programs can't be run here."""
    return _run(program, _confinement(), _SECONDS)[0]


_BUBBLEWRAP = (
    "--die-with-parent --unshare-all --new-session --cap-drop ALL --proc /proc --dev /dev --tmpfs /tmp --chdir /tmp"
)


@lru_cache
def _confinement() -> tuple[str, ...]:
    """Return the prefix of a program's command: bubblewrap's, or nothing, with a warning, where bubblewrap does not run."""
    bubblewrap = shutil.which("bwrap")
    why = "it is not installed (apt install bubblewrap)"
    if bubblewrap is not None:
        paths = ["/usr", "/lib", "/lib64", "/bin", "/etc/ld.so.cache", "/etc/localtime", sys.base_prefix, sys.prefix]
        paths += [sysconfig.get_path(name) for name in ("stdlib", "purelib", "platlib")]
        readable = [word for path in dict.fromkeys(paths) for word in ("--ro-bind-try", path, path)]
        confined = (bubblewrap, *readable, *_BUBBLEWRAP.split())
        finished, why = _run("import numpy", confined, 60.0)
        if finished:
            return confined
    finished, error = _run("import json", (), 60.0)
    if not finished:
        raise SetBlockError(f"can't run programs with limits here ({error}): coding tasks are judged on Linux")
    warn(f"programs that the model wrote run without bubblewrap, so they can use your files and the network: {why}")
    return ()


def _run(program: str, confined: tuple[str, ...], seconds: float) -> tuple[bool, str]:
    """Return whether a program ran to its last line, and the last line of its errors."""
    token = secrets.token_bytes(16)
    start = _START.format(limits=_LIMITS, token=token)
    with (
        tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as folder,
        tempfile.TemporaryFile() as output,
        tempfile.TemporaryFile() as errors,
    ):
        process = subprocess.Popen(
            [*confined, sys.executable, "-sP", "-c", start],
            cwd=folder,
            env=_ENVIRONMENT,
            stdin=subprocess.PIPE,
            stdout=output,
            stderr=errors,
            start_new_session=True,
        )
        try:
            process.communicate(program.encode("utf-8", "replace"), timeout=seconds)
        except subprocess.TimeoutExpired:
            return False, f"after {seconds:g} seconds"
        finally:
            with suppress(ProcessLookupError):  # kill processes that it started and left behind
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()
        output.seek(0)
        errors.seek(0)
        lines = errors.read().decode("utf-8", "replace").strip().splitlines()
        return token in output.read(), lines[-1] if lines else f"exit code {process.returncode}"
