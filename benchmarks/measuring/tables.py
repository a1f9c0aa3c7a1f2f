"""Write results as tables in Markdown: those that a benchmark prints, and docs/evidence/ shows.

Knows the results of every benchmark. Imports nothing of ours, so that the documentation can run it by its path.
"""

import json
from collections.abc import Callable, Iterator
from typing import Any

Json = dict[str, Any]


def origin(found: Json) -> str:
    """Return where figures come from: the machine with versions and date, and the command."""
    return f"{machine(found)}; `{found['command']}`"


def machine(found: Json) -> str:
    """Return what was measured on, with versions and date."""
    where = found["gpu"] or f"{found['cpu']}, {found['threads']} thread{'s' * (found['threads'] != 1)}"
    return f"{where}; PyTorch {found['torch']}, Transformers {found['transformers']}; {found['date'][:10]}"


def spread(values: Json, scale: float = 1) -> str:
    """Return median and quartiles, with three digits."""
    median, lower, upper = (scale * values[name] for name in ("median", "lower_quartile", "upper_quartile"))
    digits = 0 if median >= 100 else 1 if median >= 10 else 2 if median >= 0.1 else 4
    return f"{median:.{digits}f} ({lower:.{digits}f} to {upper:.{digits}f})"


def markdown(columns: list[str], rows: list[list[str]]) -> str:
    """Return a table."""
    lines = [columns, ["---"] * len(columns), *rows]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def passes_table(found: Json) -> str:
    """Return a table with a row for each pass."""
    rows = []
    for variant, each in found["variants"].items():
        for name, row in each["passes"].items():
            one = each["passes"]["one token"]["roofline"]
            rows.append(
                [
                    *(variant, name, spread(row["library"], 1e3), f"{row['library_over_one_token']:.2f}"),
                    *(spread(row["model"], 1e3), f"{row['model_over_one_token']:.2f}"),
                    *(f"{1e3 * row['roofline']:.2f}", f"{row['roofline'] / one:.2f}"),
                    f"{row['roofline'] / row['model']['median']:.0%}",
                ]
            )
    title = f"{found['parameters'] / 1e6:.0f}M random weights, batch {found['batch']}, {found['kv_length']:,} cached positions."
    columns = ["weights", "pass", "as decoding runs it, ms", "x", "the model alone, ms", "x", "roofline, ms", "x"]
    return f"{title}\n\n{markdown([*columns, 'of its speed'], rows)}"


def side_by_side_table(found: Json) -> str:
    """Return a table with a row for each contender."""
    return "\n\n".join(subject_table(subject) for subject in found["subjects"].values())


def subject_table(subject: Json) -> str:
    """Return a table of all contenders on one model."""
    graded = any("right_answers" in row for row in subject["contenders"].values())
    split = any("after_prefill_over_ours_plain" in row for row in subject["contenders"].values())
    rows = []
    for name, row in subject["contenders"].items():
        cells = [
            *(
                name.replace("llama.cpp", f"llama.cpp ({subject.get('llama_cpp_build', 'AVX2 wheel')})").replace(
                    "xllamacpp", "llama.cpp (AVX2 wheel)"
                ),
                f"{row['tokens_per_second']:.1f}",
                interval(row, "over_transformers"),
                interval(row, "over_ours_plain"),
            ),
            *(
                [spread(row["after_prefill_over_ours_plain"])]
                if "after_prefill_over_ours_plain" in row
                else [""] * split
            ),
            f"{row['predicted_speedup']:.2f}" if "predicted_speedup" in row else "",
            f"{row['nfe_speedup']:.{1 if row['nfe_speedup'] >= 10 else 2}f}" if row["nfe_speedup"] else "",
            f"{row['same_as_plain']:.1%}",
        ]
        rows.append([*cells, f"{row['right_answers']:.1%}"] if graded else cells)
    after = ["after the prefill"] * split
    columns = ["", "tokens/s", "over Transformers", "over ours, plain", *after, "eq. 16", "in passes", "same text"]
    what = (
        f"{subject['problems']} held-out problems"
        if "problems" in subject
        else f"{subject['tokens']} tokens after {subject['prompt']}"
    )
    draft = f", draft model {subject['draft'] / 1e6:.1f}M" if subject.get("draft") else ""
    stored = f"{subject['dtype']}{', ours prepacked' if subject.get('prepacked') else ''}"
    title = f"{subject['parameters'] / 1e6:.1f}M parameters, {stored}; {what}{draft}; {subject['rounds']} rounds."
    return f"{title}\n\n{markdown([*columns, 'right'] if graded else columns, rows)}"


def interval(row: Json, name: str) -> str:
    """Return a ratio of seconds and its 95% interval over requests; in older files, the quartiles of the rounds."""
    if f"{name}_interval" not in row:
        return spread(row[name])
    low, high = row[f"{name}_interval"]
    return spread({"median": row[name]["median"], "lower_quartile": low, "upper_quartile": high})


def structured_table(found: Json) -> str:
    """Return a table with a row for each method."""
    rows = [
        [
            *(f"`{method}`", f"{row['tokens']:.0f}", f"{row['passes']:.0f}", f"{row['passes_without']:.0f}"),
            *(f"{row['seconds']:.2f}", f"{row['seconds_without']:.2f}", f"{row['grammar_share']:.1%}"),
            *(f"{row[each]:.0%}" for each in ("right", "right_without") if each in row),
        ]
        for method, row in found["methods"].items()
    ]
    columns = ["method", "tokens", "passes with a schema", "without", "seconds with", "without"]
    columns += ["the grammar's share of them", *["right with", "without"] * (bool(rows) and len(rows[0]) > 7)]
    return f"Means of {found['answers']} answers of {found['model']}.\n\n{markdown(columns, rows)}"


def growth_table(found: Json) -> str:
    """Return a table with a row for each cell."""
    title = f"{found['parameters'] / 1e6:.0f}M random weights, {found['dtype']}, block size {found['block_size']}."
    return f"{title}\n\n{cells_table(found['cells'])}\n\n{ends(found['cells'])}"


def ends(cells: Json) -> str:
    """Return up to which of the batches that were measured blocks are faster, at each length."""
    lines = []
    for label, line in lines_of(cells, "batch", "kv_length"):
        gains = {
            name: max((batch for batch, gain in zip(line["x"], line[name], strict=True) if gain > 1), default=None)
            for name in ("measured", "roofline")
        }
        batches = ", ".join(f"{name}: {batch or 'none'}" for name, batch in gains.items())
        lines.append(f"- {label}: {batches}")
    return "The largest batch tried at which blocks are faster, in the median:\n\n" + "\n".join(lines)


def cells_table(cells: Json) -> str:
    """Return a table with a row for each cell and way."""
    rows = []
    for each in cells.values():
        at = [str(each["batch"]), f"{each['kv_length']:,}"]
        if "left_out" in each:
            rows.append([*at, each["left_out"], "", "", "", "", ""])
        for way, row in each.get("ways", {}).items():
            share = row["predicted_seconds_per_token"] / row["seconds_per_token"]["median"]
            rows.append(
                [
                    *at,
                    way,
                    spread(row["seconds_per_token"], 1e3),
                    spread(row["over_transformers"]),
                    spread(row["over_ours_plain"]),
                    f"{row['predicted_over_plain']:.2f}",
                    f"{share:.0%}",
                ]
            )
    columns = ["batch", "cached", "", "ms per token", "over Transformers", "over ours, plain", "roofline says"]
    return markdown([*columns, "of its speed"], rows)


def breakdown_table(found: Json) -> str:
    """Return a table of milliseconds, and waits."""
    title = f"{found['parameters'] / 1e6:.0f}M random weights, {found['dtype']}, vocabulary {found['vocabulary']:,}."
    return f"{title}\n\n{methods_table(found['methods'])}"


def methods_table(methods: Json) -> str:
    """Return a table with a column for each method."""
    each = list(methods.values())
    rows = [[part, *(f"{row['milliseconds'][part]:.3f}" for row in each)] for part in each[0]["milliseconds"]]
    if "not_products" in each[0]:
        rows.append(["share that is not products", *(f"{row['not_products']:.0%}" for row in each)])
    rows.append(["all but the model", *(f"{row['loop_milliseconds']:.3f}" for row in each)])
    rows.append(["over the model", *(f"{row['loop_over_model']:.1%}" for row in each)])
    rows.append(["times the host waits", *(f"{sum(row['synchronisations'].values()):.2f}" for row in each)])
    return markdown(["ms of a pass", *methods], rows)


def training_table(found: Json) -> str:
    """Return a table with a row for each share of prompt tokens."""
    more = ("adapter_seconds", "adapter_ratio") if "adapter_ratio" in found["shares"][0] else ()
    rows = [
        [
            *(
                f"{found['rows']} x {found['row_length']:,}",
                found["attention"] or "default",
                f"{row['prompt_share']:.0%}",
            ),
            *(spread(row[name]) for name in ("ntp_seconds", "sbd_seconds", "ratio", *more)),
            *("" if peak is None else f"{peak / 2**30:.2f}" for peak in row["peak_bytes"].values()),
        ]
        for row in found["shares"]
    ]
    columns = ["rows", "attention", "prompt tokens", "plain step, s", "SBD step, s", "SBD / plain"]
    columns += ["adapter step, s", "adapter / plain"] if more else []
    return markdown([*columns, "plain, GiB", "SBD, GiB", *(["adapter, GiB"] if more else [])], rows)


def gpu_passes_table(pieces: Json) -> str:
    """Return a table with a row for each batch and length, with the measured and the predicted ratio of each block
    size."""
    rows = []
    for name, piece in pieces.items():
        one = piece["one token 1"]
        cells = [name, spread(one["model"], 1e3), f"{one['roofline'] / one['model']['median']:.0%}"]
        for key in piece:
            if key != "one token 1":
                measured = piece[key]["model"]["median"] / one["model"]["median"]
                cells.append(f"{measured:.2f}, {piece[key]['roofline'] / one['roofline']:.2f}")
        rows.append(cells)
    kinds = [key for key in next(iter(pieces.values())) if key != "one token 1"]
    return markdown(["", "one token, ms", "of the roofline", *(f"{key}: measured, roofline" for key in kinds)], rows)


def checks_table(pieces: Json) -> str:
    """Return a table with a row for each check."""
    rows = []
    for name, piece in pieces.items():
        shown = {key: value for key, value in piece.items() if key != "passed"}
        rows.append([name, "passed" if piece["passed"] else "**failed**", f"`{json.dumps(shown)}`"])
    return markdown(["check", "", "figures"], rows)


def machine_table(pieces: Json) -> str:
    """Return a table of what simple kernels reach."""
    (piece,) = pieces.values()
    rows = []
    for name in ("reached", "roofline"):
        figures = piece[name]
        peak = figures["peaks"]["16"]
        rows.append([figures["name"], f"{figures['bandwidth'] / 1e9:,.0f}", f"{peak / 1e12:,.0f}"])
    return markdown(["", "GB/s", "TFLOPS, 16 bits"], rows)


def gpu_table(found: Json) -> str:
    """Return a table for each stage of a GPU that was measured."""
    parts = []
    for stage, table in GPU_TABLES.items():
        pieces = {key: piece for key, piece in found["stages"].get(stage, {}).items() if "error" not in piece}
        if pieces:
            parts.append(f"**{stage}**\n\n{table(pieces)}")
    return "\n\n".join(parts)


def lines_of(cells: Json, across: str, other: str) -> Iterator[tuple[str, dict[str, list[float]]]]:
    """Yield what to draw: for each value of `other` and each way of ours, speed-ups over Transformers and over our
    plain decoding."""
    measured = [each for each in cells.values() if "ways" in each]
    for value in sorted({each[other] for each in measured}):
        here = sorted((each for each in measured if each[other] == value), key=lambda each: int(each[across]))
        for way in here[0]["ways"]:
            if not way.startswith("ours, NFE"):
                continue
            rows = [each["ways"][way] for each in here]
            for column, name in (("over_transformers", "Transformers"), ("over_ours_plain", "ours, plain")):
                line = {
                    "x": [each[across] for each in here],
                    "measured": [row[column]["median"] for row in rows],
                    "lower": [row[column]["lower_quartile"] for row in rows],
                    "upper": [row[column]["upper_quartile"] for row in rows],
                    "roofline": [row["predicted_over_plain"] for row in rows],
                }
                where = f"{value:,} cached" if other == "kv_length" else f"batch {value}"
                yield f"{way}, over {name}, {where}", line


def recurrent_table(found: Json) -> str:
    """Return a table with a row for each way to train, with intervals of 95%."""
    columns = ["", "tokens fed", "CPU seconds", "loss, next tokens", "loss, masked tokens", "tokens a pass, `exact`"]
    columns += ["passes of `exact`, over rows", "tokens a pass, `sbd`", "right, `exact`"]
    rows = []
    for arm, each in found["arms"].items():
        cells = [arm, f"{each['tokens']:,.0f}", f"{each['cpu_seconds']:.0f}"]
        for name, digits in (
            ("next_token_loss", 3),
            ("masked_token_loss", 2),
            ("exact_tokens_per_pass", 2),
            ("exact_passes_ratio", 2),
            ("sbd_tokens_per_pass", 2),
            ("exact_right", 2),
        ):
            value, low, high = (each[name][part] for part in ("value", "low", "high"))
            cells.append(f"{value:.{digits}f} ({low:.{digits}f} to {high:.{digits}f})")
        rows.append(cells)
    return markdown(columns, rows)


TABLES: dict[str, Callable[[Json], str]] = {
    "passes": passes_table,
    "side_by_side": side_by_side_table,
    "structured": structured_table,
    "growth": growth_table,
    "breakdown": breakdown_table,
    "training_step": training_table,
    "recurrent_training": recurrent_table,
}
GPU_TABLES: dict[str, Callable[[Json], str]] = {
    "machine": machine_table,
    "checks": checks_table,
    "passes": gpu_passes_table,
    "growth": cells_table,
    "training": lambda pieces: "\n\n".join(training_table(piece) for piece in pieces.values()),
    "recipe": lambda pieces: "\n\n".join(
        f"{name}:\n\n{subject_table({**piece, 'tokens': 128, 'prompt': 128})}"
        for name, piece in pieces.items()
        if "contenders" in piece
    ),
}
