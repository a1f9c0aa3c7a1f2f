"""The rows of a recipe's data, tokenised by the training itself, or before it, in several processes, into a folder.

The folder has shards of documents (Arrow files, mapped by `datasets`), the index of packed rows, and a record of what
both were made of. Shards and rows are the same as in training without the folder, for any number of processes. A run
that was stopped leaves complete shards, and the next one makes the others.
"""

import json
import os
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ProcessPoolExecutor
from contextlib import ExitStack
from dataclasses import asdict
from itertools import islice
from pathlib import Path
from typing import Any

import datasets
import numpy as np
from datasets.arrow_writer import ArrowWriter
from transformers import PreTrainedTokenizerBase

from setblock.data.corpus.corpus import FEATURES, Census, CorpusRows, DocumentLimits, cached, packed_rows
from setblock.data.section import DataSection
from setblock.data.texts.encoding import Encoder, tokenizer_fingerprint
from setblock.data.texts.records import SourceRecord, records_of
from setblock.data.texts.shapes import RecordShape, shaped
from setblock.errors import SetBlockError
from setblock.files import LOCK, differences, only_writer, write_whole, writing

_MANIFEST, _PLAN = "manifest.json", "plan.json"
_ARRAYS = ("starts", "order", "lengths")  # of `CorpusRows`, each in a file that it is mapped from
SHARD_DOCUMENTS = 8192  # in a shard


def rows_of(section: DataSection, tokenizer: PreTrainedTokenizerBase, limits: DocumentLimits) -> dict[str, CorpusRows]:
    """Return the rows of a recipe's data section: `train`, and `evaluation` if there are any. The tokenizer's template writes
    chats. Raise `SetBlockError` if the data can't be read, or is not as the section and the limits say."""
    if section.tokenised is not None:
        return _tokenised_rows(Path(section.tokenised), section, tokenizer, limits)
    sources = {
        part: [cached(Encoder(tokenizer, source, own), limits) for source in own.sources]
        for part, own in section.parts.items()
    }
    return packed_rows(section, limits, sources, pad_token_id=tokenizer.eos_token_id)


def tokenise(
    section: DataSection,
    tokenizer: PreTrainedTokenizerBase,
    folder: Path,
    *,
    limits: DocumentLimits,
    processes: int = 1,
    on_progress: Callable[[int], None] = lambda documents: None,
) -> Census:
    """Write the tokenised documents and the packed rows of a section into a folder, and return their counts. A folder
    that a stopped run left is completed. An endless source needs `documents`, and the tokenizer must have the section's
    chat template. `on_progress` is called with the number of documents so far. Raise `SetBlockError` if the data can't
    be read or do not fit the section, the folder holds other data, or another process writes to it."""
    sources = {
        f"{part}-{number:02d}": (Encoder(tokenizer, source, own), records_of(source))
        for part, own in section.parts.items()
        for number, source in enumerate(own.sources)
    }
    read = {stem: records.fingerprint for stem, (_, records) in sources.items()}
    plan = {**_identity(section, tokenizer, limits), "records": read, "shard_documents": SHARD_DOCUMENTS}
    with writing(folder, what="tokenised documents to"), ExitStack() as opened:
        folder.mkdir(parents=True, exist_ok=True)
        opened.enter_context(only_writer(folder, advice="wait for it, or give another --output"))
        _claim(folder, plan)
        done = 0
        for stem, (encoder, records) in sources.items():
            for count in _write_shards(encoder, records, folder / stem, processes):
                done += count
                on_progress(done)
        written = {
            part: [_documents(folder, stem) for stem in sources if stem.startswith(f"{part}-")]
            for part in section.parts
        }
        rows = packed_rows(section, limits, written, pad_token_id=tokenizer.eos_token_id)
        for name, each in rows.items():
            for array in _ARRAYS:
                np.save(folder / f"rows-{name}-{array}.npy", getattr(each, array))
        used = np.zeros(0, dtype=np.int32)
        for chunk in _documents(folder, "*").data.column("token_ids").chunks:
            used = np.union1d(used, chunk.flatten().to_numpy())
        limits.refuse_ids(used, str(folder))
        np.save(folder / "used-ids.npy", used)
        shards = {path.name: path.stat().st_size for path in sorted(folder.glob("*.arrow"))}
        censuses = {name: asdict(each.census) for name, each in rows.items()}
        fingerprints = {name: each.fingerprint for name, each in rows.items()}
        manifest = {"made_of": plan, "shards": shards, "census": censuses, "fingerprint": fingerprints}
        write_whole(folder / _MANIFEST, json.dumps(manifest, indent=1) + "\n")
    return rows["train"].census


def _tokenised_rows(
    folder: Path, section: DataSection, tokenizer: PreTrainedTokenizerBase, limits: DocumentLimits
) -> dict[str, CorpusRows]:
    """Return the result of `packed_rows` for a section, from the folder that it names, without reading the rows. Raise
    `SetBlockError` if the folder is incomplete, or was made by another tokenizer or from another section."""

    def refusal(why: str) -> SetBlockError:
        return SetBlockError(f"data.tokenised {folder}{why} `setblock data tokenise RECIPE --output {folder}`")

    try:
        manifest = json.loads((folder / _MANIFEST).read_text(encoding="utf-8"))
        made_of, shards = manifest["made_of"], manifest["shards"]
    except FileNotFoundError as error:
        raise refusal(" holds no tokenised data, or a part of it: run") from error
    except (OSError, ValueError, KeyError) as error:
        raise refusal(f": can't read {_MANIFEST}: run") from error
    wanted = _identity(section, tokenizer, limits)
    for key, there, here in differences({name: made_of.get(name) for name in wanted}, wanted):
        if key == "tokenizer":
            raise refusal(" was made by another tokenizer or chat template than the model's: run anew")
        raise refusal(f" was made with {key} {there!r}, not {here!r}: run anew")
    for name, size in shards.items():
        path = folder / name
        if not path.is_file() or path.stat().st_size != size:
            raise refusal(f": {name} is missing or not whole: delete {_MANIFEST} and run")
    try:
        limits.refuse_ids(np.load(folder / "used-ids.npy"), f"data.tokenised {folder}")
        return {
            name: CorpusRows(
                documents=_documents(folder, name if name in section.parts else "train"),
                census=Census(**manifest["census"][name]),
                fingerprint=fingerprint,
                **{each: np.load(folder / f"rows-{name}-{each}.npy", mmap_mode="r") for each in _ARRAYS},
                row_length=section.row_length,
                pad_token_id=tokenizer.eos_token_id,
            )
            for name, fingerprint in manifest["fingerprint"].items()
        }
    except (OSError, ValueError, KeyError) as error:
        raise refusal(f": {error}: delete {_MANIFEST} and run") from error


def _identity(section: DataSection, tokenizer: PreTrainedTokenizerBase, limits: DocumentLimits) -> dict[str, Any]:
    """Return everything that the documents and rows of a section depend on, except the records themselves."""
    return {
        "format": 3,
        "tokenizer": tokenizer_fingerprint(tokenizer),
        "data": section.model_dump(mode="json", exclude={"chat_template"}),  # which the tokenizer has
        "longest_document": limits.longest(section),
    }


def _claim(folder: Path, plan: dict[str, Any]) -> None:
    """Record in a folder what it will contain, or check that its record is the same."""
    path = folder / _PLAN
    if path.is_file():
        for key, _, _ in differences(json.loads(path.read_text(encoding="utf-8")), plan):
            raise SetBlockError(f"{folder} holds data made of another {key}: delete it, or give another --output")
    elif any(each.name != LOCK for each in folder.iterdir()):
        raise SetBlockError(f"{folder} holds something else: give an empty --output")
    write_whole(path, json.dumps(plan, indent=1) + "\n")


def _write_shards(encoder: Encoder, records: Iterable[SourceRecord], stem: Path, processes: int) -> Iterator[int]:
    """Write the missing shards of one source, and yield the number of documents of each shard when it exists."""
    shape, records = shaped(encoder.section, records)
    chunks = iter(lambda: list(islice(records, SHARD_DOCUMENTS)), [])
    jobs = ((encoder, shape, Path(f"{stem}-{number:06d}.arrow"), chunk) for number, chunk in enumerate(chunks))
    if processes == 1:
        yield from (_write_shard(*job) for job in jobs)
        return
    os.environ["TOKENIZERS_PARALLELISM"] = "false"  # its threads would not survive the fork
    with ProcessPoolExecutor(processes) as pool:
        running: deque[Future[int]] = deque()
        try:
            for job in jobs:
                running.append(pool.submit(_write_shard, *job))
                if len(running) == 2 * processes:
                    yield running.popleft().result()
            yield from (each.result() for each in running)
        finally:
            pool.shutdown(cancel_futures=True)


def _write_shard(encoder: Encoder, shape: RecordShape, path: Path, records: list[SourceRecord]) -> int:
    """Write the documents of some records as a shard, unless it exists."""
    if not path.exists():
        temporary = path.with_suffix(".writing")
        with ArrowWriter(path=str(temporary), features=FEATURES) as writer:
            for document in encoder.documents(shape, records):
                writer.write(document)
            writer.finalize()
        os.replace(temporary, path)
    return len(records)


def _documents(folder: Path, stem: str) -> datasets.Dataset:
    """Return the documents of a part or of one of its sources, or all (`*`), in order."""
    paths = sorted(folder.glob(f"{stem}-*.arrow"))
    return datasets.concatenate_datasets([datasets.Dataset.from_file(str(path)) for path in paths])
