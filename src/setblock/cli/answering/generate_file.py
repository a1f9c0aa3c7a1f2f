"""Answer a file of prompts (`setblock generate --input`)."""

import hashlib
from dataclasses import asdict
from functools import partial
from pathlib import Path

from setblock.cli.messages import print_figures, print_json, progress
from setblock.cli.options.decoding_options import DecodingOptions
from setblock.cli.options.model import warn_of_bundled
from setblock.cli.options.runtime import RuntimeOptions, load_language_model
from setblock.engine.offline.answer_file import AnswerFile
from setblock.engine.offline.prompt_file import read_prompts


def generate_file(
    source: Path,
    target: Path,
    options: RuntimeOptions,
    decoding: DecodingOptions,
    *,
    concurrency: int,
    raw: bool,
    as_json: bool,
) -> None:
    """Answer every line of `source` into `target`; continue where an interrupted run stopped.

    Raises:
        SetBlockError: a line is no prompt, or too long; a file can't be read or written.
    """
    settings, lines = decoding.settings(), read_prompts(source)
    made = {  # what decides the answers
        "prompts": hashlib.sha256(source.read_bytes()).hexdigest(),
        "model": [options.path, options.dtype, options.quantization],
        "settings": repr(settings),
        **({"domain": decoding.domain} if decoding.domain else {}),
        "raw": raw,
        **({} if options.prepack is None else {"prepacked": options.prepack}),  # may add up in another order
        **({"llama_cpp": asdict(options.llama_options())} if options.takes_llama_cpp else {}),
    }
    with AnswerFile(target, made=made) as answers:
        from setblock.engine.offline.prompts_answered import answer_prompts

        warn_of_bundled(options)
        loaded = load_language_model(options, blocks=settings.method == "sbd")
        settings = decoding.settings_for(loaded)
        with progress() as tell:
            done = answer_prompts(
                loaded, lines, settings, answers, concurrency=concurrency, raw=raw, on_progress=partial(tell, "answers")
            )
        answers.finish()
    if as_json:
        print_json({"output": str(target), **asdict(done)})
        return
    without = f", {done.failed} of them ended in an error" if done.failed else ""
    print_figures(
        f"{done.answers} answers in {target}{without}: {done.num_tokens} tokens, {done.num_forwards} forwards, "
        f"{done.seconds:.1f} s"
    )
