"""Compare one prompt by two methods, side by side (`setblock compare`)."""

from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from setblock.cli.messages import print_json, stdout_console
from setblock.cli.options.decoding_options import DecodingOptions, sampler_json
from setblock.cli.options.groups import DECODING, SAMPLING, JsonOption, option, option_group
from setblock.cli.options.model import warn_of_bundled
from setblock.cli.options.prompt import PromptOptions, shown
from setblock.cli.options.runtime import RuntimeOptions, load_language_model

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

    from setblock.decoding.answer.text import Prompt
    from setblock.evaluation.comparison import Comparison


@option_group()
class CompareOptions(DecodingOptions):
    """Hold how both sides are decoded."""

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
    prompt: Annotated[
        str | None,
        typer.Argument(
            metavar="PROMPT",
            help="The text to answer; - reads it from stdin. Default: a fitting example for models of `setblock fetch`, else a "
            "held-out word problem, chosen by --seed.",
            show_default=False,
        ),
    ] = None,
    as_json: JsonOption = False,
) -> None:
    """Decode a prompt by plain decoding (ntp), then in blocks, and show both texts, passes and seconds.

    The colour of a token shows the forward pass that revealed it. Without colours, a list shows what each pass revealed.
    Both methods run a few untimed passes first. The NFE speed-up is ntp's number of passes divided by the other method's,
    with commits and without the prefill. The wall-clock speed-up is the ratio of the seconds, including the prefill.
    """
    model.check()
    from setblock.cli.views.comparison_view import print_comparison
    from setblock.data.tasks.word_problems import word_problems
    from setblock.evaluation.comparison import compare as run
    from setblock.model.loading.named import example_prompt

    settings = decoding.settings()
    asked, raw = how.asked(prompt), how.raw
    if asked is not None:
        warn_of_bundled(model)
    elif (example := example_prompt(str(model.source))) is not None:
        asked = how.with_system(example)
    loaded = load_language_model(model, blocks=settings.method == "sbd")
    settings = decoding.settings_for(loaded)
    if asked is None:
        problem = next(word_problems("test", decoding.seed))
        raw = raw or loaded.tokenizer.chat_template is None
        asked = problem.prompt if raw else how.with_system(problem.question)

    comparison = run(loaded, asked, settings=settings, raw=raw)
    if as_json:
        found = comparison_json(comparison, loaded.tokenizer, prompt=asked)
        print_json({**found, **sampler_json(settings)})
    else:
        print_comparison(stdout_console(), loaded.tokenizer, comparison, prompt=shown(asked))


def comparison_json(
    comparison: "Comparison", tokenizer: "PreTrainedTokenizerBase", *, prompt: "Prompt"
) -> dict[str, Any]:
    """Return the JSON object of a comparison: each side under the name of its method."""
    from setblock.decoding.answer.generation import generation_json

    sides = {
        side.method: {
            **generation_json(side, tokenizer),
            "token_ids": side.token_ids,
            "revealed_by": side.revealed_by,
        }
        for side in (comparison.ntp, comparison.blocks)
    }
    return {
        "prompt": prompt,
        **sides,
        "identical": comparison.identical,
        "nfe_speedup": comparison.nfe_speedup,
        "wall_clock_speedup": comparison.wall_clock_speedup,
    }
