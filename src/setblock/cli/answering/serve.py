"""The server of the API and the playground (`setblock serve`)."""

import os
from contextlib import suppress
from dataclasses import replace
from ipaddress import ip_address
from pathlib import Path
from typing import Literal

import typer

from setblock.cli.messages import print_message
from setblock.cli.options.decoding_options import PointOptions, template_kwargs
from setblock.cli.options.groups import argument, option, option_group, optional, options_of, rare
from setblock.cli.options.model import RuntimeOptions, load_language_model, warn_of_bundled
from setblock.engine.limits import EngineLimits
from setblock.errors import ParameterError, SetBlockError, check_installed, prefixed
from setblock.server.http.limits import ServerLimits

SERVER = "Server"
WORD_PROBLEM = "Maya has 12 apples. Maya finds 7 more. Maya gives away 4 of them. How many apples does Maya have now?"
KEYS_VARIABLE = "SETBLOCK_API_KEYS"
LogLevel = Literal["debug", "info", "warning", "error"]


@option_group("Limits", available=options_of(EngineLimits, ServerLimits, but_not=["page_tokens"]))
class LimitOptions:
    """The limits of what clients may request."""


def serve(
    model: RuntimeOptions,
    decoding: PointOptions,
    limits: LimitOptions,
    positional: str | None = argument(None, "The same as --model.", "MODEL"),
    host: str = option("127.0.0.1", "Address to listen on. 0.0.0.0 accepts other machines.", panel=SERVER),
    port: int = option(8000, "Port to listen on; 0 chooses a free one.", panel=SERVER),
    name: str | None = optional(
        "Model id for clients. Default: the name of the folder, or the hub id.",
        "--served-model-name",
        panel=SERVER,
        metavar="ID",
    ),
    key_file: Path | None = optional(
        f"File with the API keys that clients need, one per line. Alternative: the variable {KEYS_VARIABLE}, with commas.",
        panel=SERVER,
    ),
    no_keys: bool = option(False, "Accept other machines without API keys.", panel=SERVER),
    allowed_hosts: list[str] | None = optional(
        "Host name that clients may use, such as that of a proxy. Can be repeated. Default: the loopback names if the "
        "server listens on the loopback address, else any name.",
        "--allowed-host",
        panel=SERVER,
        metavar="NAME",
    ),
    default_chat_template_kwargs: str | None = rare(
        "What the chat template is rendered with besides the chat where a request says nothing, as JSON, such as "
        "'{\"enable_thinking\": false}'.",
        panel=SERVER,
        metavar="JSON",
    ),
    allowed_origins: list[str] | None = optional(
        "Origin of another site whose pages may ask, such as https://example.com; * for all. Can be repeated. Default: none.",
        "--allowed-origin",
        panel=SERVER,
        metavar="ORIGIN",
    ),
    log_level: LogLevel = option("info", "Minimum level of the log, which is lines of JSON on stderr.", panel=SERVER),
    log_text: bool = option(False, "Include prompts and answers in the log.", panel=SERVER),
) -> None:
    """Serve a model: OpenAI's API under /v1, a playground at /, metrics for Prometheus at /metrics.

    The options of decoding are what requests get that say nothing else. A request that names another method gets that
    method's own defaults.

    SIGTERM or Ctrl-C lets running requests finish, and a second one stops at once.
    """
    if positional is not None and model.path is not None:
        raise ParameterError("MODEL and --model exclude each other: give one of them")
    model = replace(model, path=positional or model.path)
    model.check()
    settings = decoding.settings()
    kwargs = template_kwargs("--default-chat-template-kwargs", default_chat_template_kwargs)
    if not 0 <= port <= 65535:
        raise ParameterError(f"--port must be between 0 and 65535, not {port}")
    check_installed("setblock serve", "fastapi", "uvicorn", "prometheus_client", extra="serve")
    from setblock.decoding.answer.template_kwargs import check_template_kwargs
    from setblock.model.loading.named import example_prompt
    from setblock.server.app import listen
    from setblock.server.app import serve as run
    from setblock.server.http.access import LOOPBACK_NAMES, origins_of, read_keys
    from setblock.server.serving import ServerConfig

    is_local = host == "localhost"
    with suppress(ValueError):  # of a name
        is_local = ip_address(host).is_loopback
    keys = read_keys(key_file, os.environ.get(KEYS_VARIABLE))
    if not (is_local or keys or no_keys):
        raise SetBlockError(
            f"--host {host} accepts other machines and needs API keys: give --key-file or {KEYS_VARIABLE}, "
            "or allow anybody with --no-keys"
        )
    given = vars(limits)
    of_engine = EngineLimits(**{name: given[name] for name in given.keys() & EngineLimits.__dataclass_fields__})
    of_server = ServerLimits(**{name: given[name] for name in given.keys() & ServerLimits.__dataclass_fields__})
    origins = origins_of(allowed_origins or ())
    bound, url = listen(host, port)
    with bound:
        notice = warn_of_bundled(model)
        loaded = load_language_model(model, blocks=settings.method == "sbd")
        if kwargs:
            with prefixed("--default-chat-template-kwargs"):
                check_template_kwargs(loaded.tokenizer, kwargs)
        folder = Path(model.source)
        config = ServerConfig(
            name=name or (folder.resolve().name if folder.is_dir() else str(model.source)),
            engine=of_engine,
            limits=of_server,
            keys=keys,
            hosts=(*allowed_hosts, *LOOPBACK_NAMES) if allowed_hosts else LOOPBACK_NAMES if is_local else (),
            origins=origins,
            default=settings,
            chat_template_kwargs=kwargs,
            logs_text=log_text,
            example=example_prompt(str(model.source)) if notice is None else WORD_PROBLEM,
            notice=notice,
        )
        if loaded.sbd_config is None or not loaded.sbd_config.block_sizes:
            print_message(
                f"warning: {config.name} was never trained for blocks: method exact copies its drafts from the text"
            )
        code = run(
            loaded,
            config,
            bound,
            log_level=log_level,
            on_start=lambda: print_message(f"serving {config.name}: playground at {url}/, API at {url}/v1"),
        )
        raise typer.Exit(code)
