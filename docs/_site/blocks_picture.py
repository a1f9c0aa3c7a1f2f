"""Draw the animated picture of the README: one answer by plain decoding and in blocks, next to each other.

    python docs/_site/blocks_picture.py "Write a Python class Stack with the methods push, pop, peek and is_empty."
    python docs/_site/blocks_picture.py --model runs/mine --task tasks/extraction --example 3

Both sides are a real trace. Each step of the animation is one forward pass, and a token appears in the step that revealed it.
Tokens that a pass revealed together have one colour; a token that came alone is grey. The picture is one SVG file without a
script. Where a viewer asks for reduced motion, it shows the finished answers.
"""

import argparse
import shlex
import sys
from collections import defaultdict
from dataclasses import dataclass, replace
from html import escape
from itertools import islice
from pathlib import Path
from textwrap import fill

import setblock
from setblock.cli.answering.compare import token_texts
from setblock.data.tasks import task_named
from setblock.decoding.answer.generation import Generation
from setblock.decoding.settings.resolve import with_calibration
from setblock.evaluation.run import compare

COLUMNS, CHARACTER, LINE = 58, 6.8, 17  # a side's characters, the width of one and the height of a line in pixels
MARGIN, GAP = 16, 24
SIDE = COLUMNS * CHARACTER
SINGLE, COLOURS = "#30363d", ("#1f6feb", "#8957e5", "#1a7f37", "#9e6a03")
TICK, PAUSE = 0.09, 3.0  # seconds of one pass, and from the end of the slower side to the next round

STYLE = """\
text { font: 11.5px ui-monospace, SFMono-Regular, Menlo, Consolas, "DejaVu Sans Mono", monospace; fill: #f0f6fc }
.prompt { fill: #d2a8ff } .name { font-weight: bold } .passes { fill: #9da7b3 }
.bar { fill: #30363d } .done { fill: #3fb950 }
@media (prefers-reduced-motion: no-preference) {
g[class], .done { animation-duration: %.2fs; animation-iteration-count: infinite; animation-timing-function: step-end }
.done { animation-timing-function: linear }
%s
}"""


@dataclass(frozen=True)
class Piece:
    """Hold a part of a token that is on one line."""

    text: str
    line: int
    column: int


def pieces_by_pass(tokens: list[str], revealed_by: list[int]) -> dict[int, list[Piece]]:
    """Return the number of each pass -> what it revealed, in lines of `COLUMNS` characters."""
    found, line, column = defaultdict(list), 0, 0
    for token, number in zip(tokens, revealed_by, strict=True):
        for place, part in enumerate(token.replace("\t", "    ").split("\n")):
            if place or (part and column + len(part) > COLUMNS):
                line, column = line + 1, 0
                part = part if place else part.lstrip(" ")
            if part:
                found[number].append(Piece(part, line, column))
                column += len(part)
    return dict(found)


def piece_svg(piece: Piece, *, left: float, top: float, colour: str) -> str:
    """Return one piece: a coloured box and its text."""
    x, y, width = left + piece.column * CHARACTER, top + piece.line * LINE, len(piece.text) * CHARACTER
    return (
        f'<rect x="{x:.1f}" y="{y - 12:.1f}" width="{width - 0.6:.1f}" height="{LINE - 2}" rx="2" fill="{colour}"/>'
        f'<text x="{x:.1f}" y="{y:.1f}" textLength="{width:.1f}" lengthAdjust="spacingAndGlyphs" '
        f'xml:space="preserve">{escape(piece.text)}</text>'
    )


def side_svg(
    name: str, side: Generation, tokens: list[str], *, left: float, top: float, share: float
) -> tuple[str, int]:
    """Return one side of the picture, and the number of its lines.

    Args:
        share: of a round of the animation, the share that one pass takes.
    """
    passes, pieces = side.passes.total, pieces_by_pass(tokens, side.revealed_by)
    kind = "b" if side.method != "ntp" else "n"
    parts = [
        f'<text x="{left}" y="{top}"><tspan class="name">{escape(name)}</tspan>'
        f'<tspan class="passes">  {side.num_tokens} tokens in {passes} forward passes</tspan></text>',
        f'<rect class="bar" x="{left}" y="{top + 8}" width="{SIDE:.0f}" height="3" rx="1.5"/>',
        f'<rect class="done {kind}" x="{left}" y="{top + 8}" width="{SIDE:.0f}" height="3" rx="1.5"/>',
    ]
    rules = [
        f"@keyframes {kind} {{ 0% {{ width: 0 }} {100 * share * passes:.2f}% {{ width: {SIDE:.0f}px }} }}"
        f" .{kind} {{ animation-name: {kind} }}"
    ]
    together = [number for number in sorted(pieces) if side.revealed_by.count(number) > 1]
    for number, each in pieces.items():
        label, at = f"{kind}{number}", 100 * share * (number + 1)
        colour = COLOURS[together.index(number) % len(COLOURS)] if number in together else SINGLE
        drawn = [piece_svg(piece, left=left, top=top + 30, colour=colour) for piece in each]
        parts.append(f'<g class="{label}">{"".join(drawn)}</g>')
        rules.append(
            f"@keyframes {label} {{ 0% {{ visibility: hidden }} {at:.2f}% {{ visibility: visible }} }}"
            f" .{label} {{ animation-name: {label} }}"
        )
    lines = 1 + max((piece.line for each in pieces.values() for piece in each), default=0)
    return "\n".join([*parts, "<!--rules-->", *rules]), lines


def picture(model: setblock.SBDModel, prompt: str, *, max_new_tokens: int, command: str) -> str:
    """Return the picture as SVG, with the command that made it."""
    found = compare(model, prompt, settings=replace(with_calibration(model), max_new_tokens=max_new_tokens))
    if not found.identical:
        raise SystemExit("the two texts differ, and this picture is of method exact")
    sides = {"plain decoding": found.ntp, "setblock, the same text": found.blocks}
    seconds = TICK * max(side.passes.total for side in sides.values()) + PAUSE
    width = 2 * MARGIN + 2 * SIDE + GAP
    heads = fill(f"> {prompt}", int((width - 2 * MARGIN) / CHARACTER)).splitlines()
    top = MARGIN + 12 + LINE * len(heads) + 8
    bodies, rules, lines = [], [], 0
    for place, (name, side) in enumerate(sides.items()):
        left = MARGIN + place * (SIDE + GAP)
        tokens = token_texts(model.tokenizer, side)
        body, length = side_svg(name, side, tokens, left=left, top=top, share=TICK / seconds)
        drawn, _, ruled = body.partition("<!--rules-->\n")
        bodies.append(drawn)
        rules.append(ruled)
        lines = max(lines, length)
    head = "\n".join(
        f'<text x="{MARGIN}" y="{MARGIN + 12 + LINE * number}" class="prompt" xml:space="preserve">{escape(line)}</text>'
        for number, line in enumerate(heads)
    )
    return f"""<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width:.0f} {top + 30 + lines * LINE:.0f}" role="img">
<title>One answer by plain decoding and in blocks: tokens of one colour came from one forward pass</title>
<desc>{escape(command)}</desc>
<style>
{STYLE % (seconds, chr(10).join(rules))}
</style>
<rect width="100%" height="100%" rx="8" fill="#0d1117"/>
{head}
{"".join(bodies)}</svg>
"""


def main() -> None:
    """Write the picture."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("prompt", nargs="?")
    parser.add_argument("--model", default="smollm2")
    parser.add_argument("--task", help="answer an example of this task's test split instead of a prompt")
    parser.add_argument("--example", type=int, default=0, help="which example of the task, counted from 0")
    parser.add_argument("--max-new-tokens", type=int, default=128)
    parser.add_argument("--out", type=Path, default=Path("docs/blocks.svg"))
    args = parser.parse_args()
    if (args.task is None) == (args.prompt is None):
        parser.error("give either a prompt or --task")
    prompt = args.prompt or next(islice(task_named(args.task).examples(), args.example, None)).question
    command = shlex.join(["python", "docs/_site/blocks_picture.py", *sys.argv[1:]])
    drawn = picture(setblock.load(args.model), prompt, max_new_tokens=args.max_new_tokens, command=command)
    args.out.write_text(drawn, encoding="utf-8")
    print(f"wrote {args.out}")


if __name__ == "__main__":
    main()
