"""Define the `setblock` command: its commands, and the handling of errors, warnings and Ctrl-C in all of them."""

import warnings
from importlib.metadata import version
from typing import Annotated, Any

import typer
from typer.core import TyperGroup

from setblock.cli.answering.compare import compare
from setblock.cli.answering.fetch import fetch
from setblock.cli.answering.generate import generate
from setblock.cli.answering.serve import serve
from setblock.cli.main import INTERRUPTED
from setblock.cli.measuring.calibrate import calibrate
from setblock.cli.measuring.evaluate import evaluate
from setblock.cli.measuring.roofline import roofline
from setblock.cli.measuring.sweep import sweep
from setblock.cli.messages import (
    print_error,
    print_message,
    print_warning,
    silence_bars,
    silence_loggers,
    writable_stdout,
)
from setblock.cli.options.groups import with_option_groups
from setblock.cli.options.runtime import OF_LLAMA
from setblock.cli.training.data import inspect, prompts, regenerate, tokenise
from setblock.cli.training.export import export
from setblock.cli.training.merge import merge
from setblock.cli.training.train import train
from setblock.decoding.settings.table import REMOVED as REMOVED_SETTINGS
from setblock.errors import ParameterError, SetBlockError, SetBlockWarning

_TUNING = "method exact decides how much it drafts while it decodes: leave it out, or give --drafts fixed"
REMOVED = REMOVED_SETTINGS | {
    "tune": _TUNING,
    "no_tune": _TUNING,
    "events": "use --trace --json, which has all of it when the answer is finished",
    "continuous_batching": "leave it out: it changed no answer, and batches are faster",
}


class _Commands(TyperGroup):
    """Turn a user's mistake into one line and exit code 1, or 2 where a parameter is out of its range; anything else
    that goes wrong keeps its traceback."""

    def invoke(self, ctx: Any) -> Any:
        silence_loggers()
        silence_bars()
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of other libraries, which a user can't fix
            warnings.simplefilter("default", SetBlockWarning)  # each once
            warnings.showwarning = print_warning
            try:
                with writable_stdout():
                    return super().invoke(ctx)
            except SetBlockError as error:
                print_error(error)
                raise typer.Exit(2 if isinstance(error, ParameterError) else 1) from error
            except KeyboardInterrupt as error:
                print_message("interrupted")
                raise typer.Exit(INTERRUPTED) from error
            except Exception as error:  # typer does not export the one for an unknown option
                unknown = str(getattr(error, "option_name", ""))
                if (name := unknown.strip("-").replace("-", "_")) not in REMOVED:
                    raise
                print_error(ParameterError(f"{unknown} is not known: {REMOVED[name]}"))
                raise typer.Exit(2) from error


app = typer.Typer(
    cls=_Commands,
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)


def _print_version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"setblock {version('setblock')}")
        raise typer.Exit


@app.callback()
def _setblock(
    _: Annotated[
        bool, typer.Option("--version", callback=_print_version, is_eager=True, help="Print the version and exit.")
    ] = False,
) -> None:
    """Set Block Decoding: several tokens per forward pass from any Hugging Face causal LM."""


# Options that commands had before, and what helps instead.
_OF_RUNTIMES = {f"--{name.replace('_', '-')}": f"use --runtime-option {name}=VALUE" for name in OF_LLAMA}
_SANDBOX = {
    "--sandbox": "--allow-code-execution runs programs of coding tasks, confined by bubblewrap where it is installed"
}
GONE: dict[Any, dict[str, str]] = {
    generate: _OF_RUNTIMES,
    compare: _OF_RUNTIMES,
    evaluate: {
        **_OF_RUNTIMES,
        **_SANDBOX,
        "--tasks": "tasks of lm-evaluation-harness run by its own command: python -m setblock.integrations.lm_eval run "
        "--model setblock --model_args pretrained=MODEL,method=exact --tasks gsm8k",
    },
    sweep: {
        **_SANDBOX,
        "--figure": "experiments/sweep_figure.py of the repository draws the file of --output",
        "--out": "give the file to --output",
        "--from": "give the file to --results",
    },
    calibrate: {**_SANDBOX, "--prompts": "give the file to --input", "--sweep": "give the file to --results"},
    export: {"--gguf": "give the file to --output", "MODEL": "give the model to --model"},
    merge: {"--base": "give the model to --model"},
    serve: {
        **_OF_RUNTIMES,
        "--name": "use --served-model-name",
        "--max-running": "use --max-num-seqs",
        "--tokens-per-pass": "use --max-num-batched-tokens",
        "--engine": "`setblock serve` runs this package's engine. In vLLM, run vllm serve MODEL --hf-overrides "
        '\'{"architectures": ["SetBlockLlamaForCausalLM"], "canvas_length": 16}\'; docs/vllm.md says more',
    },
}
for command in (generate, compare, evaluate, sweep, calibrate, train, merge, export, fetch, serve, roofline):
    app.command()(with_option_groups(command, GONE.get(command, {})))


@app.command(hidden=True, context_settings={"ignore_unknown_options": True, "allow_extra_args": True})
def trace() -> None:
    """Refuse what was a command."""
    raise ParameterError("the command trace is gone: use setblock generate --trace")


data = typer.Typer(
    no_args_is_help=True, help="Inspect or tokenise the data of a recipe, or let a model write prompts and answers."
)
data.command()(with_option_groups(inspect))
data.command()(with_option_groups(tokenise))
data.command()(with_option_groups(regenerate))
data.command()(with_option_groups(prompts))
app.add_typer(data, name="data")
