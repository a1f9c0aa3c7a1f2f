"""Options that commands share, each declared once. Ranges are checked where the value is used, by the library."""

from typing import Annotated, Literal

import typer

from setblock.data.word_problems import Split
from setblock.decoding.settings import Method

Dtype = Literal["auto", "float32", "bfloat16", "float16"]

DEFAULT_GAMMA = 0.1  # of EntropyBounded, which can't be imported here without PyTorch; a test holds them together

_MODEL, _DECODING, _OUTPUT = "Model", "Decoding", "Output"

ModelOption = Annotated[
    str | None,
    typer.Option(
        "--model",
        metavar="P",
        help="Folder or hub id of a causal LM. Default: the bundled reference model.",
        rich_help_panel=_MODEL,
    ),
]
DtypeOption = Annotated[
    Dtype,
    typer.Option("--dtype", help="Type of the weights; auto: the checkpoint's own.", rich_help_panel=_MODEL),
]
DeviceOption = Annotated[
    str | None,
    typer.Option(
        "--device",
        metavar="D",
        help="Where to run: cpu, cuda, cuda:1, mps. Default: a CUDA GPU if there is one, else the CPU.",
        rich_help_panel=_MODEL,
    ),
]
TrustRemoteCodeOption = Annotated[
    bool,
    typer.Option("--trust-remote-code", help="Run code that comes with the checkpoint.", rich_help_panel=_MODEL),
]
MethodOption = Annotated[
    Method,
    typer.Option(
        "--method",
        help="sbd: blocks, several tokens a forward pass. ntp: plain decoding, one token a pass.",
        rich_help_panel=_DECODING,
    ),
]
GammaOption = Annotated[
    float,
    typer.Option(
        "--gamma",
        metavar="G",
        help="Entropy bound in nats, at least 0: how uncertain, together, the tokens that one pass reveals may be. "
        "0 reveals one token a pass, inf the whole block.",
        rich_help_panel=_DECODING,
    ),
]
BlockSizeOption = Annotated[
    int | None,
    typer.Option(
        "--block-size",
        metavar="K",
        help="Tokens in a block, at least 1. Default: the largest that the model was trained with, at most 16.",
        rich_help_panel=_DECODING,
    ),
]
TemperatureOption = Annotated[
    float,
    typer.Option("--temperature", metavar="T", help="At least 0; 0 is greedy.", rich_help_panel=_DECODING),
]
MaxNewTokensOption = Annotated[
    int | None,
    typer.Option(
        "--max-new-tokens",
        metavar="N",
        help="The most tokens to write, at least 1. Default: 256, or what the model's context has room for.",
        rich_help_panel=_DECODING,
    ),
]
RawOption = Annotated[
    bool,
    typer.Option("--raw", help="Continue the prompt as it stands, without a chat template.", rich_help_panel=_DECODING),
]
SplitOption = Annotated[
    Split,
    typer.Option("--split", help="Which problems: test for results, validation for choosing settings."),
]
JsonOption = Annotated[
    bool,
    typer.Option("--json", help="Print one JSON object on stdout, and nothing else there.", rich_help_panel=_OUTPUT),
]
