"""`setblock compare`: one prompt by both methods, side by side."""

from itertools import islice
from typing import Annotated

import typer

from setblock.cli import options
from setblock.cli.generate import generation_json
from setblock.cli.messages import print_json, stdout_console
from setblock.cli.model import load_model
from setblock.cli.prompt import read_prompt


def compare(
    prompt: Annotated[
        str | None,
        typer.Argument(
            metavar="[PROMPT]",
            help="What to answer; - reads it from stdin. Left out: a held-out word problem, chosen by --seed.",
            show_default=False,
        ),
    ] = None,
    model: options.ModelOption = None,
    gamma: options.GammaOption = options.DEFAULT_GAMMA,
    block_size: options.BlockSizeOption = None,
    temperature: options.TemperatureOption = 0.0,
    max_new_tokens: options.MaxNewTokensOption = None,
    seed: Annotated[
        int, typer.Option("--seed", metavar="S", help="Of the problem, and of draws at a temperature above 0.")
    ] = 0,
    raw: options.RawOption = False,
    dtype: options.DtypeOption = "auto",
    device: options.DeviceOption = None,
    trust_remote_code: options.TrustRemoteCodeOption = False,
    as_json: options.JsonOption = False,
) -> None:
    """Decode a prompt one token a pass (ntp), then in blocks (sbd), and show both texts, their passes and seconds.

    Tokens are coloured by the forward pass that revealed them; without colour, a list says what each pass revealed.
    Both methods run a few untimed passes first. The NFE speed-up is ntp's forward passes over sbd's, without the prefill on
    either side and with the commits; the wall-clock ratio is of the seconds, prefill included.
    """
    from setblock import DecodingSettings, EntropyBounded
    from setblock.cli.comparison_view import print_comparison
    from setblock.data.word_problems import answer_in, word_problems
    from setblock.evaluation.comparison import compare as run

    settings = DecodingSettings(
        sampler=EntropyBounded(gamma),
        block_size=block_size,
        max_new_tokens=max_new_tokens,
        temperature=temperature,
        seed=seed,
    )
    expected = None
    text = None if prompt is None else read_prompt(prompt)
    loaded = load_model(model, dtype=dtype, device=device, trust_remote_code=trust_remote_code, blocks=True)
    if text is None:
        problem = next(islice(word_problems("test", seed=seed), 1))
        raw = raw or loaded.tokenizer.chat_template is None
        text, expected = problem.prompt if raw else problem.question, problem.answer

    comparison = run(loaded, text, settings=settings, raw=raw)
    if not as_json:
        print_comparison(stdout_console(), loaded.tokenizer, comparison, prompt=text, expected=expected)
        return
    sides = {
        side.method: {
            **generation_json(side),
            "token_ids": side.token_ids,
            "revealed_by": side.revealed_by,
            **({} if expected is None else {"correct": answer_in(side.text) == expected}),
        }
        for side in (comparison.ntp, comparison.sbd)
    }
    result = {
        "prompt": text,
        **({} if expected is None else {"expected": expected}),
        **sides,
        "identical": comparison.identical,
        "nfe_speedup": comparison.nfe_speedup,
        "wall_clock_speedup": comparison.wall_clock_speedup,
        "gamma": gamma,
    }
    print_json(result)
