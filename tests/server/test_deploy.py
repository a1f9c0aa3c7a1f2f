"""What the files of deploy/ and the page on serving name exists: options, metrics, files, ports."""

import re
from pathlib import Path

import pytest
from typer.main import get_command

from setblock.cli.answering.serve import KEYS_VARIABLE
from setblock.cli.app import app
from setblock.server.http.limits import ServerLimits

ROOT = Path(__file__).parent.parent.parent
DEPLOY = ROOT / "deploy"
PAGE = (ROOT / "docs" / "serving.md").read_text()
OPTIONS = {name for parameter in get_command(app).commands["serve"].params for name in parameter.opts} | {"--help"}


@pytest.fixture(scope="module")
def metrics(live):
    live.chat(max_tokens=2)
    return set(re.findall(r"^# TYPE (\w+)", live.client.get("/metrics").text, flags=re.M)) | set(
        re.findall(r"^(setblock_\w+)", live.client.get("/metrics").text, flags=re.M)
    )


def test_the_image_s_options_exist():
    (entry,) = re.findall(r"^ENTRYPOINT.*$", (DEPLOY / "Dockerfile").read_text(), flags=re.M)
    found = set(re.findall(r"--[a-z][a-z-]+", entry))
    assert found
    assert found <= OPTIONS


def test_the_page_names_options_that_exist():
    text = re.sub(r"```text.*?```", "", PAGE, flags=re.S)
    text = re.sub(r"--(build-arg|gpus)", "", text)  # Docker's
    assert set(re.findall(r"(?<![\w-])--[a-z][a-z-]+", text)) <= OPTIONS
    assert KEYS_VARIABLE in PAGE


def test_the_page_names_metrics_that_exist(metrics):
    named = set(re.findall(r"`(setblock_\w+)`", PAGE))
    assert len(named) > 10
    assert named <= metrics


def test_the_image_waits_for_the_drain():
    assert int(re.search(r"--stop-timeout (\d+)", PAGE)[1]) > ServerLimits().drain_seconds


def test_the_image_copies_what_the_build_needs():
    allowed = (DEPLOY / "Dockerfile.dockerignore").read_text().split()
    for name in re.findall(r"^COPY ([^-].*)$", (DEPLOY / "Dockerfile").read_text(), flags=re.M):
        for source in name.split()[:-1]:
            assert f"!{source.removeprefix('./')}" in allowed, source
            assert (ROOT / source).exists()
