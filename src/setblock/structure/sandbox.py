"""A sandbox that compiles forms in a separate process, within limits of time, memory and stack, before this process does.

llguidance is native code that recurses. A client's form could overflow its stack, which ends the process without a message, or
make it compute for minutes, and a thread can't be stopped. A form that passed the sandbox takes no more in this process, whose
stack is eight times as large. The process of the sandbox reads the vocabulary once, and forks a child for each form.
"""

import json
import os
import resource
import signal
import subprocess
import sys
import threading
import weakref
from contextlib import suppress
from pathlib import Path
from typing import IO, TYPE_CHECKING

from setblock.errors import SetBlockError
from setblock.structure.compile import compile_form
from setblock.structure.kinds import Structure, structure_of

if TYPE_CHECKING:
    from llguidance import LLTokenizer

MAX_SECONDS = 1
"""Seconds of one core. The largest usual forms take a tenth of it."""
MAX_MEMORY = 32 << 20
"""Bytes, on Linux. 128 tools of eight arguments take a third of it."""
STACK = 1 << 20
"""Bytes. The threads of this process have 8 MiB by default."""
_MAX_WAIT = 30  # seconds of wall-clock time, if the machine is busy


class Sandbox:
    """A process that tries forms for one vocabulary, one at a time. It starts with the first form and ends with this object."""

    def __init__(self, tokenizer: str, eos_token: int | list[int] | None) -> None:
        """Take the text of a `tokenizer.json`, and the ids of the tokens that end a text."""
        self._head = json.dumps([tokenizer, eos_token])
        self._lock = threading.Lock()
        self._process: subprocess.Popen[str] | None = None

    def fault(self, structure: Structure) -> str | None:
        """Return why a form can't be used, or None if it can. Raise `SetBlockError` if something else ended the process."""
        with self._lock:
            if self._process is None or self._process.poll() is not None:
                self._process = self._started()
            stdin, stdout = self._process.stdin, self._process.stdout
            assert stdin is not None and stdout is not None
            with suppress(BrokenPipeError):
                stdin.write(json.dumps({structure.word: _value_of(structure)}) + "\n")
                stdin.flush()
            reply = stdout.readline()
        if not reply:
            raise SetBlockError(f"{structure.word} was not compiled: the process that does it has ended; try again")
        fault: str | None = json.loads(reply)
        return fault

    def _started(self) -> subprocess.Popen[str]:
        # Its own session, so that signals of the terminal reach the parent alone, which closes the pipe when it ends
        process = subprocess.Popen(
            [sys.executable, "-P", "-c", f"from {__name__} import main; main()"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            encoding="utf-8",
            start_new_session=True,
            env={**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))},
        )
        weakref.finalize(self, _end, process)
        assert process.stdin is not None
        with suppress(BrokenPipeError):
            process.stdin.write(self._head + "\n")
            process.stdin.flush()
        return process


def _end(process: subprocess.Popen[str]) -> None:
    process.kill()
    process.communicate()


def _value_of(structure: Structure) -> object:
    return next(iter(vars(structure).values()), True)


# In the process of the sandbox


def main() -> None:
    """Read a tokenizer and then forms from stdin, one a line. Write to stdout, for each form, why it can't be used, or null."""
    from llguidance import LLTokenizer

    tokenizer, eos_token = json.loads(sys.stdin.readline())
    vocabulary = LLTokenizer(tokenizer, eos_token=eos_token)
    os.nice(5)  # the model's passes have priority
    for line in sys.stdin:
        print(json.dumps(_trial(vocabulary, line)), flush=True)


def _trial(vocabulary: "LLTokenizer", line: str) -> str | None:
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        os.close(reading)
        _in_child(vocabulary, line, writing)
    os.close(writing)
    with os.fdopen(reading, encoding="utf-8") as pipe:
        reply = pipe.read()
    _, status = os.waitpid(child, 0)
    if os.WIFEXITED(status) and os.WEXITSTATUS(status) == 0:
        return reply or None
    (word,) = json.loads(line)
    return f"{word} is too complex: {_reason(status)}"


def _reason(status: int) -> str:
    ended_by = os.WTERMSIG(status) if os.WIFSIGNALED(status) else None
    if ended_by in (signal.SIGXCPU, signal.SIGALRM):
        return f"its grammar takes more than {MAX_SECONDS} s to compile"
    if ended_by in (signal.SIGSEGV, signal.SIGBUS):
        return "its parts refer to one another too deeply"
    return f"its grammar takes more than {MAX_MEMORY >> 20} MiB"


def _in_child(vocabulary: "LLTokenizer", line: str, writing: int) -> None:
    """Compile a form within the limits, write what is wrong with it, and end the process."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), 2)  # native code writes to stderr when it fails
    with os.fdopen(writing, "w", encoding="utf-8") as pipe:
        _limit()
        threading.stack_size(STACK)
        thread = threading.Thread(target=_compile, args=(vocabulary, line, pipe))
        thread.start()
        thread.join()
    os._exit(1)  # the thread has ended without `_exit(0)`


def _limit() -> None:
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    resource.setrlimit(resource.RLIMIT_CPU, (MAX_SECONDS, MAX_SECONDS + 1))
    signal.alarm(_MAX_WAIT)
    if sys.platform == "linux":
        data_pages = int(Path("/proc/self/statm").read_text().split()[5])
        most = data_pages * resource.getpagesize() + STACK + MAX_MEMORY
        resource.setrlimit(resource.RLIMIT_DATA, (most, most))


def _compile(vocabulary: "LLTokenizer", line: str, pipe: IO[str]) -> None:
    fault = ""
    try:
        made = compile_form(vocabulary, structure_of(json.loads(line)))
        made.deep_copy().compute_bitmask()
        del made
    except SetBlockError as error:
        fault = str(error)
    pipe.write(fault)
    pipe.flush()
    os._exit(0)
