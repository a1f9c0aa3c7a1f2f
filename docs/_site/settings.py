"""Write the reference of the decoding settings, from the table that every caller reads."""

import sys
from pathlib import Path
from typing import Any, Literal, get_args, get_origin

sys.path.append(str(Path(__file__).parents[2] / "plugins" / "setblock-vllm" / "src"))  # it need not be installed

GROUPS = {
    "point": "Operating point",
    "answer": "Where an answer ends",
    "sampling": "How tokens are drawn",
    "report": "What is reported",
}


def page() -> str:
    """Return the page of all settings, a table for each group."""
    from setblock.cli.options import decoding_options
    from setblock.decoding.settings.table import HYPERPARAMETERS, SETTINGS
    from setblock.integrations import transformers
    from setblock.integrations.lm_eval import arguments
    from setblock.server.http import limits
    from setblock_vllm import parameters

    callers = {
        "command line": decoding_options.AVAILABLE,
        "server": limits.AVAILABLE,
        "harness": arguments.AVAILABLE,
        "transformers": transformers.AVAILABLE,
        "vllm": parameters.AVAILABLE,
    }

    parts = [
        "# Decoding settings",
        "The fields of `DecodingSettings`. The command line, the server, the harness, Transformers' `generate` and vLLM take "
        "them by these names. The last column lists the callers that do not take a setting, or take it by another name.",
    ]
    rows = [*SETTINGS.values(), *HYPERPARAMETERS.values()]
    for group, title in GROUPS.items():
        lines = ["| setting | valid | default | meaning | except |", "|---|---|---|---|---|"]
        for row in rows:
            if row.group == group:
                others = [caller for caller, available in callers.items() if row not in available.values()]
                others += [
                    f"{caller}: `{name}`"
                    for caller, available in callers.items()
                    for name, each in available.items()
                    if each == row and name != row.name
                ]
                default = "" if row.default is None else f"`{row.default}`"
                told = row.help.replace("|", chr(92) + "|")
                lines.append(f"| `{row.name}` | {valid(row)} | {default} | {told} | {', '.join(others)} |")
        parts += [f"## {title}", "\n".join(lines)]
    return "\n\n".join(parts) + "\n"


def valid(row: Any) -> str:
    """Return the type of a setting, and its range."""
    if get_origin(row.type) is Literal:
        return ", ".join(f"`{each}`" for each in get_args(row.type))
    name = str(row.type) if get_origin(row.type) else row.type.__name__
    return f"{name} {row.range}".strip()
