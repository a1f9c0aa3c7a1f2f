"""Answers to a prompt, streamed, once or several times, or to a file of prompts (`setblock generate`)."""

import hashlib
import os
import shlex
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, closing
from dataclasses import asdict, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer
from rich.text import Text

from setblock.cli.messages import counted, print_figures, print_json, print_message, progress, resumable, stdout_console
from setblock.cli.options.decoding_options import (
    DecodingOptions,
    available_settings,
    sampler_json,
    template_kwargs,
)
from setblock.cli.options.groups import DECODING, JSON, OUTPUT, argument, option, option_group, optional, rare
from setblock.cli.options.model import RuntimeOptions, load_language_model, warn_of_bundled
from setblock.decoding.answer.generation import Generation, generation_json
from setblock.decoding.settings.table import DecodingSettings
from setblock.engine.files import AnswerFile, AnswerPipe, read_prompts
from setblock.errors import ParameterError, SetBlockError
from setblock.files import read_text
from setblock.structure.kinds import structure_of

if TYPE_CHECKING:
    from setblock.decoding.answer.prompt import Prompt
    from setblock.engine.generate import StreamChunk
    from setblock.evaluation.tracing import Trace, TracedPass, TracedToken

_PIPE = Path("-")


@option_group("Form of the answer")
class FormOptions(DecodingOptions):
    """The options of decoding, and of the form of answers."""

    json_schema: Path | None = optional("The answer is JSON that is valid under the schema in this file.")
    regex: str | None = rare("The answer as a whole matches this regular expression.")
    choice: list[str] | None = rare(
        "The answer is one of these texts. Repeat the option for each text.", metavar="TEXT"
    )
    grammar: Path | None = rare("The answer follows the grammar in this file, in llguidance's notation.")

    def settings(self) -> DecodingSettings:
        """See `DecodingOptions`."""
        found = {"json": self.json_schema, "regex": self.regex, "choice": self.choice, "grammar": self.grammar}
        requested = {
            word: read_text(value) if isinstance(value, Path) else value for word, value in found.items() if value
        }
        if len(requested) > 1:
            raise ParameterError("--json-schema, --regex, --choice and --grammar exclude each other: give one of them")
        settings = super().settings()
        return replace(settings, structure=structure_of(requested)) if requested else settings


@option_group(available=available_settings("report"))
class GenerateOptions(FormOptions):
    """The options of decoding, of the form of answers, and of what is reported of them."""


@option_group(DECODING)
class PromptOptions:
    """The options of how a prompt is given to the model."""

    raw: bool = option(False, "Continue the prompt as plain text, without the chat template.", is_rare=True)
    system: str | None = optional("System message before the prompt.", metavar="TEXT")

    chat_template_kwargs: str | None = rare(
        "What the chat template is rendered with besides the chat, as JSON, such as '{\"enable_thinking\": false}'.",
        metavar="JSON",
    )

    def given(self) -> dict[str, Any]:
        """Return the arguments of `generate` that say how a prompt is given. Raise `ParameterError` if they aren't JSON."""
        kwargs = template_kwargs("--chat-template-kwargs", self.chat_template_kwargs)
        return {"raw": self.raw, "chat_template_kwargs": kwargs}

    def requested(self, prompt: str | None) -> "Prompt | None":
        """Return the prompt for the model; None if no PROMPT is given. Raise `SetBlockError` if options exclude each other, or
        the text is not valid UTF-8."""
        if self.raw and self.system is not None:
            raise ParameterError("--raw has no place for a system message: leave out --system")
        if prompt is not None and os.path.isfile(prompt):
            print_message(
                f"PROMPT is a text, and {prompt} a file, too: to answer what is in it, give - < {shlex.quote(prompt)}"
            )
        return None if prompt is None else self.with_system(read_prompt(prompt))

    def with_system(self, prompt: str) -> "Prompt":
        """Return a text with the system message before it, if there is one."""
        if self.system is None:
            return prompt
        return [{"role": "system", "content": self.system}, {"role": "user", "content": prompt}]


@option_group("Many prompts")
class FileOptions:
    """The options of a file of prompts, and of the file of their answers."""

    source: Path | None = optional(
        'Answer a file of prompts. Each line is a JSON object, {"prompt": "..."} or {"messages": [...]}, with an '
        'optional "id"; - reads them from stdin. Needs --output.',
        "--input",
    )
    target: Path | None = optional(
        "File for the answers; - prints them. Each line is what --json prints, in the order of the prompts. The same "
        "command resumes an interrupted run, if it writes a file.",
        "--output",
    )
    concurrency: int = option(32, "Number of prompts decoded at once, at least 1. It changes no answer.", is_rare=True)


def generate(
    prompt: str | None = argument(None, "The text to answer; - reads it from stdin.", "PROMPT"),
    *,
    model: RuntimeOptions,
    decoding: GenerateOptions,
    how: PromptOptions,
    as_json: bool = JSON,
    as_trace: bool = option(
        False,
        "Show each forward pass: the tokens that it revealed (bold, in brackets), masked positions (_), entropies, and what "
        "it committed. With --json: everything, for programs.",
        "--trace",
        panel=OUTPUT,
    ),
    many: FileOptions,
) -> None:
    """Answer a prompt. Text is printed as soon as it is final, then tokens, forward passes and seconds on stderr.

    Every forward pass counts: the prefill, passes over a block, and passes that commit a finished block and begin the next
    one. Several answers (--n) are not streamed, and --json prints them as {"answers": [...]}. --logprobs needs --json.
    """
    model.check()
    from setblock import generate_batch, stream, trace

    settings = decoding.settings()
    if many.source is not None or many.target is not None:
        if many.source is None or many.target is None or prompt is not None or as_trace:
            raise ParameterError("--input and --output go together, without PROMPT and --trace")
        if how.system is not None:
            raise ParameterError("--input has its chats in its lines: leave out --system")
        if many.concurrency < 1:
            raise ParameterError(f"--concurrency must be at least 1, not {many.concurrency}")
        if as_json and many.target == _PIPE:
            raise ParameterError("--output - prints the answers: leave out --json, or name a file for them")
        generate_file(many, model, decoding, how.given(), as_json=as_json)
        return
    if settings.logprobs is not None and not as_json:
        raise ParameterError("--logprobs needs --json, which shows them")
    if settings.n > 1 and as_trace:
        raise ParameterError(f"--trace shows one answer: --n must be 1, not {settings.n}")
    requested, given = how.requested(prompt), how.given()
    if requested is None:
        raise ParameterError(
            "PROMPT is missing: give a text, - to read stdin, or --input FILE for many prompts or for chats"
        )
    warn_of_bundled(model)
    loaded = load_language_model(model, blocks=settings.method == "sbd")
    settings = decoding.settings_for(loaded)
    if as_trace:
        print_trace(trace(loaded, requested, settings=settings, **given), settings, as_json=as_json)
    elif settings.n == 1:
        answer = stream(loaded, requested, settings=settings, **given)
        _print_stream(answer, loaded.tokenizer, as_json=as_json)
    else:
        answers = generate_batch(loaded, [requested], settings=settings, **given)
        _print_answers(answers, loaded.tokenizer, as_json=as_json)


def _print_stream(chunks: Iterator["StreamChunk"], tokenizer: Any, *, as_json: bool) -> None:
    for chunk in chunks:
        if not as_json:
            typer.echo(chunk.text, nl=chunk.generation is not None)
    assert chunk.generation is not None
    if as_json:
        print_json(generation_json(chunk.generation, tokenizer))
    else:
        print_figures(_figures(chunk.generation))


def _print_answers(answers: Sequence[Generation], tokenizer: Any, *, as_json: bool) -> None:
    if (failure := next((answer.error for answer in answers if answer.error is not None), None)) is not None:
        raise SetBlockError(failure.message)
    if as_json:
        print_json({"answers": [generation_json(answer, tokenizer) for answer in answers]})
        return
    for number, answer in enumerate(answers, start=1):
        stdout_console().print(f"-- answer {number} of {len(answers)}", style="dim", markup=False)
        typer.echo(answer.text)
        print_figures(_figures(answer))


def _figures(generation: Generation) -> str:
    passes, kept = generation.passes, _kept(generation.accepted, generation.drafted)
    return (
        f"{counted(generation.num_tokens, 'token')}, {counted(generation.num_forwards, 'forward')} "
        f"({passes.prefill} prefill, {passes.block} block, {passes.commit} commit), "
        f"{generation.tokens_per_forward:.2f} tokens per forward{kept}, {generation.seconds:.2f} s"
    )


def _kept(accepted: int, drafted: int) -> str:
    return f", {accepted} of {counted(drafted, 'drafted token')} kept" if drafted else ""


def generate_file(
    many: FileOptions, options: RuntimeOptions, decoding: DecodingOptions, given: Mapping[str, Any], *, as_json: bool
) -> None:
    """Answer every line of one file into another; continue where an interrupted run stopped. `given` says how prompts are
    given, as in `PromptOptions`. Raise `SetBlockError` if a line is not a prompt or is too long, or a file can't be read or
    written."""
    source, target, concurrency = many.source, many.target, many.concurrency
    assert source is not None and target is not None
    text = read_prompt("-") if source == _PIPE else read_text(source)
    settings, lines = decoding.settings(), read_prompts(text, name="stdin" if source == _PIPE else str(source))
    answers: AnswerFile | AnswerPipe
    with ExitStack() as opened:
        if target == _PIPE:
            answers = AnswerPipe((line.number, sample) for line in lines for sample in range(settings.n))
        else:
            opened.enter_context(resumable())
            answers = opened.enter_context(closing(AnswerFile(target)))
        from setblock.engine.offline import answer_prompts

        warn_of_bundled(options)
        loaded = load_language_model(options, blocks=settings.method == "sbd")
        settings = decoding.settings_for(loaded)
        if isinstance(answers, AnswerFile):
            from setblock.evaluation.sweeps.fingerprint import model_fingerprint

            made: dict[str, Any] = {  # everything that determines the answers
                "prompts": hashlib.sha256(text.encode()).hexdigest(),
                "model": model_fingerprint(loaded),
                "settings": {name: repr(value) for name, value in settings.changed().items()},
                **given,
                # In another runtime, or with prepacked weights, numbers may add up in another order
                "prepacked": getattr(loaded, "prepacked", False),
                "llama_cpp": asdict(options.llama_options()) if options.takes_llama_cpp else None,
            }
            answers.begin(made)
        with progress() as report:
            done = answer_prompts(
                loaded,
                lines,
                settings,
                answers,
                concurrency=concurrency,
                on_progress=partial(report, "answers"),
                **given,
            )
        answers.finish()
    if as_json:
        print_json({"output": str(target), **asdict(done)})
        return
    without = f", {done.failed} of them ended in an error" if done.failed else ""
    print_figures(
        f"{counted(done.answers, 'answer')}{'' if target == _PIPE else f' in {target}'}{without}: "
        f"{counted(done.num_tokens, 'token')}, {counted(done.num_forwards, 'forward')}"
        f"{_kept(done.num_accepted_tokens, done.num_drafted_tokens)}, {done.seconds:.1f} s"
    )


_STYLES = {"prefill": "cyan", "token": "cyan", "block": "green", "commit": "magenta"}

# A model may write anything, and an escape sequence would colour or move what follows it.
CONTROLS = {code: "\ufffd" for code in (*range(32), *range(127, 160)) if chr(code) not in "\n\t"}


def print_trace(trace: "Trace", settings: DecodingSettings, *, as_json: bool) -> None:
    """Print the prompt, then for each pass a line of figures and the open block as it left it; or all of it as JSON."""
    if as_json:
        print_json({**asdict(trace), **sampler_json(settings)})
        return
    console = stdout_console()
    console.print(Text(shown(trace.prompt).strip().translate(CONTROLS), style="dim"), soft_wrap=True)
    standing: dict[int, TracedToken] = {}
    for each in trace.passes:
        for index in each.dropped:
            del standing[index]
        standing |= {token.index: token for token in (each.corrected, *each.revealed) if token is not None}
        console.print("", _head(each), _block(each, standing), sep="\n", soft_wrap=True)
    tokens, count = len(trace.tokens), len(trace.passes)
    figures = f"{counted(tokens, 'token')}, {counted(count, 'forward')}, {tokens / count:.2f} tokens per forward"
    console.print(Text(f"\n{figures}", style="dim"), soft_wrap=True)


def _head(traced: "TracedPass") -> Text:
    name, kind = ("prefill", "") if traced.kind == "prefill" else (f"pass {traced.number}", f"{traced.kind:<7}")
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


def _block(traced: "TracedPass", standing: "dict[int, TracedToken]") -> Text:
    new = {token.index for token in (traced.corrected, *traced.revealed) if token is not None}
    end = min([traced.start + traced.size - 1, *(index for index, token in standing.items() if token.is_end)])
    text = Text("  ")
    for index in range(traced.start, end + 1):
        if (token := standing.get(index)) is None:
            text.append("_", style="dim")
            continue
        shown_text = "end of text" if token.is_end else token.text.replace("\n", "↵").translate(CONTROLS)
        if index in new:
            text.append(f"[{shown_text}]", style=f"bold {_STYLES[traced.kind]}")
        else:
            text.append(shown_text)
    return text


def read_prompt(given: str) -> str:
    """Return the text of the PROMPT argument: itself, or stdin's where it is `-`. Raise `SetBlockError` if it is not valid
    UTF-8, or stdin is closed."""
    if given == "-" and sys.stdin is None:
        raise SetBlockError("stdin is closed, so that no prompt could be read from it")
    try:
        # Bytes, since how stdin is decoded depends on the locale.
        text = sys.stdin.buffer.read().decode("utf-8-sig") if given == "-" else given
        text.encode()  # bytes of an argument that are not UTF-8 come as lone surrogates
    except UnicodeError as error:
        raise SetBlockError("prompt must be valid UTF-8") from error
    return text


def shown(prompt: "Prompt") -> str:
    """Return a prompt as text for a report: of a chat, each message with its role."""
    if isinstance(prompt, str):
        return prompt
    return "\n".join(f"{each['role']}: {each['content']}" for each in prompt)  # type: ignore[index]
