"""Programs that a model wrote: which came to their end, what their limits stop, and what bubblewrap keeps from them."""

import os
import platform
import textwrap
import time
import warnings
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from humaneval import programs
from humaneval.programs import finishes
from setblock.errors import SetBlockError, SetBlockWarning

if platform.system() != "Linux":
    pytest.skip("limits on memory are Linux's", allow_module_level=True)


def finish(sources: Sequence[str]) -> list[bool]:
    """Run programs beside each other."""
    with ThreadPoolExecutor() as pool:
        return list(pool.map(finishes, sources))


def limit(monkeypatch: pytest.MonkeyPatch, seconds: float, **limits: int) -> None:
    monkeypatch.setattr(programs, "_SECONDS", seconds)
    for name, most in limits.items():
        monkeypatch.setitem(programs._LIMITS, f"RLIMIT_{name}", most)


@pytest.fixture(params=["bubblewrap", "limits alone"])
def way(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """Each way to run them; bubblewrap where it runs."""
    programs._confinement.cache_clear()
    if request.param == "limits alone":
        monkeypatch.setattr(programs.shutil, "which", lambda name: None)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", SetBlockWarning)
        if request.param == "bubblewrap" and not programs._confinement():
            pytest.skip("bubblewrap does not run here")
        yield str(request.param)
    programs._confinement.cache_clear()


ENDS = {
    "print('done')": True,
    "import sys\nsys.stdout = None": True,
    "assert 1 + 1 == 3": False,
    "import sys; sys.exit()": False,
    "import os; os._exit(0)": False,  # before the tests below it: has not passed them
    "import os; os.kill(os.getpid(), 9)": False,
    "import os; os.closerange(0, 100)": False,
    "raise KeyboardInterrupt": False,
    "print(sys)": False,  # it sees no name that it has not made
    "x = '''": False,
    "\0 \ud800": False,
}


def test_only_what_comes_to_its_last_line_finishes(way: str) -> None:
    assert dict(zip(ENDS, finish(list(ENDS)), strict=True)) == ENDS


ENDLESS = {
    "loop": "while True: pass",
    "sleep": "import time\nwhile True: time.sleep(1000)",
    "deaf": "import signal\nfor n in (2, 15, 24): signal.signal(n, signal.SIG_IGN)\nimport time\ntime.sleep(1000)",
    "stopped": "import os, signal\nos.kill(os.getpid(), signal.SIGSTOP)",
    "left behind": "import os, time\nif not os.fork(): time.sleep(1000)\nos._exit(0)",
}


def test_endless_programs_are_killed_and_leave_nothing(
    way: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(programs.tempfile, "tempdir", str(tmp_path))
    monkeypatch.setattr(programs.secrets, "token_bytes", lambda count: b"of this test")
    before = children()  # of other tests
    limit(monkeypatch, 1, CPU=30)
    assert finish(list(ENDLESS.values())) == [False] * len(ENDLESS)
    assert list(tmp_path.iterdir()) == []
    assert children() <= before  # no child, and no zombie
    patience = time.monotonic() + 60  # a killed process may take a moment to end
    while [line for line in commands() if "of this test" in line]:
        assert time.monotonic() < patience
        time.sleep(0.05)


def children() -> set[str]:
    return {child for path in Path("/proc/self/task").glob("*/children") for child in path.read_text().split()}


def commands() -> list[str]:
    found = []
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            found.append(path.read_text())
        except OSError:  # it has ended
            continue
    return found


EXCESSES = {
    "time": "while True: pass",
    "memory": "bytearray(1 << 40)",
    "memory bit by bit": "hoard = []\nwhile True: hoard.append(bytearray(1 << 20))",
    "output": "while True: print('spam' * 1000)",
    "a file": "open('file', 'w').write('spam' * 10_000)",
    "nesting": "(" * 100_000,
}


def test_excesses_end_a_program_and_not_those_beside_it(way: str, monkeypatch: pytest.MonkeyPatch) -> None:
    limit(monkeypatch, 60, CPU=1, AS=512 << 20, FSIZE=10_000)
    good = "print(sum(range(10)))"
    given = [good, *EXCESSES.values(), good]
    assert finish(given) == [True, *[False] * len(EXCESSES), True]


def test_a_program_finds_a_usual_world(way: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("API_KEY", "sesame")
    program = """
        import collections, dataclasses, datetime, decimal, heapq, json, math, os, pickle, random, re, statistics, sys, zoneinfo
        import numpy as np
        @dataclasses.dataclass
        class Point:
            x: int
        assert pickle.loads(pickle.dumps(Point(3))) == Point(3)
        assert __name__ == "__main__" and "API_KEY" not in os.environ
        assert np.linalg.inv(np.eye(50)).sum() == 50
        with open("/dev/null", "w") as nowhere:
            print("spam", file=nowhere)
        """
    assert finish([textwrap.dedent(program)]) == [True]


def test_bubblewrap_keeps_files_and_the_network_away(way: str, tmp_path: Path) -> None:
    """Without it, some of these succeed, which shows that they test something."""
    secret = tmp_path / "secret"
    secret.write_text("secret")
    escapes = {
        "read": f"open({str(secret)!r}).read()",
        "list": f"__import__('os').listdir({str(tmp_path)!r})",
        "write": f"open({str(tmp_path / 'new')!r}, 'w')",
        "change Python": f"open({os.__file__!r}, 'a')",
        "users": "open('/etc/passwd').read()",
        "see this process": f"open('/proc/{os.getpid()}/cmdline').read()",
        "signal this process": f"__import__('os').kill({os.getpid()}, 0)",
        "network": "assert len(__import__('socket').if_nameindex()) > 1",
    }
    found = dict(zip(escapes, finish(list(escapes.values())), strict=True))
    if way == "bubblewrap":
        assert found == dict.fromkeys(escapes, False)
        assert sorted(path.name for path in tmp_path.iterdir()) == ["secret"]
    else:
        assert found["read"]
        assert found["write"]


def test_without_bubblewrap_one_line_says_what_is_not_limited(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(programs.shutil, "which", lambda name: None)
    programs._confinement.cache_clear()
    with pytest.warns(SetBlockWarning, match="can use your files and the network: it is not installed") as warned:
        programs._confinement()
    assert "\n" not in str(warned[0].message)
    programs._confinement.cache_clear()


def test_a_bubblewrap_that_does_not_run_is_reported_with_its_reason(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    broken = tmp_path / "bwrap"
    broken.write_text("#!/bin/sh\necho 'No permissions to create new namespace' >&2; exit 1\n")
    broken.chmod(0o755)
    monkeypatch.setattr(programs.shutil, "which", lambda name: str(broken))
    programs._confinement.cache_clear()
    with pytest.warns(SetBlockWarning, match="without bubblewrap.*No permissions to create new namespace"):
        assert finish(["print(1)"]) == [True]
    programs._confinement.cache_clear()


def test_where_limits_can_not_be_set_nothing_is_judged(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(programs.shutil, "which", lambda name: None)
    monkeypatch.setattr(programs, "_START", "raise ValueError('current limit exceeds maximum limit')")
    programs._confinement.cache_clear()
    with pytest.raises(SetBlockError, match=r"can't run programs with limits here .*exceeds maximum limit"):
        finish(["print(1)"])
    programs._confinement.cache_clear()
