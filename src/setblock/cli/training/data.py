"""Show what a recipe trains on before the training, and let a model write prompts and answers (`setblock data`)."""

import shlex
from dataclasses import replace
from pathlib import Path
from typing import Annotated

import typer

from setblock.cli.messages import print_json, progress, silence_libraries, stdout_console
from setblock.cli.options.decoding_options import DecodingOptions
from setblock.cli.options.groups import JsonOption, option, option_group
from setblock.cli.options.model import ModelOptions, load_model
from setblock.cli.options.recipe import RecipeOptions, RecordsOption, check_records
from setblock.decoding.settings.table import Method
from setblock.errors import ParameterError, SetBlockError


@option_group()
class RegenerateOptions(DecodingOptions):
    """Hold how answers are written: one token a pass, by default."""

    method: Method = option(
        "ntp", "ntp: one token per pass. exact: the same text in blocks. sbd: blocks without a check."
    )


def inspect(
    recipe: RecipeOptions,
    row: int = option(0, "Number of the row to show, from 0.", min=0),
    tokens: int = option(48, "Number of tokens to show of each half; 0 for all.", min=0),
    evaluation: bool = option(False, "Show a row of the evaluation data instead."),
    as_json: JsonOption = False,
) -> None:
    """Show one packed row of a recipe's data as the trainer gets it, and statistics of all rows.

    The command shows the tokens, labels, documents and positions of the row, and its noisy blocks in the first step. It
    trains nothing and loads no weights.
    """
    from setblock.cli.views.data_view import print_row, row_json
    from setblock.training.inspection import inspected_row

    checked, arguments = recipe.load()
    inspected = inspected_row(checked, arguments, row=row, evaluation=evaluation)
    if as_json:
        print_json(row_json(inspected))
    else:
        print_row(stdout_console(), inspected, limit=tokens or None)


def tokenise(
    recipe: RecipeOptions,
    output: Annotated[Path, option(..., "The folder to write.", "--output", metavar="DIR")],
    processes: int = option(1, "Number of processes that tokenise. The result does not depend on it.", min=1),
) -> None:
    """Tokenise and pack a recipe's data into a folder, for data.tokenised of the recipe.

    Each process of a training then reads its rows from the folder alone, and a resumed run starts at once. The same command
    resumes after an interruption.
    """
    from setblock.data.corpus.tokenised import tokenise as run
    from setblock.data.rows import limits_of, use_chat_template
    from setblock.training.run.train import context_length_of, starting_tokenizer

    checked, _ = recipe.load()
    config, tokenizer = starting_tokenizer(checked.model, checked.data)
    use_chat_template(checked.data, tokenizer)
    limits = limits_of(checked.data, context_length=context_length_of(config))
    with progress() as tell:
        census = run(
            checked.data,
            tokenizer,
            output,
            limits=limits,
            processes=processes,
            on_progress=lambda done: tell("documents", done, None),
        )
    typer.echo(f"{census.kept} documents, {census.tokens:,} tokens in {output}")
    typer.echo(
        f"next: setblock train {shlex.quote(str(recipe.recipe))} --set data.tokenised={shlex.quote(str(output))}"
    )


def regenerate(
    recipe: RecipeOptions,
    output: RecordsOption,
    batch_size: int = option(32, "Number of questions answered at once. It changes no answer.", min=1),
    *,
    model: ModelOptions,
    decoding: RegenerateOptions,
) -> None:
    """Let a model answer the prompts of a recipe's data, to train it on its own answers.

    The model is --model, or by default model.path of the recipe. Method exact gives the same answers as ntp. The same command
    resumes after an interruption. Then set data.source to the file.
    """
    from setblock.data.rows import use_chat_template
    from setblock.own_text.answers import questions_of
    from setblock.own_text.answers import regenerate as run

    check_records(output)
    checked, _ = recipe.load()
    path = checked.model.path if model.path is None else model.path
    if path is None:
        raise SetBlockError("the recipe starts from random weights: name a model with --model")
    settings = decoding.settings()
    loaded = load_model(replace(model, path=path), blocks=settings.method == "sbd")
    use_chat_template(checked.data, loaded.tokenizer)
    with progress() as tell:
        done = run(
            loaded,
            questions_of(checked.data),
            output,
            settings=settings,
            batch_size=batch_size,
            on_progress=lambda done: tell("answers", done.answers, None),
        )
    cut = done.questions - done.answers
    left_out = f"; {cut} did not end within --max-new-tokens and were left out" if cut else ""
    typer.echo(f"{done.answers} answers in {output}{left_out}")


def prompts(
    output: RecordsOption,
    count: int = option(
        1000, "Number of prompts to generate. Incomplete prompts and duplicates are then left out.", min=1
    ),
    system: list[str] | None = option(
        None,
        "A system message, which steers the topics. Can be repeated; the messages are used in turn. Default: that of "
        "the chat template.",
        metavar="TEXT",
        show_default=False,
    ),
    temperature: float = option(1.0, "Sampling temperature, above 0."),
    top_p: float = option(0.95, "As in `setblock generate`."),
    max_new_tokens: int = option(192, "Maximum length of a prompt, in tokens. Longer ones are left out."),
    seed: int = option(0, "Seed of the first prompt. Each further prompt has the next number."),
    *,
    model: ModelOptions,
) -> None:
    """Let a chat model write prompts, which `setblock data regenerate` then answers.

    The chat template opens a user's message, and the model continues it. The same command resumes after an interruption.
    """
    from setblock.decoding.settings.table import DecodingSettings
    from setblock.own_text.prompts import write_prompts

    check_records(output)
    if temperature <= 0:
        raise ParameterError(
            f"--temperature must be above 0, not {temperature}: the same prompt would be written each time"
        )
    settings = DecodingSettings(
        method="ntp", temperature=temperature, top_p=top_p, max_new_tokens=max_new_tokens, seed=seed
    )
    silence_libraries()
    loaded = load_model(model, blocks=False)
    with progress() as tell:
        written = write_prompts(
            loaded,
            output,
            count=count,
            systems=system or [None],
            settings=settings,
            on_progress=lambda asked: tell("prompts", asked, count),
        )
    typer.echo(f"{written} prompts in {output}")
