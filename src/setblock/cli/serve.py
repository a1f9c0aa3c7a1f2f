"""`setblock serve`: the API and the playground, on this machine or for others."""

import os
from dataclasses import dataclass
from importlib.util import find_spec
from ipaddress import ip_address
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from setblock.cli.messages import print_message
from setblock.cli.options import Panel
from setblock.cli.runtime import RuntimeOptions, load_language_model, tuned
from setblock.cli.serve_vllm import VllmOptions, check_options, serve_by_vllm
from setblock.decoding.settings import DecodingSettings
from setblock.engine.limits import EngineLimits
from setblock.errors import ParameterError, SetBlockError
from setblock.server.limits import ServerLimits

if TYPE_CHECKING:
    from setblock.model.protocol import LanguageModel

SERVER, LIMITS = Panel("Server"), Panel("Limits")
KEYS_VARIABLE = "SETBLOCK_API_KEYS"
EngineName = Literal["setblock", "vllm"]
LogLevel = Literal["debug", "info", "warning", "error"]
_SERVER, _ENGINE = ServerLimits(), EngineLimits()


@dataclass(frozen=True, kw_only=True)
class LimitOptions:
    """What clients may ask for. Fields have the names that `ServerLimits` and `EngineLimits` give them."""

    max_running: Annotated[int, LIMITS("--max-running", "Answers that are decoded at once.", metavar="N")] = (
        _ENGINE.max_running
    )
    max_waiting: Annotated[
        int, LIMITS("--max-waiting", "Answers that wait for a place; more get 429.", metavar="N")
    ] = _ENGINE.max_waiting
    kv_tokens: Annotated[
        int, LIMITS("--kv-tokens", "Positions of the key-value cache, for all answers together.", metavar="N")
    ] = _ENGINE.kv_tokens
    tokens_per_pass: Annotated[
        int, LIMITS("--tokens-per-pass", "The most tokens that one forward pass feeds.", metavar="N")
    ] = _ENGINE.tokens_per_pass
    max_requests: Annotated[
        int, LIMITS("--max-requests", "Requests in progress at once; more get 429.", metavar="N")
    ] = _SERVER.max_requests
    max_answers: Annotated[int, LIMITS("--max-answers", "Answers that one request may ask for.", metavar="N")] = (
        _SERVER.max_answers
    )
    max_body_bytes: Annotated[
        int, LIMITS("--max-body-bytes", "The largest body of a request; a larger one gets 413.", metavar="N")
    ] = _SERVER.max_body_bytes
    body_seconds: Annotated[float, LIMITS("--body-seconds", "How long a body may take to arrive.", metavar="S")] = (
        _SERVER.body_seconds
    )
    request_seconds: Annotated[
        float, LIMITS("--request-seconds", "How long an answer may take to be written and read.", metavar="S")
    ] = _SERVER.request_seconds
    drain_seconds: Annotated[
        float, LIMITS("--drain-seconds", "How long running requests may take to finish after SIGTERM.", metavar="S")
    ] = _SERVER.drain_seconds


def serve(
    context: typer.Context,
    model: RuntimeOptions,
    limits: LimitOptions,
    vllm: VllmOptions,
    words: Annotated[
        list[str] | None,
        typer.Argument(metavar="[-- WORDS]", help="Further words for vLLM, as they stand.", show_default=False),
    ] = None,
    engine: Annotated[
        EngineName,
        SERVER(
            "--engine",
            "setblock: this package's own, on this machine. vllm: vLLM with this package's plugin, installed beside it.",
        ),
    ] = "setblock",
    host: Annotated[
        str, SERVER("--host", "Address to listen on; other machines reach 0.0.0.0.", metavar="H")
    ] = "127.0.0.1",
    port: Annotated[int, SERVER("--port", "0 takes one that is free.", metavar="P")] = 8000,
    name: Annotated[
        str | None, SERVER("--name", "The model's id for clients. Default: its folder's name, or hub id.", metavar="ID")
    ] = None,
    key_file: Annotated[
        Path | None,
        SERVER(
            "--key-file",
            f"API keys that clients must have, one a line. Or {KEYS_VARIABLE}, with commas between them.",
            metavar="FILE",
        ),
    ] = None,
    no_keys: Annotated[bool, SERVER("--no-keys", "Listen to other machines without API keys.")] = False,
    allowed_hosts: Annotated[
        list[str] | None,
        SERVER(
            "--allowed-host",
            "A host name that clients may call the server by, such as a proxy's; may be given again. Default: the "
            "names of this machine's loopback if it listens there, else any.",
            metavar="NAME",
        ),
    ] = None,
    log_level: Annotated[LogLevel, SERVER("--log-level", "Lines of JSON on stderr.")] = "info",
    log_text: Annotated[bool, SERVER("--log-text", "Put prompts and answers into the log.")] = False,
) -> None:
    """Serve a model: OpenAI's API under /v1, a playground at /, metrics for Prometheus at /metrics.

    SIGTERM and Ctrl-C let running requests finish; a second one stops at once. With --engine vllm all of this is
    vLLM's, and options that it has no place for are refused.
    """
    check_options(context, engine=engine)
    if not 0 <= port <= 65535:
        raise ParameterError(f"--port must be between 0 and 65535, not {port}")
    is_local = _is_loopback(host)
    if engine == "vllm":
        is_open = not (is_local or no_keys)
        serve_by_vllm(model, vllm, words or (), host=host, port=port, name=name, is_open=is_open)
        return
    if find_spec("fastapi") is None or find_spec("uvicorn") is None or find_spec("prometheus_client") is None:
        raise SetBlockError("setblock serve needs: pip install 'setblock[serve]'")
    from setblock.server.access import LOOPBACK_NAMES, read_keys
    from setblock.server.app import ServerConfig
    from setblock.server.run import Address, listen
    from setblock.server.run import serve as run

    keys = read_keys(key_file, os.environ.get(KEYS_VARIABLE))
    if not (is_local or keys or no_keys):
        raise SetBlockError(
            f"--host {host} lets other machines in: give API keys by --key-file or {KEYS_VARIABLE}, or say --no-keys"
        )
    of_engine, of_server = (_chosen(kind, limits) for kind in (EngineLimits, ServerLimits))
    bound, address = listen(Address(host, port))
    loaded = load_language_model(model, blocks=False)
    default, _ = tuned(loaded, DecodingSettings(), model)
    config = ServerConfig(
        name=name or _name_of(model.path),
        engine=of_engine,
        limits=of_server,
        keys=keys,
        hosts=(*allowed_hosts, *LOOPBACK_NAMES) if allowed_hosts else LOOPBACK_NAMES if is_local else (),
        default=default,
        logs_text=log_text,
    )
    _say_what_it_is(loaded, config.name)
    code = run(
        loaded,
        config,
        bound,
        log_level=log_level,
        on_start=lambda: print_message(f"serving {config.name}: playground at {address.url}/, API at {address.url}/v1"),
    )
    raise typer.Exit(code)


def _chosen(kind: Any, options: LimitOptions) -> Any:
    known = kind.__dataclass_fields__
    return kind(**{name: value for name, value in vars(options).items() if name in known})


def _is_loopback(host: str) -> bool:
    try:
        return ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def _name_of(path: str | None) -> str:
    from setblock.model.bundled import BUNDLED_MODEL

    given = Path(BUNDLED_MODEL if path is None else path)
    return given.resolve().name if given.is_dir() else str(path)


def _say_what_it_is(model: "LanguageModel", name: str) -> None:
    if model.facts is None or not model.facts.block_sizes:
        print_message(f"warning: {name} was never SBD-trained: method exact copies its drafts from the text")
