"""What the files of deploy/ and the page on serving name exists: options, metrics, files, ports."""

import json
import re
from pathlib import Path

import pytest
import yaml
from typer.main import get_command

from setblock.cli.app import app
from setblock.cli.serve import KEYS_VARIABLE
from setblock.server.limits import ServerLimits

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


@pytest.mark.parametrize("name", ["Dockerfile", "compose.yaml", "systemd/setblock.service"])
def test_options_exist(name):
    text = re.sub(r"^\s*#.*$", "", (DEPLOY / name).read_text(), flags=re.M)
    serving = " ".join(re.findall(r"^(?:ENTRYPOINT|ExecStart|\s+command: \[\"--allowed).*$", text, flags=re.M))
    found = set(re.findall(r"--[a-z][a-z-]+", serving))
    assert found
    assert found <= OPTIONS


def test_the_page_names_options_that_exist():
    text = re.sub(r"```text.*?```", "", PAGE, flags=re.S).replace("--build-arg", "")
    assert set(re.findall(r"(?<![\w-])--[a-z][a-z-]+", text)) <= OPTIONS
    assert KEYS_VARIABLE in PAGE


def test_the_board_and_the_alerts_ask_for_metrics_that_exist(metrics):
    board = json.loads((DEPLOY / "grafana" / "dashboards" / "setblock.json").read_text())
    rules = yaml.safe_load((DEPLOY / "prometheus" / "rules.yaml").read_text())
    asked = [target["expr"] for panel in board["panels"] for target in panel["targets"]]
    asked += [rule["expr"] for group in rules["groups"] for rule in group["rules"]]
    assert len({panel["id"] for panel in board["panels"]}) == len(board["panels"])
    assert set(re.findall(r"setblock_\w+", " ".join(asked))) <= metrics
    assert all(expr.count("(") == expr.count(")") for expr in asked)


def test_the_page_names_metrics_that_exist(metrics):
    named = set(re.findall(r"`(setblock_\w+)`", PAGE))
    assert len(named) > 10
    assert named <= metrics


def test_compose_mounts_files_that_exist():
    compose = yaml.safe_load((DEPLOY / "compose.yaml").read_text())
    mounts = [volume for service in compose["services"].values() for volume in service.get("volumes", ())]
    for source in {mount.partition(":")[0] for mount in mounts}:
        assert (DEPLOY / source).exists() or source in compose["volumes"], source
    for service in compose["services"].values():
        assert all(port.startswith("127.0.0.1:") for port in service["ports"])
    grace = int(compose["services"]["setblock"]["stop_grace_period"].removesuffix("s"))
    assert grace > ServerLimits().drain_seconds
    (targets,) = yaml.safe_load((DEPLOY / "prometheus" / "prometheus.yaml").read_text())["scrape_configs"]
    assert targets["static_configs"][0]["targets"] == ["setblock:8000"]


def test_the_unit_waits_for_the_drain():
    unit = (DEPLOY / "systemd" / "setblock.service").read_text()
    assert int(re.search(r"TimeoutStopSec=(\d+)", unit)[1]) > ServerLimits().drain_seconds


def test_the_image_copies_what_the_build_needs():
    allowed = (DEPLOY / "Dockerfile.dockerignore").read_text().split()
    for name in re.findall(r"^COPY ([^-].*)$", (DEPLOY / "Dockerfile").read_text(), flags=re.M):
        for source in name.split()[:-1]:
            assert f"!{source.removeprefix('./')}" in allowed, source
            assert (ROOT / source).exists()
