"""What the files of deploy/ and the page on serving name exists: options, metrics, files, ports."""

import re
import shutil
import subprocess
import sys
import zipfile
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


def test_the_wheel_is_built_from_exactly_what_the_image_copies(tmp_path):
    """What `Dockerfile.dockerignore` lets through, copied as the stage `wheel` does, is all that `pip wheel` needs."""
    stage = (DEPLOY / "Dockerfile").read_text().split("\nFROM ")[1]
    allowed = (DEPLOY / "Dockerfile.dockerignore").read_text().split()
    source = tmp_path / "src"
    source.mkdir()
    copies = re.findall(r"^COPY (.*)$", stage, flags=re.M)
    assert copies
    for *names, target in map(str.split, copies):
        for name in names:
            assert f"!{name}" in allowed, f"{name} is not sent to the builder"
            if (ROOT / name).is_dir():
                shutil.copytree(ROOT / name, source / target, ignore=shutil.ignore_patterns("__pycache__"))
            else:
                shutil.copy(ROOT / name, source / target)
    command = [sys.executable, "-m", "pip", "wheel", "--no-deps", "--no-build-isolation", "-w", str(tmp_path), "."]
    done = subprocess.run(command, cwd=source, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr[-2000:]
    (wheel,) = tmp_path.glob("setblock-*.whl")
    with zipfile.ZipFile(wheel) as file:
        built = {name for name in file.namelist() if not name.startswith("setblock-")}
    package = ROOT / "src"
    files = {str(path.relative_to(package)) for path in package.rglob("*") if path.is_file()}
    assert built == {name for name in files if "__pycache__" not in name}
