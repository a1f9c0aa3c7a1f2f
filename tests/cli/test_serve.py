"""`setblock serve`: what is refused before a model is loaded, and what the options become."""

import shlex
import socket

import pytest

from setblock.cli import serve as serve_command
from setblock.engine.limits import EngineLimits
from setblock.integrations.vllm.command import vllm_command
from setblock.server.limits import ServerLimits

pytest.importorskip("fastapi", reason="the extra `serve` is not installed")


@pytest.fixture
def served(monkeypatch):
    """What would be served, in place of serving it."""
    found = []

    def keep(model, config, bound, *, log_level, on_start):
        with bound:
            on_start()
            found.append((model, config, bound.getsockname(), log_level))
        return 0

    monkeypatch.setattr("setblock.server.run.serve", keep)
    monkeypatch.delenv(serve_command.KEYS_VARIABLE, raising=False)
    return found


def test_without_the_extra_it_says_what_to_install(run, monkeypatch):
    monkeypatch.setattr(serve_command, "find_spec", lambda name: None)
    outcome = run("serve")
    assert (outcome.code, outcome.message) == (
        1,
        "setblock: error: setblock serve needs: pip install 'setblock[serve]'",
    )


def test_defaults(run, served, sbd_folder):
    outcome = run("serve", "--model", sbd_folder, "--port", 0)
    ((_, config, (host, port), level),) = served
    assert (
        outcome.message
        == f"setblock: serving sbd: playground at http://127.0.0.1:{port}/, API at http://127.0.0.1:{port}/v1"
    )
    assert (outcome.code, host, level, config.name) == (0, "127.0.0.1", "info", "sbd")
    assert (config.engine, config.limits) == (EngineLimits(), ServerLimits())
    assert (bool(config.keys), config.logs_text) == (False, False)
    assert set(config.hosts) == {"localhost", "127.0.0.1", "[::1]"}


def test_options_become_limits(run, served, ntp_folder, tmp_path):
    (tmp_path / "keys").write_text("# mine\nkey-number-one\n\n")
    options = (
        "--max-running",
        3,
        "--kv-tokens",
        99,
        "--max-requests",
        4,
        "--request-seconds",
        2.5,
        "--name",
        "it",
        "--log-text",
    )
    outcome = run(
        "serve", "--model", ntp_folder, "--port", 0, "--host", "0.0.0.0", "--key-file", tmp_path / "keys", *options
    )  # fmt: skip
    assert "never trained for blocks" in outcome.stderr
    ((_, config, _, _),) = served
    assert (config.engine.max_running, config.engine.kv_tokens, config.limits.max_requests) == (3, 99, 4)
    assert (config.limits.request_seconds, config.name, config.logs_text) == (2.5, "it", True)
    assert config.keys.know("key-number-one")
    assert not config.keys.know("# mine")
    assert config.hosts == ()


def test_keys_come_from_the_environment_too(run, served, sbd_folder, monkeypatch):
    monkeypatch.setenv(serve_command.KEYS_VARIABLE, "key-number-one, key-number-two")
    assert run("serve", "--model", sbd_folder, "--port", 0, "--host", "0.0.0.0", "--allowed-host", "me").code == 0
    ((_, config, _, _),) = served
    assert config.keys.know("key-number-two")
    assert config.hosts[0] == "me"


@pytest.mark.parametrize(
    ("options", "code", "said"),
    [
        (("--port", 70000), 2, "--port must be between 0 and 65535, not 70000"),
        (("--max-running", 0), 2, "max_running must be at least 1, not 0"),
        (("--request-seconds", 0), 2, "request_seconds must be above 0, not 0.0"),
        (("--host", "0.0.0.0"), 1, "--host 0.0.0.0 accepts other machines and needs API keys: give --key-file or"),
        (("--host", "192.0.2.1", "--no-keys"), 1, "can't listen on 192.0.2.1 port 8000: "),
        (("--key-file", "/no/such/file"), 1, "can't read the API keys in /no/such/file: "),
        (("--key-file", "/dev/null"), 1, "/dev/null has no API key"),
    ],
)
def test_mistakes_are_told_before_a_model_is_loaded(run, served, options, code, said, monkeypatch):
    monkeypatch.setattr(serve_command, "load_language_model", lambda *_, **__: pytest.fail("it was loaded"))
    outcome = run("serve", *options)
    assert outcome.code == code
    assert outcome.message.startswith(f"setblock: error: {said}")


def test_short_keys_are_refused(run, served, monkeypatch):
    monkeypatch.setenv(serve_command.KEYS_VARIABLE, "short")
    assert "at least 8 printable ASCII characters" in run("serve").message


def test_a_port_in_use_is_named(run, served):
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        assert run("serve", "--port", port).message.startswith(
            f"setblock: error: can't listen on 127.0.0.1 port {port}"
        )


class TestVllm:
    """`--engine vllm`: a command of another program, printed or become."""

    @pytest.fixture
    def became(self, monkeypatch, tmp_path):
        """The commands that the process became, in place of becoming them; vLLM is there."""
        found = []
        monkeypatch.setattr("setblock.cli.serve_vllm.shutil.which", lambda name: f"/bin/{name}")
        monkeypatch.setattr("setblock.cli.serve_vllm.os.execv", lambda path, words: found.append((path, words)))
        monkeypatch.delenv("VLLM_API_KEY", raising=False)
        return found

    def test_the_command_is_printed(self, run, became, sbd_folder):
        outcome = run("serve", "--engine", "vllm", "--model", sbd_folder, "--print-command", "--", "--seed", 1)
        words = shlex.split(outcome.stdout)
        assert (outcome.code, became) == (0, [])
        assert words == vllm_command(sbd_folder, extra=["--seed", "1"])

    def test_the_command_is_run_with_what_was_typed(self, run, became, sbd_folder):
        options = ("--decoding", "ngram", "--port", 99, "--name", "it", "--dtype", "bfloat16", "--trust-remote-code")
        assert run("serve", "--engine", "vllm", "--model", sbd_folder, *options).code == 0
        typed = ["--dtype", "bfloat16", "--trust-remote-code"]
        expected = vllm_command(sbd_folder, decoding="ngram", port=99, served_model_name="it", extra=typed)
        assert became == [("/bin/vllm", expected)]

    def test_without_vllm_it_says_what_to_do(self, run, became, sbd_folder, monkeypatch):
        monkeypatch.setattr("setblock.cli.serve_vllm.shutil.which", lambda name: None)
        outcome = run("serve", "--engine", "vllm", "--model", sbd_folder)
        assert outcome.code == 1
        assert "the command vllm is not installed" in outcome.message
        assert "then run vllm serve" in outcome.message

    @pytest.mark.parametrize(
        ("options", "message"),
        [
            (("--engine", "vllm", "--max-running", 3), "--max-running is not available with --engine vllm"),
            (("--engine", "vllm", "--quantization", "int8"), "--quantization is not available with --engine vllm"),
            (("--block-size", 4), "--block-size needs --engine vllm"),
            (("--", "--seed"), "WORDS needs --engine vllm"),
            (
                ("--engine", "vllm", "--host", "0.0.0.0"),
                "accepts other machines and needs an API key: set VLLM_API_KEY, or allow anybody with --no-keys",
            ),
            (("--engine", "vllm", "--block-size", 0), "block_size must be at least 1, not 0"),
        ],
    )
    def test_what_does_not_go_together(self, run, became, options, message):
        outcome = run("serve", *options)
        assert outcome.code in (1, 2)
        assert message in outcome.message
        assert became == []

    @pytest.mark.parametrize("way", ["variable", "no keys", "word"])
    def test_other_machines_come_in_when_that_was_decided(self, run, became, sbd_folder, monkeypatch, way):
        if way == "variable":
            monkeypatch.setenv("VLLM_API_KEY", "a-key")
        said = {"variable": (), "no keys": ("--no-keys",), "word": ("--", "--api-key", "a-key")}[way]
        run("serve", "--engine", "vllm", "--model", sbd_folder, "--host", "0.0.0.0", *said)
        assert len(became) == 1
