"""Conversations in the terminal (`setblock chat`)."""

import re
import signal
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING

import typer

from setblock.cli.answering.generate import CONTROLS, FormOptions
from setblock.cli.messages import counted, print_figures, print_message
from setblock.cli.options.groups import DECODING, optional
from setblock.cli.options.model import RuntimeOptions, load_language_model, warn_of_bundled
from setblock.decoding.answer.generation import Generation
from setblock.errors import SetBlockError

if TYPE_CHECKING:
    from setblock.decoding.settings.table import DecodingSettings
    from setblock.model.protocol.runtime import LanguageModel

_PROMPT = "> "
_COMMANDS = {"/reset": "forgets the conversation", "/exit": "ends it, as Ctrl-D does"}


def chat(
    *,
    model: RuntimeOptions,
    decoding: FormOptions,
    system: str | None = optional("System message of the conversation.", metavar="TEXT", panel=DECODING),
) -> None:
    """Talk to a model. Each line is a message, and each answer is streamed, with the forward passes that it saved on stderr.

    /reset forgets the conversation, /exit or Ctrl-D ends it, and Ctrl-C stops an answer. What was written of it stays in the
    conversation. Lines can be piped in, too; the first error then ends the command.
    """
    model.check()
    settings = decoding.settings()
    if sys.stdin is None:
        raise SetBlockError("stdin is closed, so that no message could be read from it")
    warn_of_bundled(model)
    loaded = load_language_model(model, blocks=settings.method == "sbd")
    if loaded.tokenizer.chat_template is None:
        name = model.path or "bundled"
        raise SetBlockError(f"model {name} has no chat template: `setblock generate` continues a text with it")
    settings = decoding.settings_for(loaded)

    is_typed = _is_typed()
    if is_typed:
        print_message("; ".join(f"{name} {does}" for name, does in _COMMANDS.items()) + "; Ctrl-C stops an answer")
    conversation = Conversation(loaded, settings, system)
    for line in _typed_lines() if is_typed else _piped_lines():
        command = line.strip()
        if command == "/exit":
            break
        if command == "/reset":
            conversation.reset()
            continue
        if re.fullmatch(r"/[a-z]+", command):
            known = ", ".join(_COMMANDS)
            print_message(f"there is no {command}; the commands are {known}")
            continue
        if command:
            try:
                conversation.answer(line)
            except SetBlockError as error:  # such as a conversation that has outgrown the context
                if not is_typed:
                    raise
                print_message(f"error: {error}; /reset begins a new conversation")


class Conversation:
    """The messages of a conversation so far. It prints the model's answers to new ones."""

    def __init__(self, model: "LanguageModel", settings: "DecodingSettings", system: str | None) -> None:
        """Begin with a system message, if there is one."""
        self._model, self._settings = model, settings
        self._first = [] if system is None else [{"role": "system", "content": system}]
        self.messages = list(self._first)

    def reset(self) -> None:
        """Forget everything but the system message."""
        self.messages = list(self._first)

    def answer(self, text: str) -> None:
        """Print the answer to a message as it is written, and keep both. If the message can't be answered, keep neither and
        raise `SetBlockError`. Ctrl-C ends the answer after the current pass."""
        from setblock import stream

        requested = [*self.messages, {"role": "user", "content": text}]
        written, generation = "", None
        with _interruptible() as stopped:
            for chunk in stream(self._model, requested, settings=self._settings):
                written += chunk.text
                typer.echo(chunk.text.translate(CONTROLS), nl=False)
                generation = chunk.generation
                if stopped.is_set():
                    break
        typer.echo()
        self.messages = [*requested, {"role": "assistant", "content": written}]
        print_figures("stopped" if generation is None else figures(generation))


def figures(generation: Generation) -> str:
    """Return the number of tokens, of passes, and of passes saved compared with plain decoding, which has the same prefill and
    one pass for each token after the first."""
    saved = generation.num_tokens - 1 - generation.passes.decoding
    savings = f"{saved} passes saved" if saved > 1 else "1 pass saved" if saved == 1 else "no pass saved"
    cut = " (stopped at --max-new-tokens)" if generation.finish_reason == "length" else ""
    return (
        f"{counted(generation.num_tokens, 'token')}{cut}, {counted(generation.num_forwards, 'forward')}: {savings}, "
        f"{generation.seconds:.2f} s"
    )


@contextmanager
def _interruptible() -> Iterator[threading.Event]:
    """Yield an event that the first Ctrl-C sets while active. A second one interrupts at once."""
    stopped = threading.Event()

    def stop(number: int, frame: object) -> None:
        if stopped.is_set():
            raise KeyboardInterrupt
        stopped.set()

    before = signal.signal(signal.SIGINT, stop)
    try:
        yield stopped
    finally:
        signal.signal(signal.SIGINT, before)


def _is_typed() -> bool:
    return sys.stdin.isatty()


def _typed_lines() -> Iterator[str]:
    """Yield what is typed, line by line, up to Ctrl-D. Ctrl-C discards the line, as in a shell."""
    with suppress(ImportError):  # not on Windows
        import readline  # noqa: F401  # lets `input` edit the line, and remember earlier ones
    while True:
        try:
            yield input(_PROMPT)
        except KeyboardInterrupt:
            typer.echo()
        except EOFError:
            typer.echo()
            return


def _piped_lines() -> Iterator[str]:
    """Yield the lines of stdin as they come. Raise `SetBlockError` if one is not valid UTF-8."""
    # Bytes, since how stdin is decoded depends on the locale
    for number, line in enumerate(sys.stdin.buffer, start=1):
        try:
            yield line.decode("utf-8-sig" if number == 1 else "utf-8").rstrip("\r\n")
        except UnicodeDecodeError as error:
            raise SetBlockError(f"line {number} of stdin must be valid UTF-8") from error
