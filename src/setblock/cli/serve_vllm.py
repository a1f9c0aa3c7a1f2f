"""Show or run the command of vLLM that serves a checkpoint (`setblock serve --engine vllm`)."""

import os
import shlex
import shutil
from collections.abc import Sequence
from typing import Literal

import typer

from setblock.cli.model import ModelOptions
from setblock.cli.options import option, option_group
from setblock.errors import SetBlockError

VllmDecoding = Literal["blocks", "plain", "ngram"]  # as in `setblock.integrations.vllm.command`
KEY_VARIABLE = "VLLM_API_KEY"  # vLLM's own


@option_group("vLLM")
class VllmOptions:
    """Hold what only vLLM is asked for."""

    decoding: VllmDecoding = option(
        "blocks",
        "What vLLM runs: blocks by this package's plugin, plain next-token decoding, or vLLM's n-gram speculation.",
    )
    block_size: int | None = option(
        None, "Maximum block size of a request. Default: the largest that the model was trained with, at most 16."
    )
    print_command: bool = option(False, "Print vLLM's command instead of running it.")


# Parameters of `serve` that vLLM's command has a place for; the others are for our own engine, and those below for vLLM alone.
_SHARED = {"engine", "path", "dtype", "trust_remote_code", "host", "port", "name", "no_keys"}
_OWN = {"decoding", "block_size", "print_command", "words"}


def check_options(context: typer.Context, *, engine: str) -> None:
    """Refuse what was typed and does not concern the engine.

    Raises:
        SetBlockError: names it.
    """
    for parameter in context.command.params:
        name = str(parameter.name)
        source = context.get_parameter_source(name)
        if source is None or source.name != "COMMANDLINE":
            continue
        given = "WORDS" if name == "words" else parameter.opts[0]
        if engine == "vllm" and name not in _SHARED | _OWN:
            raise SetBlockError(f"{given} is not available with --engine vllm; give vLLM's options after --")
        if engine != "vllm" and name in _OWN:
            raise SetBlockError(f"{given} needs --engine vllm")


def serve_by_vllm(
    model: ModelOptions,
    options: VllmOptions,
    words: Sequence[str],
    *,
    host: str,
    port: int,
    name: str | None,
    is_open: bool,
) -> None:
    """Become vLLM's command, or print it.

    Args:
        words: further words for vLLM.
        is_open: whether other machines are let in without a key.

    Raises:
        SetBlockError: vLLM can't serve the model so, is not installed, or would let other machines in without a key.
    """
    from setblock.integrations.vllm.command import vllm_command

    typed = [*(["--dtype", model.dtype] if model.dtype != "auto" else [])]
    typed += ["--trust-remote-code"] if model.trust_remote_code else []
    command = vllm_command(
        model.source,
        decoding=options.decoding,
        block_size=options.block_size,
        host=host,
        port=port,
        served_model_name=name,
        extra=[*typed, *words],
    )
    if options.print_command:
        typer.echo(shlex.join(command))
        return
    if is_open and not os.environ.get(KEY_VARIABLE) and "--api-key" not in words:
        raise SetBlockError(
            f"--host {host} accepts other machines and needs an API key: set {KEY_VARIABLE}, or allow anybody with --no-keys"
        )
    found = shutil.which(command[0])
    if found is None:
        raise SetBlockError(f"the command vllm is not installed: see docs/vllm.md, then run {shlex.join(command)}")
    os.execv(found, command)  # signals and the exit code are vLLM's
