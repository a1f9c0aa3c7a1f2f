"""Run `setblock serve` as a separate process, on a port that is free, for the benchmarks of serving."""

import json
import os
import re
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import IO
from urllib.request import urlopen

START_SECONDS = 600


@dataclass(frozen=True)
class ServerProcess:
    """Hold a running server."""

    url: str
    process: "subprocess.Popen[bytes]"
    log: IO[str]

    def figures(self) -> dict[str, float]:
        """Return its metrics, those with labels added up."""
        found: dict[str, float] = {}
        with urlopen(f"{self.url}/metrics", timeout=60) as response:
            for line in response.read().decode().splitlines():
                match = re.fullmatch(r"(setblock_\w+)(?:\{.*\})? (\S+)", line)
                if match:
                    found[match[1]] = found.get(match[1], 0) + float(match[2])
        return found

    def log_lines(self) -> list[dict[str, object]]:
        """Return what it has logged so far."""
        lines = Path(self.log.name).read_text().splitlines()
        return [json.loads(line) for line in lines if line.startswith("{")]

    def stop(self, number: int = signal.SIGTERM, *, seconds: float = 120) -> int:
        """Send a signal, and wait until it has ended; its exit code."""
        self.process.send_signal(number)
        return self.process.wait(seconds)


@contextmanager
def server_process(*options: str, environment: dict[str, str] | None = None) -> Iterator[ServerProcess]:
    """Start it, wait until it is ready, and end it at last."""
    command: Sequence[str] = [sys.executable, "-m", "setblock", "serve", "--port", "0", *options]
    with tempfile.NamedTemporaryFile("w+", suffix=".log") as log:
        process = subprocess.Popen(command, stderr=log, env={**os.environ, **(environment or {})})
        try:
            yield ServerProcess(_url_of(process, Path(log.name)), process, log)
        finally:
            with suppress(ProcessLookupError):
                process.kill()
            process.wait()


def _url_of(process: "subprocess.Popen[bytes]", log: Path) -> str:
    deadline = time.monotonic() + START_SECONDS
    while time.monotonic() < deadline:
        found = re.search(r"playground at (http://\S+?)/,", log.read_text())
        if found:
            return found[1]
        if process.poll() is not None:
            break
        time.sleep(0.1)
    raise SystemExit(f"the server did not start:\n{log.read_text()}")
