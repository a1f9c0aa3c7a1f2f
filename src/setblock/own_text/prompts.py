"""Let a chat model write prompts: a user's turn is opened, and the model continues it (Magpie, arXiv 2406.08464).

Knows chat templates, the engine and a file of prompts. Knows nothing of answers. A chat model was trained on users' turns, too,
so what it writes there is like what it was asked: a wide mixture of prompts without any data set.
"""

import json
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

from transformers import PreTrainedTokenizerBase

from setblock.decoding.settings.table import DecodingSettings
from setblock.engine.engine import Engine
from setblock.engine.offline import answered, limits_for
from setblock.engine.request import Request
from setblock.errors import SetBlockError
from setblock.files import whole_lines
from setblock.model.protocol.language_model import LanguageModel

_HERE = "\ue000"  # represents what the user writes
_AT_ONCE = 32
_SHORTEST = 8
"""Characters: what is shorter asks for nothing."""


def opened_turn(tokenizer: PreTrainedTokenizerBase, *, system: str | None = None) -> list[int]:
    """Return the token ids of a chat up to where a user's first message begins.

    Args:
        system: the system message; None for the chat template's own, if it has one.

    Raises:
        SetBlockError: the tokenizer has no chat template, or the template does not write a user's message as it stands.
    """
    if tokenizer.chat_template is None:
        raise SetBlockError(
            "a model needs a chat template to write prompts, and this tokenizer has none: use an instruction-tuned model"
        )
    messages = [] if system is None else [{"role": "system", "content": system}]
    rendered = str(tokenizer.apply_chat_template([*messages, {"role": "user", "content": _HERE}], tokenize=False))
    before, found, _ = rendered.partition(_HERE)
    if not found or not before:
        raise SetBlockError(
            "the chat template writes nothing before a user's message that would open it: use another model"
        )
    return list(tokenizer(before, add_special_tokens=False).input_ids)


def write_prompts(
    model: LanguageModel,
    path: Path,
    *,
    count: int,
    systems: Sequence[str | None] = (None,),
    settings: DecodingSettings,
    on_progress: Callable[[int], None] | None = None,
) -> int:
    """Write prompts to a file of JSON lines, records of chats that hold a user's message alone.

    The i-th prompt depends on `settings.seed` + i alone, so that a file that was cut short is gone on with. A prompt that does
    not end before the limit, is almost empty or was written before is left out.

    Args:
        count: how many the model is asked for; the file gets fewer.
        systems: system messages, taken in turn.
        settings: how they are drawn; a temperature of 0 would write the same prompt again and again.
        on_progress: is given how many were asked for so far.

    Returns:
        How many prompts are in the file.

    Raises:
        SetBlockError: as `opened_turn`, or the file is another command's or can't be written.
    """
    openings = [opened_turn(model.tokenizer, system=system) for system in systems]
    seen, first = _resume(path)
    limits = limits_for(
        model, [Request("", opening, settings) for opening in openings for _ in range(_AT_ONCE)], concurrency=_AT_ONCE
    )
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with path.open("a", encoding="utf-8") as file:
            for begin in range(first, count, 4 * _AT_ONCE):
                numbers = range(begin, min(count, begin + 4 * _AT_ONCE))
                requests = [Request(str(n), openings[n % len(openings)], settings.of_sample(n)) for n in numbers]
                answers = dict(answered(Engine(model, limits), requests))
                for number in numbers:
                    answer = answers[str(number)]
                    text = answer.text.strip()
                    if answer.finish_reason == "stop" and len(text) >= _SHORTEST and text not in seen:
                        seen.add(text)
                        record = {"number": number, "messages": [{"role": "user", "content": text}]}
                        file.write(json.dumps(record, ensure_ascii=False) + "\n")
                file.flush()
                if on_progress is not None:
                    on_progress(numbers.stop)
    except OSError as error:
        raise SetBlockError(f"can't write {path}: {error.strerror}") from error
    return len(seen)


def _resume(path: Path) -> tuple[set[str], int]:
    """Return the prompts of a file, and the number of the next. A last line that was cut short is taken out."""
    records = list(_records(path))
    return {text for text, _ in records}, records[-1][1] + 1 if records else 0


def _records(path: Path) -> Iterator[tuple[str, int]]:
    for line in whole_lines(path):
        try:
            record = json.loads(line)
            yield str(record["messages"][0]["content"]), int(record["number"])
        except (ValueError, KeyError, TypeError, IndexError) as error:
            raise SetBlockError(f"{path} was not written by this command: give another --output") from error
