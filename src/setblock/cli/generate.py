"""`setblock generate`: one answer, streamed."""

from typing import TYPE_CHECKING, Annotated, Any

import typer

from setblock.cli import options
from setblock.cli.messages import print_figures, print_json
from setblock.cli.model import load_model
from setblock.cli.prompt import read_prompt

if TYPE_CHECKING:
    from setblock.decoding.generate import Generation


def generate(
    prompt: Annotated[
        str, typer.Argument(metavar="PROMPT", help="What to answer; - reads it from stdin.", show_default=False)
    ],
    model: options.ModelOption = None,
    method: options.MethodOption = "sbd",
    gamma: options.GammaOption = options.DEFAULT_GAMMA,
    block_size: options.BlockSizeOption = None,
    temperature: options.TemperatureOption = 0.0,
    max_new_tokens: options.MaxNewTokensOption = None,
    seed: Annotated[int, typer.Option("--seed", metavar="S", help="Of the draws at a temperature above 0.")] = 0,
    raw: options.RawOption = False,
    dtype: options.DtypeOption = "auto",
    device: options.DeviceOption = None,
    trust_remote_code: options.TrustRemoteCodeOption = False,
    as_json: options.JsonOption = False,
) -> None:
    """Answer a prompt, writing text as it becomes final; then, on stderr, tokens, forward passes and seconds.

    Every forward pass counts: the prefill, passes over a block, and passes that commit a finished block while they begin
    the next one.
    """
    from setblock import DecodingSettings, EntropyBounded, stream

    settings = DecodingSettings(
        method=method,
        sampler=EntropyBounded(gamma),
        block_size=block_size,
        max_new_tokens=max_new_tokens,
        temperature=temperature,
        seed=seed,
    )
    text = read_prompt(prompt)
    loaded = load_model(model, dtype=dtype, device=device, trust_remote_code=trust_remote_code, blocks=method != "ntp")
    for chunk in stream(loaded, text, settings=settings, raw=raw):
        if not as_json:
            typer.echo(chunk.text, nl=False)
        if chunk.generation is not None:
            _finish(chunk.generation, as_json=as_json)


def _finish(generation: "Generation", *, as_json: bool) -> None:
    if as_json:
        print_json(generation_json(generation))
        return
    typer.echo()
    passes = generation.passes
    print_figures(
        f"{generation.num_tokens} tokens, {generation.num_forwards} forwards "
        f"({passes.prefill} prefill, {passes.block} block, {passes.commit} commit), "
        f"{generation.tokens_per_forward:.2f} tokens per forward, {generation.seconds:.2f} s"
    )


def generation_json(generation: "Generation") -> dict[str, Any]:
    """The JSON object of one answer."""
    return {
        "text": generation.text,
        "finish_reason": generation.finish_reason,
        "num_tokens": generation.num_tokens,
        "num_forwards": generation.num_forwards,
        "num_prefill_forwards": generation.passes.prefill,
        "num_block_forwards": generation.passes.block,
        "num_commit_forwards": generation.passes.commit,
        "tokens_per_forward": generation.tokens_per_forward,
        "seconds": generation.seconds,
        "method": generation.method,
    }
