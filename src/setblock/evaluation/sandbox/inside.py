"""Confine a sandbox's process, for good, and only then compile and run the program.

Knows the order of things. Knows nothing of who started it but how to report to it, line by line: `confined`, and then
`finished`, `raised` or `exited`. Standard library only, and as little of it as will do, since every program waits for it.
"""

import ctypes
import json
import os
import resource
import signal
import sys
import traceback
import types
from collections.abc import Callable
from typing import Any

from setblock.evaluation.sandbox.landlock import TRUNCATION_SINCE, landlock_abi, restrict_files
from setblock.evaluation.sandbox.seccomp import TRUNCATE, WRITE, restrict_calls

_PR_SET_PDEATHSIG, _PR_SET_NO_NEW_PRIVS = 1, 38
_CAPABILITY_VERSION = 0x20080522
_TOLD = 2000  # characters of an exception that are passed on


def main() -> None:
    """Run the program that the command line's JSON names, confined as it says."""
    given = json.loads(sys.argv[1])
    with open(given["program"], encoding="utf-8") as file:
        source = file.read()

    def tell(line: str) -> None:
        os.write(given["status"], line.replace("\n", " ").encode("utf-8", "replace") + b"\n")

    try:
        _confine(given)
    except OSError as error:
        tell(f"refused {error.strerror or error}")
        os._exit(1)
    tell("confined")
    _run(source, tell)


def _confine(given: dict[str, Any]) -> None:
    """Set limits, then restrict files, then system calls: each step still needs what the next one forbids."""
    libc = ctypes.CDLL(None, use_errno=True)
    libc.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    if os.getppid() != given["parent"]:  # it died before the signal was set up
        os._exit(1)
    for name, soft, hard in given["limits"]:
        kind = getattr(resource, name)
        ceiling = resource.getrlimit(kind)[1]
        most = [value for value in (hard, ceiling) if value != resource.RLIM_INFINITY]
        resource.setrlimit(kind, (min(soft, *most), min(most)))
    if libc.prctl(_PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) != 0:
        raise OSError(ctypes.get_errno(), "the kernel has no no_new_privs")
    header = ctypes.create_string_buffer(_CAPABILITY_VERSION.to_bytes(4, sys.byteorder) + bytes(4), 8)
    if libc.capset(header, ctypes.create_string_buffer(24)) != 0:  # root's powers, where it is root
        raise OSError(ctypes.get_errno(), "capabilities can't be dropped")

    forbidden = WRITE
    if given["level"] == "confined":
        try:
            abi = min(landlock_abi(), given["landlock_abi"] or sys.maxsize)
        except OSError as error:
            raise OSError(error.errno, f"the kernel has no Landlock, or it is off ({error.strerror})") from error
        restrict_files(given["readable"], [os.devnull], abi=abi)
        forbidden = 0 if abi >= TRUNCATION_SINCE else TRUNCATE
    restrict_calls(no_open_with=forbidden)


def _run(source: str, tell: Callable[[str], None]) -> None:
    module = types.ModuleType("__main__")
    sys.modules["__main__"] = module
    sys.argv = ["program.py"]
    for name in [name for name in sys.modules if name.split(".")[0] == "setblock"]:
        del sys.modules[name]
    try:
        exec(compile(source, "program.py", "exec"), module.__dict__)
        sys.stdout.flush()
    except SystemExit as exit_:
        tell(f"exited {exit_.code!r:.100}")
        raise
    except BaseException as error:
        tell(f"raised {traceback.format_exception_only(error)[-1].strip():.{_TOLD}}")
        lines = traceback.format_exception(error.with_traceback(error.__traceback__ and error.__traceback__.tb_next))
        sys.stderr.write("".join(lines))
        sys.exit(1)
    tell("finished")
