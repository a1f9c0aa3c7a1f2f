"""The animated picture of blocks being revealed: a prompt's answer by plain decoding and in blocks, side by side, in real time.

    python docs/_site/blocks_picture.py --model smollm2 --out docs/blocks.svg "Write a haiku about rain."

Both sides are real: the prompt is decoded by each method, and each token appears when its pass ended
on this machine, if all passes of a method took the same time. The picture loops, and needs no script.
"""

import argparse
from dataclasses import dataclass, replace
from html import escape
from pathlib import Path
from textwrap import fill

import setblock
from setblock.cli.comparison_view import token_texts
from setblock.decoding.calibrated import default_settings
from setblock.decoding.generation import Generation
from setblock.evaluation.comparison import compare

COLUMNS, CHARACTER, LINE = 52, 7.2, 18  # of a side: characters, their width and a line's height in pixels
SIDE = COLUMNS * CHARACTER + 24
COLOURS = ("#1f6feb", "#8957e5", "#238636", "#9e6a03")
PAUSE = 2.5  # seconds after the slower side has ended


@dataclass(frozen=True)
class Piece:
    """A part of a token that stands on one line."""

    text: str
    line: int
    column: int
    revealed_by: int


def pieces_of(tokens: list[str], revealed_by: list[int]) -> list[Piece]:
    """Where each token stands, in lines of `COLUMNS` characters."""
    pieces, line, column = [], 0, 0
    for token, number in zip(tokens, revealed_by, strict=True):
        for place, part in enumerate(token.replace("\t", "    ").split("\n")):
            if place:
                line, column = line + 1, 0
            if part and column + len(part) > COLUMNS:
                line, column = line + 1, 0
                part = part.lstrip(" ")
            if part:
                pieces.append(Piece(part, line, column, number))
                column += len(part)
    return pieces


def side_svg(
    name: str, side: Generation, tokens: list[str], *, left: float, top: float, seconds: float
) -> tuple[str, int]:
    """One side of the picture, and how many lines its text has."""
    pieces = pieces_of(tokens, side.revealed_by)
    passes = side.passes.total
    title = f"{name}: {side.num_tokens} tokens, {passes} passes, {side.seconds:.1f} s"
    parts = [f'<text x="{left + 12}" y="{top}" class="title">{escape(title)}</text>']
    for each in pieces:
        x, y = left + 12 + each.column * CHARACTER, top + 30 + each.line * LINE
        width = len(each.text) * CHARACTER
        appears = seconds * (each.revealed_by + 1) / passes
        parts.append(
            f'<g><set attributeName="visibility" to="hidden" begin="all.begin" dur="{appears:.2f}s"/>'
            f'<rect x="{x:.1f}" y="{y - 13:.1f}" width="{width - 0.6:.1f}" height="{LINE - 2}" rx="2" '
            f'fill="{COLOURS[each.revealed_by % len(COLOURS)]}"/>'
            f'<text x="{x:.1f}" y="{y:.1f}" textLength="{width:.1f}" lengthAdjust="spacingAndGlyphs" '
            f'xml:space="preserve">{escape(each.text)}</text></g>'
        )
    return "\n".join(parts), 1 + max((each.line for each in pieces), default=0)


def picture(model: setblock.SBDModel, prompt: str, *, max_new_tokens: int) -> str:
    """The picture as SVG."""
    found = compare(model, prompt, settings=replace(default_settings(model), max_new_tokens=max_new_tokens))
    sides = {"plain decoding": found.ntp, "in blocks, the same text": found.blocks}
    if not found.identical:
        raise SystemExit("the two texts differ: this picture is for method exact")
    shown = fill(f"> {prompt}", 2 * COLUMNS).splitlines()
    top = 44 + LINE * len(shown)
    bodies, lines = [], 0
    for place, (name, side) in enumerate(sides.items()):
        tokens = token_texts(model.tokenizer, side)
        body, length = side_svg(name, side, tokens, left=place * SIDE, top=top, seconds=side.seconds)
        bodies.append(body)
        lines = max(lines, length)
    width, height = 2 * SIDE, top + 30 + lines * LINE
    whole = max(side.seconds for side in sides.values()) + PAUSE
    head = "\n".join(
        f'<text x="12" y="{26 + LINE * number}" class="prompt" xml:space="preserve">{escape(line)}</text>'
        for number, line in enumerate(shown)
    )
    return f"""<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width:.0f} {height:.0f}" role="img">
<title>The same answer by plain decoding and in blocks: neighbouring tokens of one colour came from one pass</title>
<style>
text {{ font: 12px ui-monospace, SFMono-Regular, Menlo, Consolas, "DejaVu Sans Mono", monospace; fill: #f0f6fc }}
.title {{ font-weight: bold; fill: #8b949e }} .prompt {{ fill: #d2a8ff }}
</style>
<rect width="100%" height="100%" rx="8" fill="#0d1117"/>
<rect width="0" height="0"><animate id="all" attributeName="x" to="0" begin="0s;all.end" dur="{whole:.2f}s"/></rect>
{head}
{chr(10).join(bodies)}
</svg>
"""


def main() -> None:
    """Write the picture."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("prompt")
    parser.add_argument("--model", default="smollm2")
    parser.add_argument("--max-new-tokens", type=int, default=160)
    parser.add_argument("--out", type=Path, default=Path("docs/blocks.svg"))
    args = parser.parse_args()
    args.out.write_text(picture(setblock.load(args.model), args.prompt, max_new_tokens=args.max_new_tokens))
    print(f"wrote {args.out}")


if __name__ == "__main__":
    main()
