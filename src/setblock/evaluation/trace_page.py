"""A trace as one HTML file that plays it back: nothing is loaded from elsewhere, so it can be mailed and opened anywhere.

Knows HTML's and JavaScript's escapes: prompt and answer are texts of strangers, and stay texts. The page itself is
`templates/trace.html`; without JavaScript it shows the same passes as a list.
"""

import base64
import hashlib
import html
import json
import re
from importlib.resources import files

from setblock.evaluation.tracing import Trace, TracedPass, TracedToken

_KINDS = {
    "prefill": "prefill, over the prompt",
    "token": "one token",
    "block": "block pass",
    "commit": "commit, and first pass over the next block",
}


def trace_page(trace: Trace) -> str:
    """The page of a trace."""
    template = files("setblock.evaluation").joinpath("templates/trace.html").read_text(encoding="utf-8")
    script = re.search(r"<script>(.*?)</script>", template, re.DOTALL)
    assert script is not None
    digest = base64.b64encode(hashlib.sha256(script[1].encode()).digest()).decode()
    values = {
        "SCRIPT_HASH": f"sha256-{digest}",  # no other script may run in the page
        "PROMPT": html.escape(trace.prompt),
        "ANSWER": html.escape(trace.text.strip()),
        "SUMMARY": html.escape(_summary(trace)),
        "PASSES": "\n".join(f"<li>{html.escape(pass_in_words(each))}</li>" for each in trace.passes),
        "TRACE": _json_in_script(trace),
    }
    # At once, so that a text that looks like a placeholder is no placeholder.
    return re.sub("|".join(f"@@{name}@@" for name in values), lambda found: values[found[0].strip("@")], template)


def _summary(trace: Trace) -> str:
    count = len(trace.passes)
    how = f"method {trace.method}" + (f", block size {trace.block_size}" if trace.method != "ntp" else "")
    return f"{len(trace.tokens)} tokens in {count} forward passes, {len(trace.tokens) / count:.2f} a pass; {how}"


def pass_in_words(traced: TracedPass) -> str:
    """A pass in a sentence or two: what the page's screen-reader text says, and its list."""
    name = "Prefill" if traced.kind == "prefill" else f"Pass {traced.number}"
    told = [f"{name} ({_KINDS[traced.kind]})."]
    if traced.corrected is not None:
        told.append(
            f"Draft corrected at position {traced.corrected.index + 1} to {_quoted(traced.corrected)}; the rest is dropped."
        )
    if traced.revealed:
        revealed = ", ".join(
            f"{_quoted(each)} at {each.index + 1} ({each.entropy:.2f} nats)" for each in traced.revealed
        )
        told.append(f"Revealed {len(traced.revealed)}: {revealed}.")
    if traced.masked:
        entropies = [entropy for _, entropy in traced.masked]
        told.append(f"{len(traced.masked)} left masked, {min(entropies):.2f} to {max(entropies):.2f} nats.")
    return " ".join(told)


def _quoted(token: TracedToken) -> str:
    return "end of text" if token.is_end else json.dumps(token.text, ensure_ascii=False)


def _json_in_script(trace: Trace) -> str:
    """JSON without a character that could end the script element it stands in, or that JavaScript takes for a line's end."""
    told = {**trace.to_json(), "words": [pass_in_words(each) for each in trace.passes]}
    text = json.dumps(told, ensure_ascii=True, allow_nan=False)
    return text.replace("<", "\\u003c").replace(">", "\\u003e").replace("&", "\\u0026")
