"""`setblock generate --input`: answers to a file of prompts, by the engine."""

import hashlib
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rich.progress import BarColumn, MofNCompleteColumn, Progress, TaskID, TextColumn, TimeRemainingColumn

from setblock.cli.answer_file import AnswerFile, Key
from setblock.cli.messages import print_figures, print_json, stderr_console
from setblock.cli.model import ModelOptions, load_model
from setblock.cli.prompt_file import PromptLine, read_prompts
from setblock.decoding.settings import DecodingSettings
from setblock.errors import SetBlockError

if TYPE_CHECKING:
    from setblock.engine.request import Request
    from setblock.model.sbd_model import SBDModel


def generate_file(
    source: Path,
    target: Path,
    options: ModelOptions,
    settings: DecodingSettings,
    *,
    concurrency: int,
    raw: bool,
    as_json: bool,
) -> None:
    """Answer every line of `source` into `target`; go on where an interrupted run stopped.

    Raises:
        SetBlockError: a line is no prompt, or too long; a file can't be read or written.
    """
    lines = read_prompts(source)
    with AnswerFile(target, made=_made(source, options, settings, raw=raw)) as answers:
        loaded = load_model(options, blocks=settings.method != "ntp")
        tokens, forwards, failed, started = _answer(loaded, lines, settings, answers, concurrency=concurrency, raw=raw)
        answers.finish()
    seconds = time.perf_counter() - started
    total = len(lines) * settings.n
    if as_json:
        figures = {
            "answers": total,
            "failed": failed,
            "num_tokens": tokens,
            "num_forwards": forwards,
            "seconds": seconds,
        }
        print_json({"output": str(target), **figures})
    else:
        without = f", {failed} of them with logits that are not numbers" if failed else ""
        print_figures(f"{total} answers in {target}{without}: {tokens} tokens, {forwards} forwards, {seconds:.1f} s")


def _made(source: Path, options: ModelOptions, settings: DecodingSettings, *, raw: bool) -> dict[str, Any]:
    """What decides the answers."""
    return {
        "prompts": hashlib.sha256(source.read_bytes()).hexdigest(),
        "model": [options.path, options.dtype, options.quantization],
        "settings": repr(settings),
        "raw": raw,
        **({"prepacked": True} if options.prepack else {}),  # adds up in another order
    }


def _answer(
    model: "SBDModel",
    lines: Sequence[PromptLine],
    settings: DecodingSettings,
    answers: AnswerFile,
    *,
    concurrency: int,
    raw: bool,
) -> tuple[int, int, int, float]:
    """Write the answers that are not there yet. Returns their tokens, their forward passes, how many failed, and the time when
    the first was begun."""
    from setblock.cli.generate import generation_json
    from setblock.engine.engine import Engine
    from setblock.engine.offline import answered, limits_for

    requests = _requests(model, lines, settings, raw=raw)
    wanted = {key: request for key, request in requests.items() if key not in answers.done}
    key_of = {request.id: key for key, request in wanted.items()}
    line_of = {line.number: line for line in lines}
    engine = Engine(model, limits_for(model, requests.values(), concurrency=concurrency))
    tokens = forwards = failed = 0
    started = time.perf_counter()
    with _progress(len(requests), len(requests) - len(wanted)) as (progress, bar):
        for request_id, generation in answered(engine, wanted.values()):
            key = key_of[request_id]
            name = line_of[key[0]].id
            answers.add(key, {**({} if name is None else {"id": name}), **generation_json(generation, model.tokenizer)})
            tokens, forwards = tokens + generation.num_tokens, forwards + generation.num_forwards
            failed += generation.finish_reason == "error"
            progress.advance(bar)
    return tokens, forwards, failed, started


def _requests(
    model: "SBDModel", lines: Sequence[PromptLine], settings: DecodingSettings, *, raw: bool
) -> dict[Key, "Request"]:
    """All that is asked for, checked before anything is answered."""
    from setblock.decoding.checks import limit_of
    from setblock.decoding.text import encode_prompt
    from setblock.engine.request import Request

    requests = {}
    for line in lines:
        try:
            token_ids = encode_prompt(model.tokenizer, line.prompt, raw=raw)
            limit_of(model, len(token_ids), settings)
        except SetBlockError as error:
            raise SetBlockError(f"{line.where}: {error}") from error
        for sample in range(settings.n):
            name = f"{line.number}.{sample}"
            requests[line.number, sample] = Request(name, token_ids, settings.of_sample(sample))
    return requests


@contextmanager
def _progress(total: int, done: int) -> Iterator[tuple[Progress, TaskID]]:
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    console = stderr_console()
    with Progress(*columns, console=console, transient=True, disable=not console.is_terminal) as progress:
        yield progress, progress.add_task("answers", total=total, completed=done)
