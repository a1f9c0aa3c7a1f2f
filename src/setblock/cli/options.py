"""Options of no group that commands share, and the panels that `--help` shows all options in."""

from typing import Annotated, Any

import typer

from setblock.data.splits import Split


class Panel(str):
    """A panel of `--help`, by its title. Called, it makes an option that is shown there."""

    def __call__(self, name: str, told: str, **more: Any) -> Any:
        """An option of typer's. `told` is its help, and `more` are typer's own arguments, such as `metavar`."""
        return typer.Option(name, help=told, rich_help_panel=str(self), **more)


TASK, HARNESS, MODEL = Panel("Task"), Panel("Tasks of lm-evaluation-harness"), Panel("Model")
DECODING, SAMPLING, OUTPUT, BATCH = Panel("Decoding"), Panel("Sampling"), Panel("Output"), Panel("Many prompts")
FORM = Panel("Form of the answer")

RawOption = Annotated[bool, DECODING("--raw", "Continue the prompt as plain text, without the chat template.")]
SplitOption = Annotated[
    Split, TASK("--split", "The split of examples: test for results, validation for choosing settings.")
]
JsonOption = Annotated[bool, OUTPUT("--json", "Print one JSON object on stdout, and nothing else.")]
