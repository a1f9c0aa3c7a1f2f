"""A recipe's data before the training: show it, tokenise it, and let a model answer its prompts (`setblock data`)."""

import shlex
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer
from rich import box
from rich.table import Table
from rich.text import Text

from setblock.cli.messages import counted, figures_table, print_json, progress, resumable, stdout_console
from setblock.cli.options.decoding_options import DecodingOptions
from setblock.cli.options.groups import JSON, option, option_group
from setblock.cli.options.model import ModelOptions, load_model
from setblock.cli.training.train import RecipeOptions
from setblock.decoding.settings.table import Method
from setblock.errors import ParameterError, SetBlockError

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase


@option_group()
class RegenerateOptions(DecodingOptions):
    """The options of decoding answers; by default one token a pass."""

    method: Method = option(
        "ntp", "ntp: one token per pass. exact: the same text in blocks. sbd: blocks without a check."
    )


def inspect(
    recipe: RecipeOptions,
    row: int = option(0, "Number of the row to show, from 0.", min=0),
    tokens: int = option(48, "Number of tokens to show of each half; 0 for all.", min=0),
    evaluation: bool = option(False, "Show a row of the evaluation data instead."),
    as_json: bool = JSON,
) -> None:
    """Show one packed row of a recipe's data as the trainer gets it, and statistics of all rows.

    The command shows the tokens, labels, documents and positions of the row, and its noisy blocks in the first step. It
    trains nothing and loads no weights.
    """
    from setblock.training.inspection import inspected_row

    checked, arguments = recipe.load()
    shown, tokenizer = inspected_row(checked, arguments, row=row, evaluation=evaluation)
    if as_json:
        print_json(shown)
    else:
        _show_row(shown, tokenizer, limit=tokens or None)


def tokenise(
    recipe: RecipeOptions,
    output: Path = option(..., "The folder to write.", metavar="DIR"),
    processes: int = option(1, "Number of processes that tokenise. The result does not depend on it.", min=1),
) -> None:
    """Tokenise and pack a recipe's data into a folder, for data.tokenised of the recipe.

    Each process of a training then reads its rows from the folder alone, and a resumed run starts at once. The same command
    resumes after an interruption.
    """
    from setblock.data.corpus.corpus import DocumentLimits
    from setblock.data.corpus.tokenised import tokenise as run
    from setblock.training.run.train import context_length_of, starting_tokenizer

    checked, _ = recipe.load()
    config, tokenizer = starting_tokenizer(checked.model, checked.data)
    with resumable(), progress() as report:
        census = run(
            checked.data,
            tokenizer,
            output,
            limits=DocumentLimits(context_length_of(config)),
            processes=processes,
            on_progress=lambda done: report("documents", done, None),
        )
    typer.echo(f"{counted(census.kept, 'document')}, {census.tokens:,} tokens in {output}")
    typer.echo(
        f"next: setblock train {shlex.quote(str(recipe.recipe))} --set data.tokenised={shlex.quote(str(output))}"
    )


def regenerate(
    recipe: RecipeOptions,
    output: Path = option(..., "The .jsonl file to write.", "--output"),
    batch_size: int = option(32, "Number of questions answered at once. It changes no answer.", min=1),
    *,
    model: ModelOptions,
    decoding: RegenerateOptions,
) -> None:
    """Let a model answer the prompts of a recipe's data, to train it on its own answers.

    The model is --model, or by default model.path of the recipe. Method exact gives the same answers as ntp. The same command
    resumes after an interruption. Then set data.source to the file.
    """
    from setblock.data.texts.chat import use_chat_template
    from setblock.json_lines import PartFile
    from setblock.own_text import questions_of
    from setblock.own_text import regenerate as run

    if not output.name.endswith(".jsonl"):
        raise ParameterError(f"--output must end in .jsonl, not {output.name!r}")
    checked, _ = recipe.load()
    path = checked.model.path if model.path is None else model.path
    if path is None:
        raise SetBlockError("the recipe starts from random weights: name a model with --model")
    settings = decoding.settings()
    PartFile(output).close()  # refused, if it must be, before the model is loaded
    loaded = load_model(replace(model, path=path), blocks=settings.method == "sbd")
    use_chat_template(checked.data.chat_template, loaded.tokenizer)
    with resumable(), progress() as report:
        requested, answers = run(
            loaded,
            questions_of(checked.data),
            output,
            settings=settings,
            batch_size=batch_size,
            on_progress=lambda answers: report("answers", answers, None),
        )
    cut = requested - answers
    left_out = (
        f"; {cut} were left out: they did not end within --max-new-tokens, or called a tool without JSON" if cut else ""
    )
    typer.echo(f"{counted(answers, 'answer')} in {output}{left_out}")


_NOTHING = Text("·")
_MASK = Text("<mask>", style="yellow")
_PADDING = Text("padding", style="dim")


def _show_row(row: dict[str, Any], tokenizer: "PreTrainedTokenizerBase", *, limit: int | None) -> None:
    console = stdout_console()
    halves = [row["clean"]] if row["noisy"] is None else [row["clean"], row["noisy"]]
    lengths = [len(half["input_ids"]) for half in halves]
    console.print(_statistics(row["statistics"]))
    title = f"row {row['row']}: {lengths[0]} clean tokens"
    if row["noisy"] is not None:
        title += f", {lengths[1]} noisy ones in blocks of {row['block_size']}"
    console.print(Text(title, style="bold"))
    for number, where in enumerate(row["where"]):
        console.print(Text(f"  document {number}: {where}", style="dim"), soft_wrap=True)
    for half, length in zip(halves, lengths, strict=True):
        console.print(_table(half, tokenizer, range(length)[:limit]))
        if limit is not None and length > limit:
            console.print(Text(f"… and {length - limit} more; --tokens 0 shows all", style="dim"))


def _statistics(counts: dict[str, Any]) -> Table:
    left_out = (
        ("too long", counts["too_long"]),
        ("spelling a special token, dropped", counts["special"]),
        ("without anything to learn, dropped", counts["without_targets"]),
    )
    return figures_table(
        [
            ("rows", f"{counts['rows']:,}"),
            ("documents", f"{counts['documents']:,}"),
            *((f"  {name}", f"{count:,}") for name, count in left_out if count),
            ("tokens", f"{counts['tokens']:,}"),
            ("  that carry loss", f"{counts['targets']:,} ({counts['targets'] / max(1, counts['tokens']):.1%})"),
            ("padding", f"{counts['padding']:.1%}"),
        ]
    )


def _table(half: dict[str, list[Any]], tokenizer: "PreTrainedTokenizerBase", places: range) -> Table:
    """Return a table with a line for each token at `places` of the clean or of the noisy half."""
    blocks = half.get("block_ids", [])  # of the noisy half

    def text_of(token_id: int | None, style: str = "") -> Text:
        """Return a token's text in quotes, so that its spaces and line breaks are seen."""
        return _NOTHING if token_id is None else Text(repr(tokenizer.decode([token_id])), style=style)

    table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    for name in ("block" if blocks else "#", "document", "position"):
        table.add_column(name, justify="right", no_wrap=True)
    table.add_column("token", no_wrap=True)
    table.add_column("sees clean" if blocks else "label", justify="right" if blocks else "left", no_wrap=True)
    table.add_column("output learns", no_wrap=True)
    for i in places:
        token, document, position = (half[name][i] for name in ("input_ids", "document_ids", "position_ids"))
        of_token = (str(document), str(position), _MASK if token is None else text_of(token))
        table.add_row(
            str(blocks[i] if blocks else i),
            *((_NOTHING, _NOTHING, _PADDING) if document < 0 and not blocks else of_token),
            f"before {half['block_starts'][i]}" if blocks else text_of(half["labels"][i], "green"),
            text_of(half["predicts"][i], "green"),
            end_section=bool(blocks) and blocks[i] != blocks[min(i + 1, len(blocks) - 1)],
        )
    return table
