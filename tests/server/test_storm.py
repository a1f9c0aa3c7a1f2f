"""Many clients that ask for everything and often leave in the middle, as in `attack.py`, in miniature.

Who stays gets the answer that the request has alone; who leaves has read its beginning, and nothing of it stays in the process.
"""

import json
import os
import random
import socket
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from urllib.parse import urlsplit

import pytest
import torch
from transformers import PreTrainedTokenizerBase

from server import attack
from server.live import TIMEOUT, Live, eventually, serving, tiny
from server.test_company import Question, drawn
from setblock import generate_batch
from setblock.engine.limits import EngineLimits
from setblock.server.http.limits import ServerLimits

WORKERS, REQUESTS = 8, 30


@pytest.fixture(scope="module")
def storm_live(trained_tokenizer: PreTrainedTokenizerBase) -> Iterator[Live]:
    """Its cache is small, so that answers lose their place in it, too."""
    sbd = tiny(trained_tokenizer)
    sbd.model.double()
    sbd.end_of_text_ids = (0, 40, 41)
    limits = ServerLimits(body_seconds=3.0)  # some of what attacks has no whole head
    with serving(sbd, engine=EngineLimits(max_num_seqs=6, kv_tokens=256), limits=limits) as running:
        yield running


def read(live: Live, requested: Question, pieces: int | None) -> list[str]:
    """The texts of a streamed answer, or what came of them in its first `pieces`, after which the client leaves."""
    texts = [""] * requested.settings.n
    body = json.dumps({"model": "tiny", **requested.body, "stream": True}).encode()
    address = urlsplit(live.url)
    head = f"POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\nContent-Length: {len(body)}\r\n"
    with socket.create_connection((address.hostname, address.port), timeout=TIMEOUT) as connection:
        connection.sendall(f"{head}Content-Type: application/json\r\n\r\n".encode() + body)
        with closing(connection.makefile("rb")) as lines:
            while pieces is None or pieces > 0:
                if (line := next(lines, b"")).startswith(b"data: {"):
                    pieces = None if pieces is None else pieces - 1
                    for choice in json.loads(line.removeprefix(b"data: "))["choices"]:
                        texts[choice["index"]] += choice["text"]
                elif not line or line == b"data: [DONE]\n":
                    break
    return texts


def storm(live: Live, seed: int) -> None:
    rng = random.Random(seed)
    requested = [drawn(rng, live.model.tokenizer) for _ in range(REQUESTS)]
    pieces = [rng.choice([None, 0, 1, 2, 5, 12]) for _ in requested]
    with ThreadPoolExecutor(WORKERS) as clients:
        found = list(clients.map(lambda each: read(live, *each), zip(requested, pieces, strict=True)))
    assert eventually(lambda: kept(live)[:5] == (0, 0, 0, 0, 0))  # the model runs one pass at a time
    with torch.inference_mode():
        for each, left_after, texts in zip(requested, pieces, found, strict=True):
            alone = [one.text for one in generate_batch(live.model, [each.prompt], settings=each.settings, raw=True)]
            if left_after is None:
                assert texts == alone, each
            else:
                assert all(whole.startswith(text) for whole, text in zip(alone, texts, strict=True)), each


def kept(live: Live) -> tuple[int, ...]:
    """What a request takes of the process, in counts."""
    worker, state = live.serving.worker, live.server.server_state
    return (
        live.serving.admission.active, len(worker._outputs), len(worker._engine._sequences),
        len(state.connections), len(state.tasks),
        threading.active_count(), len(os.listdir("/dev/fd")),
    )  # fmt: skip


def test_a_storm_of_clients_that_leave_changes_no_answer_and_leaves_nothing(storm_live: Live) -> None:
    storm(storm_live, 0)
    assert eventually(lambda: kept(storm_live)[:5] == (0, 0, 0, 0, 0))
    before = kept(storm_live)
    storm(storm_live, 1)
    # Fewer are no leak: what other tests left in this process may end meanwhile
    assert eventually(lambda: all(now <= then for now, then in zip(kept(storm_live), before, strict=True))), before
    pool = storm_live.serving.worker._engine._pool
    assert pool.available == pool.total  # of the cache, no answer holds a page any longer


def test_the_attack_finds_nothing(
    storm_live: Live, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The program, in miniature. Forms are tried in tests/structure/test_sandbox.py."""
    for name, least in {"HALVES": 3, "WORKERS": 4, "LONG_PROMPTS": 1, "MOST_STORM": 12, "BOMBS": {}}.items():
        monkeypatch.setattr(attack, name, least)
    monkeypatch.setattr(attack.Attack, "half_heads", lambda _: None)  # they take the time of a head
    assert attack.main(["--url", storm_live.url, "--seconds", "60"]) == 0
    done = json.loads(capsys.readouterr().out.splitlines()[-1])
    assert done["faults"] == []
    assert done["done"]["storm"] == 12


@pytest.mark.parametrize(
    "wrong", [["--url", "http://198.51.100.1"], ["--url", "http://evil.example"], ["--seconds", "601"]]
)
def test_only_this_machine_is_attacked_and_not_for_long(wrong: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        attack.main(wrong)
    assert "must be" in capsys.readouterr().err
