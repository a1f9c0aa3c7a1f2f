"""Hostile programs are contained, each by name, and what runs after them runs as if they had not been there."""

import os
import platform
import shutil
import signal
import subprocess
import sys
import textwrap
import threading
import time
from pathlib import Path

import pytest

import setblock
from evaluation.escapes import ESCAPES
from setblock.errors import ParameterError
from setblock.evaluation.sandbox import LEVELS, Limits, SandboxError, run, run_all
from setblock.evaluation.sandbox import outside as sandbox
from setblock.evaluation.sandbox.seccomp import UnknownMachineError, _program

if platform.system() != "Linux":
    pytest.skip("the sandbox is Linux's", allow_module_level=True)

PATIENT = Limits(seconds=600)  # a machine may be busy
VARIANTS = {
    "confined": {"level": "confined"},
    "Landlock of Linux 5.13": {"level": "confined", "landlock_abi": 1},  # which lets truncate what may be read
    "files-readable": {"level": "files-readable"},
}


@pytest.fixture
def secret(tmp_path):
    path = tmp_path / "secret"
    path.write_text("secret")
    return path


def hostile(code: str, **named: object) -> str:
    return "".join(f"{name} = {value!r}\n" for name, value in named.items()) + textwrap.dedent(code)


@pytest.mark.parametrize("variant", VARIANTS)
def test_every_way_out_is_closed(variant, secret):
    program = hostile(ESCAPES, SECRET=str(secret), LEVEL=VARIANTS[variant]["level"])
    outcome = run(program, limits=PATIENT, **VARIANTS[variant])
    assert (outcome.status, outcome.reason) == ("finished", ""), outcome.stdout + outcome.stderr
    assert int(outcome.stdout) >= 50  # and nothing has escaped
    assert secret.read_text() == "secret"
    assert secret.stat().st_mode & 0o777 != 0o777
    assert os.listdir(secret.parent) == ["secret"]
    assert not Path("/tmp/setblock-escaped").exists()


def test_the_ways_out_are_open_without_the_sandbox(secret):
    """Else the test above would prove nothing: a few that do no harm, in a process that is not confined."""
    harmless = ["fork", "make a socket pair", "write a file", "read the secret", "start a thread", "open the parent"]
    start = hostile(ESCAPES, SECRET=str(secret), LEVEL="confined").split("for name, escape")[0]
    program = start + f"for name in {harmless}:\n    ESCAPES[name]() == 0 and os._exit(0)\nsys.stdout.write('out')"
    done = subprocess.run(
        [sys.executable, "-c", program], cwd=secret.parent, capture_output=True, text=True, check=False
    )
    assert done.stdout.split() == ["out"], done.stderr


def test_files_readable_is_what_it_says(secret):
    program = hostile("print(open(SECRET).read())", SECRET=str(secret))
    assert run(program, limits=PATIENT).reason.startswith("PermissionError")
    assert run(program, limits=PATIENT, level="files-readable").stdout == "secret\n"


FORK_BOMB = """
import os
for _ in range(10):  # enough to tell, few enough to survive a broken sandbox
    try:
        os.fork()
    except PermissionError:
        continue
    print("forked")
"""
ENDLESS = {
    "loop": "while True: pass",
    "sleep": "import time\nwhile True: time.sleep(1000)",
    "deaf loop": "import signal\nfor n in (2, 15, 24): signal.signal(n, signal.SIG_IGN)\nwhile True: pass",
    "stopped": "import os, signal\nos.kill(os.getpid(), signal.SIGSTOP)",
    "waits for input": "import sys, os\nos.dup2(os.pipe()[0], 0)\nsys.stdin.read()",
    "exception": "class E(Exception):\n    def __str__(self):\n        while True: pass\nraise E",
}


@pytest.mark.parametrize("name", ENDLESS)
def test_endless_programs_are_killed_in_time(name):
    outcome = run(ENDLESS[name], limits=Limits(seconds=1, cpu_seconds=30))
    assert (outcome.status, outcome.reason) == ("timed out", "after 1 seconds")


def test_computing_too_long_is_killed_by_the_kernel():
    outcome = run(ENDLESS["loop"], limits=Limits(seconds=600, cpu_seconds=1))
    assert (outcome.status, outcome.reason) == ("killed", "SIGXCPU: 1 CPU seconds are over")
    outcome = run(ENDLESS["deaf loop"], limits=Limits(seconds=600, cpu_seconds=1))
    assert (outcome.status, outcome.reason) == ("killed", "SIGKILL")


EXCESSES = {
    "memory at once": ("bytearray(1 << 40)", "MemoryError"),
    "memory bit by bit": ("hoard = []\nwhile True: hoard.append(bytearray(1 << 20))", "MemoryError"),
    "mapped memory": ("import mmap\nmmap.mmap(-1, 1 << 40)", "OSError: [Errno 12]"),
    "files": ("import os\nopen_ = [os.dup(1) for _ in range(1000)]", "OSError: [Errno 24]"),
    "output": ("while True: print('spam' * 1000)", "OSError: [Errno 27]"),
    "errors": ("import sys\nwhile True: sys.stderr.write('spam' * 1000)", "OSError: [Errno 27]"),
    "a hole in the output": ("import os\nos.lseek(1, 1 << 40, 0)\nos.write(1, b'end')", "OSError: [Errno 27]"),
    "recursion": ("def f(): f()\nf()", "RecursionError"),
    "nesting": ("(" * 100_000, "SyntaxError"),
    "nothing that compiles": ("\0 \ud800", "SyntaxError"),
}


@pytest.mark.parametrize("name", EXCESSES)
def test_excesses_fail_where_they_are_committed(name):
    program, reason = EXCESSES[name]
    limits = Limits(seconds=600, cpu_seconds=30, memory=256 << 20, output=10_000)
    outcome = run(program, limits=limits)
    assert outcome.status == "raised"
    assert outcome.reason.startswith(reason)
    assert len(outcome.stdout) <= 10_000
    assert len(outcome.stderr) <= 10_000


@pytest.mark.parametrize(
    ("program", "status", "reason"),
    [
        ("print('done')", "finished", ""),
        ("assert 1 + 1 == 3, 'sum'", "raised", "AssertionError: sum"),
        ("raise ValueError('two\\nlines')", "raised", "ValueError: two lines"),
        ("raise KeyboardInterrupt", "raised", "KeyboardInterrupt"),
        ("import sys; sys.exit()", "exited", "None"),
        ("import sys; sys.exit('no')", "exited", "'no'"),
        ("import os; os._exit(0)", "exited", "0"),  # before the tests below it: has not passed them
        ("import os; os._exit(7)", "exited", "7"),
        ("import ctypes; ctypes.string_at(0)", "killed", "SIGSEGV"),
        ("import os; os.abort()", "killed", "SIGABRT"),
        ("import os; os.kill(os.getpid(), 9)", "killed", "SIGKILL"),
        ("import os; os.closerange(0, 100)", "exited", "120"),
    ],
)
def test_how_a_program_ended(program, status, reason):
    outcome = run(program, limits=PATIENT)
    assert (outcome.status, outcome.reason) == (status, reason)
    assert outcome.finished == (status == "finished")


def test_input_output_and_traceback():
    outcome = run(
        "import sys\nprint(input().upper())\nsys.stdout.flush()\nsys.stdout.buffer.write(b'\\xff')\n1/0",
        stdin="hé\n",
        limits=PATIENT,
    )
    assert outcome.stdout == "HÉ\n\ufffd"
    assert 'File "program.py", line 5, in <module>\n    1/0' in outcome.stderr
    assert "inside.py" not in outcome.stderr


def test_programs_find_a_usual_world(monkeypatch):
    monkeypatch.setenv("API_KEY", "sesame")
    program = """
        import collections, dataclasses, datetime, decimal, fractions, functools, heapq, itertools, json, math, pickle, random
        import re, statistics, string, sys, typing, zoneinfo
        import numpy as np
        @dataclasses.dataclass
        class Point:
            x: int
        assert pickle.loads(pickle.dumps(Point(3))) == Point(3)
        assert __name__ == "__main__" and sys.argv == ["program.py"]
        assert not any(name.split(".")[0] == "setblock" for name in sys.modules)
        assert np.linalg.inv(np.eye(50)).sum() == 50
        with open("/dev/null", "w") as nowhere:
            print("spam", file=nowhere)
        import os
        assert os.listdir() == ["program.py"] and "API_KEY" not in os.environ
        print(list({"a", "b", "c", "d", "e"}))
        """
    outcomes = [run(textwrap.dedent(program), limits=PATIENT) for _ in range(2)]
    assert [outcome.reason for outcome in outcomes] == ["", ""]
    assert outcomes[0].stdout == outcomes[1].stdout


def test_an_evaluation_goes_on_among_hostile_programs():
    good = "print(sum(range(10)))"
    programs = [
        good,
        ENDLESS["loop"],
        good,
        FORK_BOMB,
        "import os, signal; os.kill(os.getppid(), signal.SIGKILL)",
        good,
    ]
    counts: list[int] = []
    outcomes = run_all(programs, limits=Limits(seconds=600, cpu_seconds=2), workers=2, on_progress=counts.append)
    assert [outcome.stdout for outcome in outcomes] == ["45\n", "", "45\n", "", "", "45\n"]
    statuses = ["finished", "killed", "finished", "finished", "raised", "finished"]
    assert [outcome.status for outcome in outcomes] == statuses
    assert counts == [1, 2, 3, 4, 5, 6]


def test_nothing_is_left_behind():
    folders = {path.name for path in Path("/tmp").glob("setblock-*")}
    descriptors = len(os.listdir("/proc/self/fd"))
    run_all([ENDLESS["sleep"], "print(1)", "1/0"], limits=Limits(seconds=1))
    assert {path.name for path in Path("/tmp").glob("setblock-*")} <= folders
    assert len(os.listdir("/proc/self/fd")) == descriptors
    with pytest.raises(ChildProcessError):  # no child, and no zombie
        os.waitpid(-1, os.WNOHANG)


def test_an_interruption_kills_the_program():
    before = signal.signal(signal.SIGINT, signal.default_int_handler)  # which a shell's background jobs are without
    threading.Timer(1.0, signal.pthread_kill, (threading.get_ident(), signal.SIGINT)).start()
    try:
        with pytest.raises(KeyboardInterrupt):
            run(ENDLESS["sleep"], limits=PATIENT)
    finally:
        signal.signal(signal.SIGINT, before)
    with pytest.raises(ChildProcessError):
        os.waitpid(-1, os.WNOHANG)


def test_it_dies_with_whoever_started_it(tmp_path):
    """The program is a sleeping one; its parent is killed by surprise."""
    starter = (
        "from setblock.evaluation.sandbox import *; run('import time; time.sleep(1000)', limits=Limits(seconds=900))"
    )
    environment = {**os.environ, "PYTHONPATH": str(Path(setblock.__file__).parents[1]), "TMPDIR": str(tmp_path)}
    process = subprocess.Popen([sys.executable, "-c", starter], env=environment)
    children = Path(f"/proc/{process.pid}/task/{process.pid}/children")
    patience = time.monotonic() + 60
    while (
        not (started := children.read_text().split()) or "\0-c\0" not in Path(f"/proc/{started[0]}/cmdline").read_text()
    ):
        assert time.monotonic() < patience
        time.sleep(0.05)
    status = Path(f"/proc/{started[0]}/status")
    while status.exists() and "Seccomp:\t2" not in status.read_text():  # confined by now
        assert time.monotonic() < patience
        time.sleep(0.05)
    process.kill()
    process.wait()
    while Path(f"/proc/{started[0]}").exists() and "State:\tZ" not in status.read_text():
        assert time.monotonic() < patience
        time.sleep(0.05)


def interpreter_for_anyone() -> str | None:
    """One that another user can run and that is new enough."""
    for path in (sys.executable, shutil.which("python3", path="/usr/bin:/usr/local/bin")):
        if path is not None:
            try:
                check = [path, "-c", "import sys; sys.exit(sys.version_info < (3, 11))"]
                if subprocess.run(check, user=65534, capture_output=True, check=False).returncode == 0:
                    return path
            except PermissionError:
                continue
    return None


@pytest.mark.skipif(
    os.name != "posix" or os.getuid() != 0, reason="run by an ordinary user, all of these tests are that"
)
def test_an_ordinary_user_has_the_same_sandbox(tmp_path, secret):
    interpreter = interpreter_for_anyone()
    source = Path(setblock.__file__).parents[1]
    if interpreter is None:
        pytest.skip("no interpreter that another user may run")
    program = hostile(ESCAPES, SECRET=str(secret), LEVEL="confined")
    code = f"import sys; sys.path.insert(0, {str(source)!r}); from setblock.evaluation.sandbox import *; check(); "
    code += f"print(run({program!r}, limits=Limits(seconds=600)))"
    nobody = {"user": 65534, "group": 65534, "extra_groups": [], "env": {}, "cwd": "/"}
    done = subprocess.run([interpreter, "-c", code], **nobody, capture_output=True, text=True, check=False)
    assert "status='finished', reason='', stdout='5" in done.stdout, done.stdout + done.stderr


def test_check_holds_where_these_tests_run():
    sandbox.check()
    sandbox.check("files-readable")


def test_where_it_can_not_be_it_refuses(monkeypatch):
    monkeypatch.setattr(sandbox.sys, "platform", "darwin")
    with pytest.raises(SandboxError, match="can't run programs in a sandbox here: it needs Linux"):
        run("print(1)")


def test_a_kernel_without_landlock_is_no_sandbox():
    with pytest.raises(SandboxError) as refused:
        sandbox._ending(["refused the kernel has no Landlock"], 1, in_time=True, limits=PATIENT, stderr="")
    assert str(refused.value) == (
        "can't run programs in a sandbox here: the kernel has no Landlock; to let them read all files that you can, and "
        "nothing worse, accept the level files-readable"
    )
    with pytest.raises(UnknownMachineError, match="system calls of riscv64 are not known"):
        _program("riscv64", pid=1, no_open_with=0)


@pytest.mark.parametrize("machine", ["x86_64", "aarch64"])
@pytest.mark.parametrize("no_open_with", [0, 0o1000])
def test_jumps_of_the_filter_stay_inside(machine, no_open_with):
    code = _program(machine, pid=12345, no_open_with=no_open_with)
    assert len(code) < 4096
    for place, (kind, holds, does_not, _) in enumerate(code):
        if kind in (0x15, 0x45):
            assert place + 1 + max(holds, does_not) < len(code)
    assert code[-1] == (0x06, 0, 0, 0x00050001)  # what is not named is EPERM


@pytest.mark.parametrize(
    ("field", "value"),
    [("seconds", 0), ("cpu_seconds", 0), ("memory", 1000), ("output", 0), ("open_files", 3), ("seconds", float("nan"))],
)
def test_ranges_of_limits(field, value):
    with pytest.raises(ParameterError, match=f"{field} of a sandbox must be at least .*, not {value}"):
        Limits(**{field: value})


def test_levels_have_names():
    assert LEVELS == ("confined", "files-readable")
    with pytest.raises(ParameterError, match="must be one of confined, files-readable, not 'open'"):
        run("", level="open")
