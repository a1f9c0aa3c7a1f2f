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

    max_running: Annotated[int, LIMITS("--max-running", "Maximum number of answers decoded at once.", metavar="N")] = (
        _ENGINE.max_running
    )
    max_waiting: Annotated[
        int,
        LIMITS("--max-waiting", "Maximum number of answers that wait. Further requests get status 429.", metavar="N"),
    ] = _ENGINE.max_waiting
    kv_tokens: Annotated[
        int, LIMITS("--kv-tokens", "Number of tokens in the key-value cache, for all answers together.", metavar="N")
    ] = _ENGINE.kv_tokens
    tokens_per_pass: Annotated[
        int, LIMITS("--tokens-per-pass", "Maximum number of tokens in one forward pass.", metavar="N")
    ] = _ENGINE.tokens_per_pass
    max_requests: Annotated[
        int,
        LIMITS(
            "--max-requests", "Maximum number of requests in progress. Further requests get status 429.", metavar="N"
        ),
    ] = _SERVER.max_requests
    max_answers: Annotated[int, LIMITS("--max-answers", "Maximum number of answers of one request.", metavar="N")] = (
        _SERVER.max_answers
    )
    max_body_bytes: Annotated[
        int, LIMITS("--max-body-bytes", "Maximum size of a request body. A larger one gets status 413.", metavar="N")
    ] = _SERVER.max_body_bytes
    body_seconds: Annotated[
        float, LIMITS("--body-seconds", "Time limit for receiving a request body.", metavar="S")
    ] = _SERVER.body_seconds
    request_seconds: Annotated[
        float, LIMITS("--request-seconds", "Time limit for an answer, until the client has read it.", metavar="S")
    ] = _SERVER.request_seconds
    drain_seconds: Annotated[
        float, LIMITS("--drain-seconds", "Time limit for running requests after SIGTERM.", metavar="S")
    ] = _SERVER.drain_seconds


def serve(
    context: typer.Context,
    model: RuntimeOptions,
    limits: LimitOptions,
    vllm: VllmOptions,
    words: Annotated[
        list[str] | None,
        typer.Argument(metavar="[-- WORDS]", help="Further arguments, which vLLM gets unchanged.", show_default=False),
    ] = None,
    engine: Annotated[
        EngineName,
        SERVER(
            "--engine",
            "setblock: this package's engine. vllm: vLLM with this package's plugin (needs an installed vLLM).",
        ),
    ] = "setblock",
    host: Annotated[
        str, SERVER("--host", "Address to listen on. 0.0.0.0 accepts other machines.", metavar="H")
    ] = "127.0.0.1",
    port: Annotated[int, SERVER("--port", "Port to listen on; 0 chooses a free one.", metavar="P")] = 8000,
    name: Annotated[
        str | None,
        SERVER("--name", "Model id for clients. Default: the name of the folder, or the hub id.", metavar="ID"),
    ] = None,
    key_file: Annotated[
        Path | None,
        SERVER(
            "--key-file",
            f"File with the API keys that clients need, one per line. Alternative: the variable {KEYS_VARIABLE}, with commas.",
            metavar="FILE",
        ),
    ] = None,
    no_keys: Annotated[bool, SERVER("--no-keys", "Accept other machines without API keys.")] = False,
    allowed_hosts: Annotated[
        list[str] | None,
        SERVER(
            "--allowed-host",
            "Host name that clients may use, such as that of a proxy. Can be repeated. Default: the loopback "
            "names if the server listens on the loopback address, else any name.",
            metavar="NAME",
        ),
    ] = None,
    log_level: Annotated[
        LogLevel, SERVER("--log-level", "Minimum level of the log, which is lines of JSON on stderr.")
    ] = "info",
    log_text: Annotated[bool, SERVER("--log-text", "Include prompts and answers in the log.")] = False,
) -> None:
    """Serve a model: OpenAI's API under /v1, a playground at /, metrics for Prometheus at /metrics.

    SIGTERM or Ctrl-C lets running requests finish, and a second one stops at once. With --engine vllm, vLLM does all of this,
    and options that vLLM does not have are refused.
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
            f"--host {host} accepts other machines and needs API keys: give --key-file or {KEYS_VARIABLE}, "
            "or allow anybody with --no-keys"
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
