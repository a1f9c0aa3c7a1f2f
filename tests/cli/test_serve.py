"""`setblock serve`: what is refused before a model is loaded, and what the options become."""

import socket

import pytest

from setblock.cli.answering import serve as serve_command
from setblock.decoding.samplers import Factor
from setblock.decoding.settings.table import DecodingSettings
from setblock.engine.limits import EngineLimits
from setblock.errors import install_command
from setblock.server.http.limits import ServerLimits

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

    monkeypatch.setattr("setblock.server.app.serve", keep)
    monkeypatch.delenv(serve_command.KEYS_VARIABLE, raising=False)
    return found


def test_without_the_extra_it_says_what_to_install(run, monkeypatch):
    monkeypatch.setattr("setblock.errors.find_spec", lambda name: None)
    outcome = run("serve")
    assert outcome.code == 1
    assert outcome.message == (
        f"setblock: error: setblock serve needs fastapi and uvicorn and prometheus_client: {install_command('serve')}"
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


def test_the_model_comes_first_and_requests_have_defaults(run, served, sbd_folder):
    options = ("--method", "sbd", "--sampler", "factor", "--sampler-option", "factor=0.5", "--block-size", 4)
    assert run("serve", sbd_folder, "--port", 0, *options).code == 0
    ((_, config, _, _),) = served
    assert config.name == "sbd"
    assert config.default == DecodingSettings(method="sbd", sampler=Factor(0.5), block_size=4)
    assert "exclude each other" in run("serve", sbd_folder, "--model", sbd_folder).message
    assert "gamma must be at least 0, not -1" in run("serve", sbd_folder, "--gamma", -1).message


def test_the_playground_has_an_example_and_says_what_the_included_model_is(run, served, sbd_folder):
    outcome = run("serve", "--port", 0)
    run("serve", "--model", sbd_folder, "--port", 0)
    (_, bundled, *_), (_, other, *_) = served
    assert bundled.notice.startswith("the included model knows the word problems of one generator only")
    assert bundled.notice in outcome.stderr
    assert bundled.example == serve_command.WORD_PROBLEM
    assert (other.notice, other.example) == (None, None)


def test_options_become_limits(run, served, ntp_folder, tmp_path):
    (tmp_path / "keys").write_text("# mine\nkey-number-one\n\n")
    options = (
        "--max-num-seqs",
        3,
        "--kv-tokens",
        99,
        "--max-requests",
        4,
        "--request-seconds",
        2.5,
        "--served-model-name",
        "it",
        "--log-text",
    )
    outcome = run(
        "serve", "--model", ntp_folder, "--port", 0, "--host", "0.0.0.0", "--key-file", tmp_path / "keys", *options
    )  # fmt: skip
    assert "never trained for blocks" in outcome.stderr
    ((_, config, _, _),) = served
    assert (config.engine.max_num_seqs, config.engine.kv_tokens, config.limits.max_requests) == (3, 99, 4)
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
        (("--max-num-seqs", 0), 2, "max_num_seqs must be at least 1, not 0"),
        (("--request-seconds", 0), 2, "request_seconds must be above 0, not 0.0"),
        (("--host", "0.0.0.0"), 1, "--host 0.0.0.0 accepts other machines and needs API keys: give --key-file or"),
        (("--host", "192.0.2.1", "--no-keys"), 1, "can't listen on 192.0.2.1 port 8000: "),
        (("--key-file", "/no/such/file"), 1, "can't read the API keys in /no/such/file: "),
        (("--key-file", "/dev/null"), 1, "/dev/null has no API key"),
    ],
)
def test_mistakes_are_reported_before_a_model_is_loaded(run, served, options, code, said, monkeypatch):
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


def test_chat_templates_have_default_kwargs(run, served, copied):
    (copied / "chat_template.jinja").write_text("{{ messages[0].content }}{{ style or '' }}")
    options = ("serve", copied, "--port", 0, "--default-chat-template-kwargs")
    assert run(*options, '{"style": 1}').code == 0
    ((_, config, _, _),) = served
    assert config.chat_template_kwargs == {"style": 1}
    for given, said in (("{", "must be a JSON object"), ('{"styl": 1}', "chat template has no 'styl'")):
        outcome = run(*options, given)
        assert outcome.code != 0
        assert said in outcome.message
        assert outcome.message.startswith("setblock: error: --default-chat-template-kwargs")
    assert len(served) == 1
