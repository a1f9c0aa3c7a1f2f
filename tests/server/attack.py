"""Attack a running server on this machine, for ten minutes at most, and say what did not hold.

    setblock serve                                                   # in another terminal
    python tests/server/attack.py --url http://127.0.0.1:8000

Forms that cost llguidance its stack or gigabytes; heads and bodies that never end; prompts of a megabyte; malformed requests;
pages of other sites; a storm of clients that leave in the middle. Meanwhile and afterwards others must be answered, by the text
that their request has alone. Only loopback addresses are attacked. With `--pid` the memory of the server is watched, too (on
Linux). The last line is JSON; the exit code is 1 where something did not hold.
"""

import argparse
import json
import random
import socket
import sys
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, closing
from dataclasses import dataclass, field
from ipaddress import ip_address
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import httpx2 as httpx

sys.path.insert(0, str(Path(__file__).parents[1]))

from structure.bombs import BOMBS

HALVES, WORKERS, LONG_PROMPTS = 300, 16, 8
MOST_STORM = 5000  # requests
PROMPT = "Maya has 12 apples. Maya finds {} more. How many apples does Maya have now?"
MALFORMED = (
    b"", b"{", b"[]", b"null", b'"text"', b"{}" * 1000, b"[" * 100_000, b'{"a":' * 50_000, b"\xff\xfe", b'{"model": 5}',
    b'{"model": "NAME", "prompt": ["\\ud800"]}', b'{"model": "NAME", "prompt": [[1, -1]]}',
    b'{"model": "NAME", "prompt": [[]]}',
    b'{"model": "NAME", "prompt": "a", "max_tokens": ' + b"9" * 5000 + b"}", b'{"model": "NAME", "prompt": "a", "n": -1}',
    b'{"model": "NAME", "prompt": "a", "temperature": 1e999}', b'{"model": "NAME", "prompt": "a", "stop": [[]]}',
)  # fmt: skip
RAW = (
    b"\r\n\r\n", b"GET\r\n\r\n", b"GET / HTTP/9.9\r\n\r\n", b"GET / HTTP/1.1\r\n\r\n", b"\x16\x03\x01" * 50 + b"\r\n\r\n",
    b"GET / HTTP/1.1\r\nHost: a\r\nHost: b\r\n\r\n",
    b"POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Length: -1\r\n\r\n",
    b"POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n",
    b"GET / HTTP/1.1\r\nHost: localhost\r\nX: " + b"x" * 70_000 + b"\r\n\r\n", b"GET /" + b"a" * 70_000 + b" HTTP/1.1\r\n\r\n",
    b"GET /page/../../etc/passwd HTTP/1.1\r\nHost: localhost\r\n\r\n", b"GET /%00 HTTP/1.1\r\nHost: localhost\r\n\r\n",
)  # fmt: skip


@dataclass
class Attack:
    """Attack one server until `deadline`, by `time.monotonic()`."""

    url: str
    key: str | None
    pid: int | None
    deadline: float
    head_seconds: float  # the server's --body-seconds
    faults: list[str] = field(default_factory=list)
    counts: dict[str, int] = field(default_factory=dict)

    def __post_init__(self) -> None:
        headers = {"authorization": f"Bearer {self.key}"} if self.key else {}
        self.client = httpx.Client(base_url=self.url, headers=headers, timeout=120)
        self.address = (urlsplit(self.url).hostname, urlsplit(self.url).port or 80)
        self.model = self.client.get("/v1/models").raise_for_status().json()["data"][0]["id"]
        self.rng = random.Random(0)

    def run(self) -> dict[str, Any]:
        """Return what was done, and what did not hold."""
        memory = self.memory()
        parts = (
            self.malformed,
            self.origins,
            self.long_prompts,
            self.forms,
            self.half_bodies,
            self.half_heads,
            self.storm,
        )
        for part in parts:
            started = time.monotonic()
            try:
                part()
                self.expect(self.client.get("/health").status_code == 200, f"{part.__name__}: /health is not well")
                self.expect(bool(self.answer(1)), f"{part.__name__}: no answer afterwards")
            except (httpx.HTTPError, OSError) as error:
                self.faults.append(f"{part.__name__}: {error!r}")
            seconds, grown = time.monotonic() - started, self.memory() - memory
            done = f"{part.__name__}: {seconds:.1f} s, {grown} MiB more than at first"
            print(f"{done}, {len(self.faults)} faults so far", file=sys.stderr)
        grown = self.memory() - memory
        self.expect(grown < 2048, f"memory grew by {grown} MiB")
        return {"attack": self.url, "done": self.counts, "memory_grown_mib": grown, "faults": self.faults}

    def expect(self, holds: bool, fault: str) -> None:
        """Note a fault unless something holds."""
        if not holds:
            self.faults.append(fault)

    def count(self, what: str, number: int = 1) -> None:
        """Count what was done."""
        self.counts[what] = self.counts.get(what, 0) + number

    def memory(self) -> int:
        """Return the memory of the server in MiB, 0 where it is not known."""
        status = Path(f"/proc/{self.pid}/statm")
        return int(status.read_text().split()[1]) // 256 if self.pid and status.exists() else 0

    def post(self, **body: Any) -> httpx.Response:
        """Ask for a completion."""
        return self.client.post("/v1/completions", json={"model": self.model, "max_tokens": 24, **body})

    def answer(self, number: int) -> str:
        """Return the answer to a prompt of this number, empty for none."""
        response = self.post(prompt=PROMPT.format(number))
        return json.dumps(response.json()["choices"]) if response.status_code == 200 else ""

    def connect(self) -> socket.socket:
        """Open a connection."""
        return socket.create_connection(self.address, timeout=self.head_seconds + 30)

    def malformed(self) -> None:
        """Bodies and heads that are no requests: an error of the client's, and never of the server's."""
        for body in MALFORMED:
            for path in ("/v1/completions", "/v1/chat/completions"):
                content = body.replace(b"NAME", self.model.encode())
                response = self.client.post(path, content=content, headers={"content-type": "application/json"})
                self.expect(400 <= response.status_code < 500, f"malformed: {response.status_code} for {body[:60]!r}")
                self.count("malformed")
        for head in RAW:
            with self.connect() as connection:
                connection.sendall(head)
                status = connection.recv(64)[:12]
                self.expect(not status.startswith(b"HTTP/1.1 5"), f"malformed: {status!r} for {head[:60]!r}")
                self.count("malformed")

    def origins(self) -> None:
        """Pages of other sites, and other names of this machine."""
        for headers, status in (
            ({"origin": "http://evil.example"}, 403), ({"origin": "null"}, 403), ({"origin": self.url.rstrip("/")}, 200),
        ):  # fmt: skip
            found = self.client.get("/v1/models", headers=headers).status_code
            self.expect(found == status, f"origins: {found} for {headers}")
            self.count("origins")

    def long_prompts(self) -> None:
        """Prompts of nearly a megabyte, and short ones beside them."""
        with ThreadPoolExecutor(LONG_PROMPTS) as pool:
            long = [pool.submit(self.post, prompt="some words " * 90_000) for _ in range(LONG_PROMPTS)]
            while not all(each.done() for each in long):
                self.expect(bool(self.answer(2)), "long prompts: a short one was not answered")
                self.count("short prompts beside long ones")
            for each in long:
                self.expect(each.result().status_code in (200, 400), f"long prompts: {each.result().status_code}")

    def forms(self) -> None:
        """Forms beyond the limits, three times each; one that is usual beside them."""
        for name, ((word, value), _) in list(BOMBS.items()) * 3:
            response = self.post(prompt="a", structured_outputs={word: value})
            self.expect(response.status_code == 400, f"forms: {response.status_code} for {name}")
            usual = self.post(prompt="a", structured_outputs={"regex": f"[0-9]{{{self.rng.randint(1, 30)}}}"})
            self.expect(usual.status_code == 200, f"forms: {usual.status_code} for a usual one after {name}")
            self.count("forms")

    def half_bodies(self) -> None:
        """Bodies that never end keep nobody out."""
        head = f"POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer {self.key}\r\n"
        with ExitStack() as opened:
            for _ in range(HALVES):
                opened.enter_context(self.connect()).sendall(f"{head}Content-Length: 9\r\n\r\n{{".encode())
            self.expect(bool(self.answer(3)), f"half bodies: no answer beside {HALVES} of them")
            self.count("half bodies", HALVES)

    def half_heads(self) -> None:
        """Connections without a whole head are closed in time."""
        with ExitStack() as opened:
            halves = [opened.enter_context(self.connect()) for _ in range(HALVES)]
            for number, each in enumerate(halves):
                each.sendall(b"GET /health HTTP/1.1\r\nHo" if number % 2 else b"")
            self.expect(bool(self.answer(4)), f"half heads: no answer beside {HALVES} of them")
            closed = 0
            for each in halves:
                try:
                    closed += not each.recv(1)
                except TimeoutError:
                    break  # the others are as old
            self.expect(closed == HALVES, f"half heads: {closed} of {HALVES} closed after {self.head_seconds + 30:g} s")
            self.count("half heads", HALVES)

    def storm(self) -> None:
        """Clients that ask for different things and often leave in the middle, as long as there is time."""
        bodies = [self._drawn(number) for number in range(40)]
        alone = [self._read(body, None) for body in bodies]

        def ask(number: int) -> str | None:
            if time.monotonic() > self.deadline:
                return None
            rng = random.Random(number)
            place, pieces = rng.randrange(len(bodies)), rng.choice([None, 0, 1, 3, 10])
            text = self._read(bodies[place], pieces)
            holds = text == alone[place] if pieces is None else alone[place].startswith(text)
            return "" if holds else f"storm: {text!r} instead of {alone[place]!r} for {bodies[place]}"

        with ThreadPoolExecutor(WORKERS) as pool:
            for fault in pool.map(ask, range(MOST_STORM)):
                if fault is not None:
                    self.count("storm")
                    self.expect(not fault, fault)

    def _drawn(self, number: int) -> dict[str, Any]:
        rng = random.Random(number)
        body: dict[str, Any] = {"prompt": PROMPT.format(number), "max_tokens": rng.randint(1, 60), "seed": number}
        body["method"] = rng.choice(["exact", "ntp"])
        if rng.random() < 0.3:
            body["structured_outputs"] = rng.choice([{"regex": "[a-z ]{5,40}"}, {"json": {"type": "object"}}])
        if rng.random() < 0.3:
            body |= {"logprobs": 3, "stop": ["apples"]}
        return body

    def _read(self, body: dict[str, Any], pieces: int | None) -> str:
        text = ""
        with self.client.stream(
            "POST", "/v1/completions", json={"model": self.model, "stream": True, **body}
        ) as response:
            if response.status_code != 200:
                self.faults.append(f"storm: {response.status_code} for {body}")
                return text
            with closing(_events(response)) as events:
                while pieces is None or pieces > 0:
                    if (event := next(events, None)) is None:
                        break
                    text += "".join(choice["text"] for choice in event.get("choices", ()))
                    pieces = None if pieces is None else pieces - 1
        return text


def _events(response: httpx.Response) -> Iterator[dict[str, Any]]:
    for line in response.iter_lines():
        if line.startswith("data: {"):
            yield json.loads(line.removeprefix("data: "))


def main(arguments: list[str] | None = None) -> int:
    """Attack, and return the exit code."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        "--url", default="http://127.0.0.1:8000", help="of a server on this machine (default: %(default)s)"
    )
    parser.add_argument("--key", help="API key, if the server has any")
    parser.add_argument("--pid", type=int, help="process id of the server, to watch its memory")
    parser.add_argument(
        "--seconds", type=float, default=600, help="time of the whole, at most 600 (default: %(default)s)"
    )
    parser.add_argument("--body-seconds", type=float, default=30, help="the server's (default: %(default)s)")
    given = parser.parse_args(arguments)
    host = urlsplit(given.url).hostname or ""
    if host != "localhost" and not _is_loopback(host):
        parser.error(f"--url must be a loopback address, not {host}")
    if not 0 < given.seconds <= 600:
        parser.error(f"--seconds must be between 0 and 600, not {given.seconds:g}")
    deadline = time.monotonic() + given.seconds
    try:
        attack = Attack(given.url, given.key, given.pid, deadline, given.body_seconds)
    except httpx.HTTPError as error:
        parser.error(f"{given.url} does not answer: {error}")
    with closing(attack.client):
        result = attack.run()
    print(json.dumps(result))
    return 1 if result["faults"] else 0


def _is_loopback(host: str) -> bool:
    try:
        return ip_address(host).is_loopback
    except ValueError:
        return False


if __name__ == "__main__":
    sys.exit(main())
