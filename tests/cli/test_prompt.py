"""What a model is asked: a system message, and the warnings that go with the included model."""

import json
import logging
import threading

import pytest

from setblock.cli import messages as messages_module
from setblock.decoding.settings.table import DecodingSettings
from setblock.engine.generate import generate
from setblock.model.loading.loading import load

CHAT = [{"role": "system", "content": "Count."}, {"role": "user", "content": "Tom has 5 pens."}]
SHORT = ("--max-new-tokens", 8, "--json")


def texts(command, result):
    """The texts of a command's JSON that must be plain decoding's."""
    return {result["ntp"]["text"], result["exact"]["text"]} if command == "compare" else {result["text"]}


@pytest.mark.parametrize("command", ["generate", "compare", "generate --trace"])
def test_a_system_message_reaches_the_model(run, chat_folder, command):
    model, plain = load(chat_folder), DecodingSettings(method="ntp", max_new_tokens=8)
    expected = generate(model, CHAT, settings=plain).text
    assert expected != generate(model, "Tom has 5 pens.", settings=plain).text
    requested = ("Tom has 5 pens.", "--system", "Count.")
    found = json.loads(run(*command.split(), *requested, "--model", chat_folder, *SHORT).stdout)
    assert texts(command, found) == {expected}
    assert found.get("prompt", CHAT) == CHAT
    if command != "generate":
        printed = run(*command.split(), *requested, "--model", chat_folder, "--max-new-tokens", 8).stdout
        assert "system: Count.\nuser: Tom has 5 pens.\n" in printed


def test_a_template_that_leaves_the_system_message_out_is_reported(run, sbd_folder):
    outcome = run("generate", "Tom", "--system", "Count.", "--model", sbd_folder, *SHORT)
    assert outcome.message == "setblock: warning: the model's chat template leaves out the system message"


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("a", "--system", "b", "--raw"), "--raw has no place for a system message"),
        (("--system", "b"), None),
    ],
)
@pytest.mark.parametrize("command", ["generate", "generate --trace", "compare"])
def test_what_does_not_go_together(run, command, arguments, said):
    if said is None and command == "compare":  # which has a prompt of its own
        return
    outcome = run(*command.split(), *arguments)
    assert (outcome.code, outcome.stdout) == (2, "")
    assert (said or "PROMPT is missing: give a text") in outcome.message


@pytest.mark.parametrize("command", ["generate", "compare"])
def test_a_prompt_that_names_a_file_hints_at_what_is_in_it(run, sbd_folder, tmp_path, command):
    path = tmp_path / "my question.txt"
    plain = run(command, path, "--model", sbd_folder, *SHORT)
    assert plain.stderr == ""
    path.write_text("Tom has 5 pens.")
    outcome = run(command, path, "--model", sbd_folder, *SHORT)
    said = f"setblock: PROMPT is a text, and {path} a file, too: to answer what is in it, give - < '{path}'"
    assert outcome.message == said
    assert texts(command, json.loads(outcome.stdout)) == texts(command, json.loads(plain.stdout))
    for other in ("a\0b", "x" * 5000):  # which no file can be called
        assert "is a text" not in run(command, other, "--model", sbd_folder, *SHORT).stderr


def test_a_file_of_prompts_has_its_own_messages(run, tmp_path):
    outcome = run("generate", "--input", "a.jsonl", "--output", "b.jsonl", "--system", "c")
    assert outcome.code == 2
    assert "--input has its chats in its lines" in outcome.message


@pytest.mark.parametrize("fetched", [True, False])
def test_the_included_model_warns_of_what_it_is(run, monkeypatch, tmp_path, fetched):
    monkeypatch.setattr("setblock.cli.options.model.is_fetched", lambda name: fetched)
    said = "setblock: warning: the included model knows the word problems of one generator only: "
    said += "with other names, about half of its answers are wrong. "
    said += "For a chat model, give --model smollm2: "
    said += "this machine has one" if fetched else "`setblock fetch smollm2` downloads one (93 MB)"
    for command in ("generate", "compare", "generate --trace"):
        assert run(*command.split(), "Hello", *SHORT).message == said
    assert run("generate", "--trace", "Hello", "--model", "bundled", *SHORT).message == said
    (tmp_path / "own.jsonl").write_text('{"prompt": "Hello"}\n')
    assert run("evaluate", "--input", tmp_path / "own.jsonl", *SHORT).message == said


def test_word_problems_need_no_warning(run):
    assert run("compare", *SHORT).stderr == ""
    assert run("evaluate", "--limit", 1, *SHORT).stderr == ""


def test_a_step_that_lasts_is_named_and_one_that_does_not_is_not(monkeypatch, capfd):
    def begin(step, patience):
        monkeypatch.setattr(messages_module, "_PATIENCE", patience)
        logging.getLogger("setblock.steps").info("reading %s", step)

    with messages_module.slow_steps_named():
        begin("this", 3600)
        begin("that", 0.01)
        for thread in threading.enumerate():
            if isinstance(thread, threading.Timer):
                thread.join(60)  # not read before: what is written meanwhile would be lost
        begin("the last", 3600)
    assert capfd.readouterr().err == "setblock: reading that ...\n"
    assert not any(
        isinstance(thread, threading.Timer) and not thread.finished.is_set() for thread in threading.enumerate()
    )


@pytest.mark.parametrize("command", ["generate", "compare", "generate --trace"])
def test_the_chat_template_gets_kwargs(command, run, chat_folder):
    template = chat_folder / "chat_template.jinja"
    template.write_text(template.read_text() + "{{ style or '' }}")
    model, plain = load(chat_folder), DecodingSettings(method="ntp", max_new_tokens=8)
    kwargs = {"style": "Tom has 12 pens."}
    expected = generate(model, "Tom?", settings=plain, chat_template_kwargs=kwargs).text
    assert expected != generate(model, "Tom?", settings=plain).text
    requested = (*command.split(), "Tom?", "--model", chat_folder, *SHORT, "--chat-template-kwargs")
    assert texts(command, json.loads(run(*requested, json.dumps(kwargs)).stdout)) == {expected}
    for given, said in (
        ("{", "must be a JSON object such as"),
        ("[]", "must be a JSON object"),
        ('{"styl": 1}', "'styl'"),
    ):
        failed = run(*requested, given)
        assert failed.code != 0
        assert said in failed.stderr


def test_a_file_of_prompts_gets_kwargs(run, chat_folder, tmp_path):
    template = chat_folder / "chat_template.jinja"
    template.write_text(template.read_text() + "{{ style or '' }}")
    (tmp_path / "prompts.jsonl").write_text('{"prompt": "Tom?"}\n')
    model, plain = load(chat_folder), DecodingSettings(method="ntp", max_new_tokens=8)
    expected = generate(model, "Tom?", settings=plain, chat_template_kwargs={"style": "x y"}).text
    requested = (
        "generate",
        "--input",
        tmp_path / "prompts.jsonl",
        "--model",
        chat_folder,
        "--method",
        "ntp",
        SHORT[0],
        8,
    )
    target = tmp_path / "answers.jsonl"
    run(*requested, "--output", target, "--chat-template-kwargs", '{"style": "x y"}')
    assert json.loads(target.read_text())["text"] == expected
    assert run(*requested, "--output", target).code != 0  # other answers than the file's
