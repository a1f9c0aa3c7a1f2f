"""The `setblock` command: its subcommands, and the handling of errors, warnings and Ctrl-C in all of them."""

import signal
import warnings
from importlib.metadata import version
from typing import Annotated, Any

import typer
from typer.core import TyperGroup

from setblock.cli.answering.chat import chat
from setblock.cli.answering.compare import compare
from setblock.cli.answering.generate import generate
from setblock.cli.answering.serve import serve
from setblock.cli.checkpoints import export, fetch, merge
from setblock.cli.measuring.evaluate import calibrate, evaluate, sweep
from setblock.cli.measuring.roofline import roofline
from setblock.cli.messages import print_message, print_warning, silence_early, writable_stdout
from setblock.cli.options.groups import with_option_groups
from setblock.cli.training.data import inspect, regenerate, tokenise
from setblock.cli.training.train import train
from setblock.decoding.settings.table import RENAMED
from setblock.errors import ParameterError, SetBlockError, SetBlockWarning


class _Commands(TyperGroup):
    """The group of commands. It turns a user's mistake into one line and exit code 1, or 2 if a parameter is out of its range;
    any other exception keeps its traceback."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Parse arguments; earlier names of options are accepted, too."""
        return super().parse_args(ctx, [_current_name(each) for each in args])

    def invoke(self, ctx: Any) -> Any:
        silence_early()
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of other libraries, which a user can't fix
            warnings.simplefilter("default", SetBlockWarning)  # each once
            warnings.showwarning = print_warning
            try:
                with writable_stdout():
                    return super().invoke(ctx)
            except SetBlockError as error:
                print_message(f"error: {error}")
                raise typer.Exit(2 if isinstance(error, ParameterError) else 1) from error
            except KeyboardInterrupt as error:
                print_message("interrupted")
                raise typer.Exit(128 + signal.SIGINT) from error


def _current_name(argument: str) -> str:
    """Return an argument of the command line with its option's current name, and warn if it had an earlier one."""
    typed, equals, value = argument.partition("=")
    name = RENAMED.get(typed.removeprefix("--").replace("-", "_")) if typed.startswith("--") else None
    if name is None:
        return argument
    current = f"--{name.replace('_', '-')}"
    print_message(f"{typed} is now called {current}: use that name, the earlier one will go")
    return f"{current}{equals}{value}"


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


for command in (generate, chat, compare, evaluate, sweep, calibrate, train, merge, export, fetch, serve, roofline):
    app.command()(with_option_groups(command))


data = typer.Typer(
    no_args_is_help=True, help="Inspect or tokenise the data of a recipe, or let a model answer its prompts."
)
for of_data in (inspect, tokenise, regenerate):
    data.command()(with_option_groups(of_data))
app.add_typer(data, name="data")
