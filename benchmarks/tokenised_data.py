"""Measure tokenised data: how fast it is made, whether it is the same for any number of processes and as a stream, and what a
process needs to resume deep in millions of rows.

    python benchmarks/tokenised_data.py --out benchmarks/results/tokenised_data.json

Makes a file of `--tokens` tokens (100 million) of English word problems, and tokenises it by `--tokenizer`, in one process and
in `--processes`. Then an index of `--rows` rows (10 million) over the same documents is opened, and the batch after nine tenths
of them is taken as the trainer takes it after an interruption, in another process, whose memory is measured. JSON on the last
line.
"""

import argparse
import hashlib
import json
import random
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
from accelerate import skip_first_batches
from torch.utils.data import DataLoader
from transformers import PreTrainedTokenizerBase

from measuring.hardware import resident_bytes
from measuring.output import at_least_one, begin, finish, note, parser_of
from setblock.data.packing import RowCollator, RowDataset
from setblock.data.row_order import RowOrder
from setblock.data.rows import corpus_texts, limits_of, rows_of
from setblock.data.section import DataSection
from setblock.data.stream import RowStream
from setblock.data.tokenised import tokenise
from setblock.data.tokenizer import train_tokenizer
from setblock.model.loading.loading import load_tokenizer

CONTEXT = 8192


def main(arguments: Sequence[str] | None = None) -> None:
    """Measure, print, and write."""
    options = parse_options(arguments)
    if options.resume is not None:
        print(json.dumps(resumed(options.resume, tokenizer_of(options))))
        return
    results = begin("tokenised_data", options)
    tokenizer = tokenizer_of(options)
    with tempfile.TemporaryDirectory(dir=options.folder) as temporary:
        folder = Path(temporary)
        note("making the texts")
        texts = make_texts(folder / "texts.jsonl", tokenizer, options.tokens)
        section = DataSection.model_validate(
            {"source": str(texts), "row_length": 2048, "cache_dir": str(folder / "cache")}
        )
        by_count = {}
        for count in (1, options.processes):
            note(f"tokenising in {count} processes")
            by_count[str(count)] = tokenised(section, tokenizer, folder / f"tokens-{count}", count)
        results |= {"tokenising": by_count, "bytes_of_text": texts.stat().st_size}
        one, many = (folder / f"tokens-{count}" for count in (1, options.processes))
        results["files_are_the_same"] = hashes(one) == hashes(many)
        note("comparing with a stream")
        results["rows_compared_with_a_stream"] = compared(section, one, tokenizer, 100 if options.quick else 2000)
        note("resuming")
        results["resumed"] = {
            "own rows": in_process(one, options),
            f"{options.rows} rows": in_process(repeated(one, options.rows), options),
        }
    finish(results, options)


def tokenizer_of(options: argparse.Namespace) -> PreTrainedTokenizerBase:
    """Return the tokenizer that is named, or a small one in miniature."""
    if options.quick:
        return train_tokenizer(problems(50), vocab_size=400)
    return load_tokenizer(options.tokenizer)[1]


def problems(count: int) -> list[str]:
    """Return so many texts."""
    return list(corpus_texts(DataSection.model_validate({"source": "word-problems", "documents": count})))


def make_texts(path: Path, tokenizer: PreTrainedTokenizerBase, tokens: int) -> Path:
    """Write so many tokens of texts, which are eight problems each, drawn from a few thousand."""
    draw = random.Random(0)
    texts = problems(3000)
    a_problem = sum(len(tokenizer(text)["input_ids"]) for text in texts[:200]) / 200
    with path.open("w") as file:
        for number in range(round(tokens / a_problem / 8)):
            text = "\n\n".join([f"Sheet {number}", *draw.choices(texts, k=8)])
            file.write(json.dumps({"text": text}) + "\n")
    return path


def tokenised(
    section: DataSection, tokenizer: PreTrainedTokenizerBase, folder: Path, processes: int
) -> dict[str, float]:
    """Tokenise, and say how fast."""
    cpu = [resource.getrusage(who).ru_utime for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    started = time.monotonic()
    census = tokenise(
        section, tokenizer, folder, limits=limits_of(section, context_length=CONTEXT), processes=processes
    )
    seconds = time.monotonic() - started
    used = [resource.getrusage(who).ru_utime for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    cpu_seconds = sum(used) - sum(cpu)
    counted = asdict(census)
    return {
        "tokens": counted["tokens"],
        "rows": len(np.load(folder / "rows-train-starts.npy", mmap_mode="r")) - 1,
        "seconds": seconds,
        "cpu_seconds": cpu_seconds,
        "tokens_per_cpu_second": counted["tokens"] / cpu_seconds,
    }


def hashes(folder: Path) -> dict[str, str]:
    """Return a hash of each file."""
    return {path.name: hashlib.sha256(path.read_bytes()).hexdigest() for path in sorted(folder.iterdir())}


def compared(section: DataSection, folder: Path, tokenizer: PreTrainedTokenizerBase, count: int) -> int:
    """Compare rows with those of a stream of the same file, and return how many are the same: all, or this raises."""
    ours = rows_of(section.model_copy(update={"tokenised": str(folder)}), tokenizer, context_length=CONTEXT).train
    stream = rows_of(
        section.model_copy(update={"streaming": True, "shuffle_buffer": 1}), tokenizer, context_length=CONTEXT
    ).train
    assert isinstance(ours, RowDataset)
    assert isinstance(stream, RowStream)
    same = 0
    for item in stream:
        if same == min(count, len(ours) // 2):
            break
        for name, column in item.items():
            np.testing.assert_array_equal(column, ours[same][name], err_msg=f"row {same}")
        same += 1
    return same


def in_process(folder: Path, options: argparse.Namespace) -> dict[str, float]:
    """Resume in another process."""
    arguments = ["--resume", str(folder), "--tokenizer", options.tokenizer]
    command = [sys.executable, __file__, *arguments, *(["--quick"] if options.quick else [])]
    done = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True)
    found: dict[str, float] = json.loads(done.stdout.splitlines()[-1])
    return found


def resumed(folder: Path, tokenizer: PreTrainedTokenizerBase) -> dict[str, Any]:
    """Open a folder, and take the batch after nine tenths of its rows."""
    made_of = json.loads((folder / "manifest.json").read_text())["made_of"]["data"]
    section = DataSection.model_validate({**made_of, "tokenised": str(folder)})
    before, started, cpu = resident_bytes(), time.monotonic(), time.process_time()
    data = rows_of(section, tokenizer, context_length=CONTEXT).train
    assert isinstance(data, RowDataset)
    opened = time.monotonic() - started
    order = RowOrder(len(data), seed=0)
    loader = DataLoader(data, batch_size=1, sampler=order, collate_fn=RowCollator(pad_token_id=0))
    next(iter(skip_first_batches(loader, len(data) * 9 // 10)))
    return {
        "rows": len(data),
        "seconds_to_open": opened,
        "seconds_to_the_batch": time.monotonic() - started,
        "cpu_seconds_to_the_batch": time.process_time() - cpu,
        "more_memory_bytes": resident_bytes() - before,
        "most_memory_bytes": resident_bytes("VmHWM"),
    }


def repeated(folder: Path, rows: int) -> Path:
    """Return a folder of the same documents with so many rows: its own, over and over."""
    other = folder.with_name(f"{folder.name}-{rows}")
    other.mkdir()
    for path in folder.iterdir():
        (other / path.name).symlink_to(path)
    starts, order, lengths = (np.load(folder / f"rows-train-{name}.npy") for name in ("starts", "order", "lengths"))
    times = -(-rows // (len(starts) - 1))
    sizes = np.tile(np.diff(starts), times)[:rows]
    ends = np.concatenate([[0], np.cumsum(sizes)])
    made = {"starts": ends, "order": np.tile(order, times)[: ends[-1]], "lengths": np.tile(lengths, times)[: ends[-1]]}
    for name, values in made.items():
        path = other / f"rows-train-{name}.npy"
        path.unlink()
        np.save(path, values)
    return other


def parse_options(arguments: Sequence[str] | None) -> argparse.Namespace:
    """Return the options of the command line."""
    parser = parser_of(__doc__)
    add = parser.add_argument
    add("--tokens", type=int, default=100_000_000, help="of the texts, about (100 million)")
    add("--tokenizer", default="smollm2", help="a name, a folder or a hub id (smollm2)")
    add("--processes", type=int, default=4, help="that tokenise, the second time (4)")
    add("--rows", type=int, default=10_000_000, help="of the index that is resumed in (10 million)")
    add("--folder", type=Path, help="for the files, about ten bytes a token (that of temporary files)")
    add("--resume", type=Path, help=argparse.SUPPRESS)
    options = parser.parse_args(arguments)
    at_least_one(parser, options, "tokens", "processes")
    if options.quick and options.resume is None:
        vars(options).update(tokens=20_000, processes=2, rows=500)
    return options


if __name__ == "__main__":
    main()
