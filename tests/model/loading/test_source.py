"""A mistyped name or path is answered at once: without PyTorch, and with one question to the hub at most."""

import re
import subprocess
import sys
from pathlib import Path

import pytest
from huggingface_hub import HfApi
from huggingface_hub.errors import RepositoryNotFoundError

import setblock
from setblock.errors import SetBlockError
from setblock.model.loading import source
from setblock.model.loading.source import check_source


class Hub:
    """What the hub answers, and what it was asked for."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, answer: object) -> None:
        self.requested: list[str] = []

        def model_info(_: HfApi, repo_id: str, **__: object) -> object:
            self.requested.append(repo_id)
            if isinstance(answer, Exception):
                raise answer
            return answer

        monkeypatch.setattr(HfApi, "model_info", model_info)
        source._check_on_hub.cache_clear()


def no_such_model() -> Exception:
    """Of the hub: its own constructor wants a response."""
    return RepositoryNotFoundError.__new__(RepositoryNotFoundError)


def refused(name: str) -> str:
    with pytest.raises(SetBlockError) as caught:
        check_source(name)
    return str(caught.value)


def test_a_near_miss_of_a_name_asks_nobody(monkeypatch: pytest.MonkeyPatch) -> None:
    hub = Hub(monkeypatch, "a model")
    for typed, meant in (("smollm2-bas", "smollm2-base"), ("smolm2", "smollm2"), ("budled", "bundled")):
        assert refused(typed).endswith(f", did you mean {meant!r}?")
    assert hub.requested == []


def test_a_model_of_the_hub_is_requested_once(monkeypatch: pytest.MonkeyPatch) -> None:
    hub = Hub(monkeypatch, "a model")
    for _ in range(2):
        check_source("somebody/something")
    check_source("gpt2")
    assert hub.requested == ["somebody/something", "gpt2"]


@pytest.mark.parametrize(
    ("answer", "said"),
    [
        (no_such_model(), "and the hub has no such model"),
        (OSError("no connection"), "and the hub can't be reached (no internet connection?): no connection"),
    ],
)
def test_what_is_nowhere_is_reported_with_the_folder_next_to_it(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, answer: Exception, said: str
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "runs" / "tickets").mkdir(parents=True)
    hub = Hub(monkeypatch, answer)
    message = refused("runs/tikets")
    assert f"model runs/tikets: there is no such folder, {said}" in message
    assert message.endswith(", did you mean 'runs/tickets'?")
    assert hub.requested == ["runs/tikets"]
    with pytest.raises(SetBlockError, match=re.escape(said)):
        setblock.load("runs/tikets")  # which asks nobody else


def test_a_path_asks_nobody(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    hub = Hub(monkeypatch, "a model")
    (tmp_path / "tickets").mkdir()
    (tmp_path / "tickets.gguf").touch()
    assert refused(f"{tmp_path}/tikets").endswith(f"no such folder, did you mean '{tmp_path}/tickets'?")
    assert refused(f"{tmp_path}/tikets.gguf").endswith(f"did you mean '{tmp_path}/tickets.gguf'?")
    assert hub.requested == []


def test_nothing_heavy_is_imported() -> None:
    code = """
import sys
from typer.testing import CliRunner
from setblock.cli.app import app
for command in ("generate x", "compare x", "generate x --trace", "evaluate", "sweep", "calibrate", "serve"):
    done = CliRunner().invoke(app, [*command.split(), "--model", "smollm2-bas"])
    assert done.exit_code == 1 and "did you mean 'smollm2-base'?" in done.output, done.output
assert not {"torch", "transformers", "datasets"} & sys.modules.keys()
"""
    subprocess.run([sys.executable, "-c", code], check=True)
