"""A conversation: what the model is asked in each turn, what ends an answer, and what is printed of it."""

import os
import re
import signal

import pytest

from setblock.cli.answering.chat import _typed_lines
from setblock.cli.answering.generate import CONTROLS
from setblock.decoding.settings.table import DecodingSettings
from setblock.engine.generate import generate, stream
from setblock.model.loading.loading import load

SHORT = ("--max-new-tokens", 8)


def shown(text):
    return text.translate(CONTROLS) + "\n"


def message(role, content):
    return {"role": role, "content": content}


@pytest.fixture
def answer(chat_folder):
    """The model's answer to a whole conversation, by plain decoding."""
    model = load(chat_folder)

    def answer(*messages):
        return generate(model, messages, settings=DecodingSettings(method="ntp", max_new_tokens=8))

    return answer


@pytest.mark.parametrize("system", [None, "Count."])
def test_each_message_is_answered_in_the_light_of_all_before(run, chat_folder, answer, system):
    first = [] if system is None else [message("system", system)]
    turns = [*first, message("user", "Tom has 5 pens.")]
    one = answer(*turns).text
    turns += [message("assistant", one), message("user", "And Ana?")]
    two, forgotten = answer(*turns).text, answer(*first, message("user", "And Ana?")).text
    assert two != forgotten
    typed = "Tom has 5 pens.\n\nAnd Ana?\n/reset\nAnd Ana?\n/exit\nAnd Ben?\n"
    options = [] if system is None else ["--system", system]
    outcome = run("chat", "--model", chat_folder, *options, *SHORT, stdin=typed)
    assert (outcome.code, outcome.stdout) == (0, shown(one) + shown(two) + shown(forgotten))
    assert len(outcome.stderr.splitlines()) == 3


def test_passes_saved_are_those_that_plain_decoding_takes_more(run, chat_folder, answer):
    plain = answer(message("user", "Tom has 5 pens."))
    for method in ("exact", "ntp"):
        messages = run("chat", "--model", chat_folder, "--method", method, *SHORT, stdin="Tom has 5 pens.").message
        tokens, forwards = map(int, re.match(r"(\d+) tokens?.*?, (\d+) forwards?: ", messages).groups())
        assert tokens == plain.num_tokens
        saved = plain.num_forwards - forwards
        assert (f"{saved} passes saved" if saved > 1 else "1 pass saved" if saved else "no pass saved") in messages


def test_ctrl_c_stops_an_answer_and_keeps_what_was_written(run, chat_folder, monkeypatch):
    requested = []

    def interrupted(model, prompt, *, settings):
        requested.append(prompt)
        for number, chunk in enumerate(stream(model, prompt, settings=settings)):
            if number == 2 and len(requested) == 1:
                os.kill(os.getpid(), signal.SIGINT)
            yield chunk

    monkeypatch.setattr("setblock.stream", interrupted, raising=False)
    outcome = run("chat", "--model", chat_folder, "--method", "ntp", *SHORT, stdin="Tom has 5 pens.\nGo on.\n")
    assert outcome.code == 0
    first, second = outcome.stderr.splitlines()
    assert first == "stopped"
    assert second.startswith("8 tokens")
    whole = generate(load(chat_folder), requested[0], settings=DecodingSettings(method="ntp", max_new_tokens=8)).text
    written = requested[1][1]["content"]
    assert whole.startswith(written)
    assert 0 < len(written) < len(whole)
    assert requested[1] == [
        message("user", "Tom has 5 pens."),
        message("assistant", written),
        message("user", "Go on."),
    ]
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler


def test_what_a_model_writes_can_t_steer_the_terminal(run, chat_folder, monkeypatch):
    def escaping(model, prompt, *, settings):
        for chunk in stream(model, prompt, settings=settings):
            object.__setattr__(chunk, "text", "\x1b[2J\x9b31m")
            yield chunk

    monkeypatch.setattr("setblock.stream", escaping, raising=False)
    outcome = run("chat", "--model", chat_folder, *SHORT, stdin="Tom\n")
    assert "[2J" in outcome.stdout
    assert not {"\x1b", "\x9b"} & set(outcome.stdout)


def test_an_unknown_command_is_no_message(run, chat_folder, answer):
    outcome = run("chat", "--model", chat_folder, *SHORT, stdin="/rest\n/usr is what?\n")
    assert outcome.stdout == shown(answer(message("user", "/usr is what?")).text)
    assert outcome.stderr.startswith("setblock: there is no /rest; the commands are /reset, /exit\n")


def test_an_error_ends_piped_lines_and_not_typed_ones(run, chat_folder, answer, monkeypatch):
    lines = "9" * 600 + "\nTom\n"
    outcome = run("chat", "--model", chat_folder, *SHORT, stdin=lines)
    assert (outcome.code, outcome.stdout) == (1, "")
    assert "context holds 512" in outcome.message
    monkeypatch.setattr("setblock.cli.answering.chat._is_typed", lambda: True)
    monkeypatch.setattr("setblock.cli.answering.chat._typed_lines", lambda: iter(lines.splitlines()))
    outcome = run("chat", "--model", chat_folder, *SHORT)
    assert (outcome.code, outcome.stdout) == (0, shown(answer(message("user", "Tom")).text))
    messages = outcome.stderr.splitlines()
    assert "/reset forgets the conversation" in messages[0]
    assert messages[1].endswith("; /reset begins a new conversation")


def test_ctrl_c_discards_a_line_and_ctrl_d_ends(monkeypatch):
    typed = iter([KeyboardInterrupt, "Tom", EOFError])

    def typing(prompt):
        if isinstance(line := next(typed), str):
            return line
        raise line

    monkeypatch.setattr("builtins.input", typing)
    assert list(_typed_lines()) == ["Tom"]


def test_lines_that_are_not_text(run, chat_folder):
    outcome = run("chat", "--model", chat_folder, *SHORT, stdin=b"\xef\xbb\xbfTom\n\xff\n")
    assert outcome.code == 1
    assert outcome.stderr.endswith("setblock: error: line 2 of stdin must be valid UTF-8\n")


def test_a_model_without_a_template_is_refused(run, copied):
    (copied / "chat_template.jinja").unlink()
    outcome = run("chat", "--model", copied, stdin="Tom\n")
    assert (outcome.code, outcome.stdout) == (1, "")
    assert outcome.message.endswith("has no chat template: `setblock generate` continues a text with it")
