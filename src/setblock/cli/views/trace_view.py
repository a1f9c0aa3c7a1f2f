"""Show the output of `setblock generate --trace` in a terminal."""

from rich.text import Text

from setblock.cli.messages import print_json, stdout_console
from setblock.cli.options.decoding_options import sampler_json
from setblock.cli.options.prompt import shown
from setblock.cli.views.comparison_view import CONTROLS
from setblock.decoding.settings.table import DecodingSettings
from setblock.evaluation.tracing import Trace, TracedPass, TracedToken

_STYLES = {"prefill": "cyan", "token": "cyan", "block": "green", "commit": "magenta"}


def print_trace(trace: Trace, settings: DecodingSettings, *, as_json: bool) -> None:
    """Print the prompt, then for each pass a line of figures and the open block as it left it; or all of it as JSON."""
    if as_json:
        print_json({**trace.to_json(), **sampler_json(settings)})
        return
    console = stdout_console()
    console.print(Text(shown(trace.prompt).strip().translate(CONTROLS), style="dim"), soft_wrap=True)
    standing: dict[int, TracedToken] = {}
    for each in trace.passes:
        for index in each.dropped:
            del standing[index]
        if each.corrected is not None:
            standing[each.corrected.index] = each.corrected
        standing |= {token.index: token for token in each.revealed}
        console.print()
        console.print(_head(each), soft_wrap=True)
        console.print(_block(each, standing), soft_wrap=True)
    count = len(trace.passes)
    figures = f"{len(trace.tokens)} tokens, {count} forwards, {len(trace.tokens) / count:.2f} tokens per forward"
    console.print(Text(f"\n{figures}", style="dim"), soft_wrap=True)


def _head(traced: TracedPass) -> Text:
    name = "prefill" if traced.kind == "prefill" else f"pass {traced.number}"
    kind = "" if traced.kind == "prefill" else f"{traced.kind:<7}"
    parts = [f"{len(traced.revealed)} revealed"]
    if traced.revealed:
        parts[0] += f" at {_range([token.entropy for token in traced.revealed])}"
    if traced.masked:
        parts.append(f"{len(traced.masked)} masked at {_range([entropy for _, entropy in traced.masked])}")
    if traced.corrected is not None:
        parts.append(f"draft corrected at token {traced.corrected.index + 1}")
    return Text.assemble((f"{name:<9}{kind}", f"bold {_STYLES[traced.kind]}"), (", ".join(parts), "dim"))


def _range(entropies: list[float]) -> str:
    low, high = min(entropies), max(entropies)
    return f"{low:.2f} nats" if len(entropies) == 1 else f"{low:.2f} to {high:.2f} nats"


def _block(traced: TracedPass, standing: dict[int, TracedToken]) -> Text:
    new = {token.index for token in traced.revealed} | ({traced.corrected.index} if traced.corrected else set())
    end = min((index for index, token in standing.items() if token.is_end), default=traced.start + traced.size - 1)
    text = Text("  ")
    for index in range(traced.start, min(end, traced.start + traced.size - 1) + 1):
        if index not in standing:
            text.append("_", style="dim")
        elif index in new:
            text.append(f"[{_shown(standing[index])}]", style=f"bold {_STYLES[traced.kind]}")
        else:
            text.append(_shown(standing[index]))
    return text


def _shown(token: TracedToken) -> str:
    return "end of text" if token.is_end else token.text.replace("\n", "↵").translate(CONTROLS)
