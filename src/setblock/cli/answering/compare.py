"""The comparison of two methods on one prompt, side by side (`setblock compare`)."""

from typing import TYPE_CHECKING, Any, Literal

from rich import box
from rich.table import Table
from rich.text import Text

from setblock.cli.answering.generate import CONTROLS, PromptOptions, shown
from setblock.cli.messages import print_json, stdout_console
from setblock.cli.options.decoding_options import DecodingOptions, sampler_json
from setblock.cli.options.groups import DECODING, JSON, SAMPLING, argument, option, option_group
from setblock.cli.options.model import RuntimeOptions, load_language_model, warn_of_bundled
from setblock.decoding.answer.generation import Generation, generation_json
from setblock.model.loading.named import example_prompt

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

    from setblock.evaluation.run import Comparison


@option_group()
class CompareOptions(DecodingOptions):
    """The options of decoding both sides."""

    method: Literal["exact", "sbd"] = option(
        "exact",
        "The method to compare with ntp. exact: blocks, each checked so that the text is ntp's. sbd: blocks without a "
        "check.",
        panel=DECODING,
    )
    seed: int = option(0, "Seed that chooses the problem, and the tokens at a temperature above 0.", panel=SAMPLING)


def compare(
    model: RuntimeOptions,
    decoding: CompareOptions,
    how: PromptOptions,
    prompt: str | None = argument(
        None,
        "The text to answer; - reads it from stdin. Default: a fitting example for models of `setblock fetch`, else a "
        "held-out word problem, chosen by --seed.",
        "PROMPT",
    ),
    as_json: bool = JSON,
) -> None:
    """Decode a prompt by plain decoding (ntp), then in blocks, and show both texts, passes and seconds.

    The colour of a token shows the forward pass that revealed it (`generate --trace` shows each pass).
    Both methods run a few untimed passes first. The NFE speed-up is ntp's number of passes divided by the other method's,
    with commits and without the prefill. The wall-clock speed-up is the ratio of the seconds, including the prefill.
    """
    model.check()
    from setblock.data.tasks.word_problems import word_problems
    from setblock.evaluation.run import compare as run

    settings = decoding.settings()
    requested, given = how.requested(prompt), how.given()
    if requested is not None:
        warn_of_bundled(model)
    elif (example := example_prompt(str(model.source))) is not None:
        requested = how.with_system(example)
    loaded = load_language_model(model, blocks=settings.method == "sbd")
    settings = decoding.settings_for(loaded)
    if requested is None:
        problem = next(word_problems("test", decoding.seed))
        given["raw"] = given["raw"] or loaded.tokenizer.chat_template is None
        requested = problem.prompt if given["raw"] else how.with_system(problem.question)

    comparison = run(loaded, requested, settings=settings, **given)
    if as_json:
        found: dict[str, Any] = {"prompt": requested}
        for side in (comparison.ntp, comparison.blocks):
            tokens = {"token_ids": side.token_ids, "revealed_by": side.revealed_by}
            found[side.method] = {**generation_json(side, loaded.tokenizer), **tokens}
        figures = ("identical", "nfe_speedup", "wall_clock_speedup")
        print_json(found | {name: getattr(comparison, name) for name in figures} | sampler_json(settings))
    else:
        _show(comparison, loaded.tokenizer, prompt=shown(requested))


# The terminal's own colours, so that they read on its background whatever that is; neighbours are easy to distinguish.
PALETTE = ("cyan", "magenta", "green", "yellow", "blue", "red")

_FEW_PASSES = 24

TITLES = {"ntp": "one token a pass", "sbd": "blocks", "exact": "blocks, each checked so that the text is ntp's"}


def _show(comparison: "Comparison", tokenizer: "PreTrainedTokenizerBase", *, prompt: str) -> None:
    console = stdout_console()
    coloured = console.color_system is not None and not console.no_color
    console.print(Text(prompt.strip(), style="dim"), soft_wrap=True)
    for side in (comparison.ntp, comparison.blocks):
        title = Text(f"{side.method}: {TITLES[side.method]}", style="bold")
        pieces = token_texts(tokenizer, side)
        text = Text.assemble(*((piece, _style(by)) for piece, by in zip(pieces, side.revealed_by, strict=True)))
        console.print("", title, text, sep="\n", soft_wrap=True)
    if coloured:
        console.print("", _legend(comparison.blocks), sep="\n", soft_wrap=True)
    console.print(_table(comparison))
    console.print(Text("\n".join(_verdict(comparison))), soft_wrap=True)


def token_texts(tokenizer: "PreTrainedTokenizerBase", generation: Generation) -> list[str]:
    """Return what each token adds to the text, safe to print. A character of several tokens counts as its last token's."""
    from setblock.decoding.answer.detokenize import AnswerText

    text, pieces = AnswerText(tokenizer), []
    for count, token_id in enumerate(generation.token_ids, start=1):
        text.read([token_id])
        pieces.append(text.take(final=count == generation.num_tokens).translate(CONTROLS))
    return pieces


def _style(number: int) -> str:
    return PALETTE[number % len(PALETTE)]


def _legend(generation: Generation) -> Text:
    numbers = sorted(set(generation.revealed_by))
    if len(numbers) > _FEW_PASSES:
        return Text("the colour changes with each pass", style="dim")
    names = [(f" pass {number} " if number else " prefill ", _style(number)) for number in numbers]
    return Text.assemble(("colour: the pass that revealed a token: ", "dim"), *names)


def _table(comparison: "Comparison") -> Table:
    table = Table(box=box.SIMPLE, pad_edge=False)  # as wide as it may be in 80 columns
    table.add_column("method", no_wrap=True)
    for name in ("tokens", "prefill", "block", "commit", "forwards", "per forward", "seconds"):
        table.add_column(name, justify="right", no_wrap=True)
    for side in (comparison.ntp, comparison.blocks):
        passes = side.passes
        counts = map(str, (side.num_tokens, passes.prefill, passes.block, passes.commit, passes.total))
        table.add_row(side.method, *counts, f"{side.tokens_per_forward:.2f}", f"{side.seconds:.2f}")
    return table


def _verdict(comparison: "Comparison") -> list[str]:
    ntp, blocks = comparison.ntp, comparison.blocks
    texts = "identical"
    if not comparison.identical:
        pairs = zip(ntp.token_ids, blocks.token_ids, strict=False)
        same = next((i for i, (a, b) in enumerate(pairs) if a != b), min(ntp.num_tokens, blocks.num_tokens))
        texts = f"differ from token {same + 1} on"
    lines = [f"texts                {texts}"]
    if comparison.nfe_speedup is not None:
        counts = f"{ntp.passes.decoding} / {blocks.passes.decoding} forwards, prefill left out"
        lines.append(f"NFE speed-up         {comparison.nfe_speedup:.2f}x ({counts})")
    seconds = f"{ntp.seconds:.2f} s / {blocks.seconds:.2f} s"
    return [*lines, f"wall-clock speed-up  {comparison.wall_clock_speedup:.2f}x ({seconds})"]
