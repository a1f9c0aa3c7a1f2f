"""`setblock generate --input`: every line answered as by itself, bad lines named, interrupted runs gone on with."""

import errno
import json
import os
import signal
import time
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from safetensors.torch import load_file, save_file

from families import tiny_sbd
from setblock.engine.files import AnswerFile, AnswerPipe
from setblock.errors import SetBlockError

PROMPTS: list[dict[str, Any]] = [
    {"prompt": "Tom has 12 apples", "id": "first"},
    {"messages": [{"role": "user", "content": "Ana reads 15 pages"}]},
    {"prompt": "A school", "id": 7},
]
OPTIONS = ("--max-new-tokens", 8, "--method", "sbd", "--gamma", 4, "--raw")


@pytest.fixture
def plain(tmp_path: Path) -> Path:
    """A file of prompts without messages (the tiny tokenizer has no chat template), with a byte order mark."""
    path = tmp_path / "prompts.jsonl"
    path.write_text("\n".join(json.dumps(each) for each in (PROMPTS[0], PROMPTS[2])) + "\n\n", encoding="utf-8-sig")
    return path


def lines_of(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text().splitlines()]


def test_a_model_whose_requests_need_a_row_each(run, plain, tmp_path, trained_tokenizer):
    tiny_sbd("falcon", trained_tokenizer).save(tmp_path / "falcon")
    out = tmp_path / "out.jsonl"
    options = ("--model", tmp_path / "falcon", "--max-new-tokens", 8, "--raw")
    outcome = run("generate", "--input", plain, "--output", out, *options)
    assert outcome.code == 0, outcome.message
    for each, asked in zip(lines_of(out), (PROMPTS[0], PROMPTS[2]), strict=True):
        alone = json.loads(run("generate", asked["prompt"], *options, "--json").stdout)
        assert each["text"] == alone["text"]


def test_each_line_is_answered_as_by_itself(run, sbd_folder, plain, tmp_path):
    out = tmp_path / "out.jsonl"
    outcome = run(
        "generate", "--input", plain, "--output", out, "--model", sbd_folder, *OPTIONS, "--n", 2, "--temperature", 1
    )
    assert (outcome.code, outcome.stdout) == (0, "")
    assert outcome.message.startswith(f"4 answers in {out}: ")
    found = lines_of(out)
    assert [(each["line"], each["sample"], each["id"]) for each in found] == [
        (1, 0, "first"),
        (1, 1, "first"),
        (2, 0, 7),
        (2, 1, 7),
    ]
    for each in found:
        prompt = PROMPTS[0 if each["line"] == 1 else 2]["prompt"]
        alone = run(
            "generate", prompt, "--model", sbd_folder, *OPTIONS, "--seed", each["sample"], "--temperature", 1, "--json"
        )
        expected = json.loads(alone.stdout)
        assert {name: each[name] for name in expected if name != "seconds"} == {
            name: value for name, value in expected.items() if name != "seconds"
        }
    again = run("generate", "--input", plain, "--output", out, "--model", sbd_folder)
    assert (again.code, again.message) == (
        1,
        f"setblock: error: {out} exists already: name another file, or move it away",
    )


def test_the_figures_are_of_all_answers(run, sbd_folder, plain, tmp_path):
    command = ("generate", "--model", sbd_folder, "--input", plain, "--method", "exact", "--drafts", "fixed", "--raw")
    outcome = run(*command, "--output", tmp_path / "out.jsonl", "--max-new-tokens", 8)
    figures = json.loads(run(*command, "--output", tmp_path / "again.jsonl", "--max-new-tokens", 8, "--json").stdout)
    answers = lines_of(tmp_path / "out.jsonl")
    for name in ("num_tokens", "num_forwards", "num_drafted_tokens", "num_accepted_tokens"):
        assert figures[name] == sum(each[name] for each in answers), name
    drafted, kept = figures["num_drafted_tokens"], figures["num_accepted_tokens"]
    assert drafted > 1
    assert f", {kept} of {drafted} drafted tokens kept, " in outcome.message


def test_an_interrupted_run_goes_on(run, sbd_folder, plain, tmp_path):
    whole, out = tmp_path / "whole.jsonl", tmp_path / "out.jsonl"
    command = ("generate", "--input", plain, "--model", sbd_folder, *OPTIONS, "--json")
    assert run(*command, "--output", whole).code == 0
    # What an interruption leaves: the header, the second answer, and half of the first
    made = tmp_path / "made.jsonl"
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(AnswerFile, "finish", lambda self: None)
        assert run(*command, "--output", made).code == 0
    header, first, second = made.with_name("made.jsonl.part").read_text().splitlines()
    marked = json.dumps({**json.loads(second), "text": "kept"})
    out.with_name("out.jsonl.part").write_text(f"{header}\n{marked}\n{first[:20]}")
    outcome = run(*command, "--output", out)
    assert (outcome.code, json.loads(outcome.stdout)["answers"]) == (0, 2)
    found, expected = lines_of(out), lines_of(whole)
    assert [each["line"] for each in found] == [1, 2]
    kept = json.loads(second)["line"] - 1
    assert found[kept]["text"] == "kept"
    assert found[1 - kept]["text"] == expected[1 - kept]["text"]
    assert sorted(path.name for path in tmp_path.glob("out*")) == ["out.jsonl"]


def test_a_pipe(run, sbd_folder, plain, tmp_path):
    out = tmp_path / "out.jsonl"
    command = ("generate", "--model", sbd_folder, *OPTIONS, "--n", 2, "--temperature", 1)
    assert run(*command, "--input", plain, "--output", out).code == 0
    piped = run(*command, "--input", "-", "--output", "-", stdin=plain.read_bytes())
    assert piped.code == 0
    assert piped.message.startswith("4 answers: ")
    assert not Path("-").exists()

    def without_seconds(lines: list[str]) -> list[dict[str, Any]]:
        return [{name: value for name, value in json.loads(line).items() if name != "seconds"} for line in lines]

    assert without_seconds(piped.stdout.splitlines()) == without_seconds(out.read_text().splitlines())


def test_a_pipe_has_answers_in_the_order_of_their_prompts(capsys):
    pipe = AnswerPipe([(1, 0), (1, 1), (4, 0)])
    pipe.add((1, 1), {"text": "b"})
    pipe.add((4, 0), {"text": "c"})
    assert capsys.readouterr().out == ""
    pipe.add((1, 0), {"text": "a"})
    assert [json.loads(line)["text"] for line in capsys.readouterr().out.splitlines()] == ["a", "b", "c"]


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_a_signal_says_how_to_resume(run, sbd_folder, plain, tmp_path, monkeypatch, number, code):
    def stopped(*_: Any, **__: Any) -> None:
        os.kill(os.getpid(), number)
        time.sleep(60)

    before = signal.getsignal(signal.SIGTERM)
    monkeypatch.setattr("setblock.cli.answering.generate.load_language_model", stopped)
    out = tmp_path / "out.jsonl"
    outcome = run("generate", "--input", plain, "--output", out, "--model", sbd_folder)
    assert (outcome.code, outcome.message) == (code, "setblock: interrupted; run the same command again to resume")
    assert not list(tmp_path.glob("out*")), "nothing was written yet"
    assert signal.getsignal(signal.SIGTERM) is before


def test_a_part_that_was_made_otherwise_is_left_alone(tmp_path):
    path = tmp_path / "out.jsonl"
    with closing(AnswerFile(path)) as answers:
        answers.begin({"model": "a", "settings": {"n": 1}})
        answers.add((1, 0), {"text": "x"})
    before = path.with_name("out.jsonl.part").read_bytes()
    for made, said in (
        ({"model": "b", "settings": {"n": 1}}, "model"),
        ({"model": "a", "settings": {"n": 2}}, "settings"),
    ):
        with (
            closing(AnswerFile(path)) as answers,
            pytest.raises(SetBlockError, match=rf"out\.jsonl\.part was made with other {said}: delete it"),
        ):
            answers.begin(made)
    assert path.with_name("out.jsonl.part").read_bytes() == before
    with closing(AnswerFile(path)) as answers:
        answers.begin({"settings": {"n": 1}, "model": "a"})
        assert answers.done == {(1, 0)}


def test_another_model_at_the_same_place_does_not_continue_a_file(run, copied, plain, tmp_path, monkeypatch):
    """A model that was trained further meanwhile: its folder's name is no fingerprint."""
    out = tmp_path / "out.jsonl"
    command = ("generate", "--input", plain, "--output", out, "--model", copied, *OPTIONS)
    with monkeypatch.context() as patch:
        patch.setattr(AnswerFile, "finish", lambda self: None)
        assert run(*command).code == 0
    weights = load_file(copied / "model.safetensors")
    name = next(iter(weights))
    save_file({**weights, name: weights[name] * 2}, copied / "model.safetensors", metadata={"format": "pt"})
    outcome = run(*command)
    assert (outcome.code, "was made with other model: delete it to start again" in outcome.message) == (1, True)


def test_a_second_writer_is_refused_at_once(run, sbd_folder, plain, tmp_path):
    out = tmp_path / "out.jsonl"
    with closing(AnswerFile(out)):
        outcome = run("generate", "--input", plain, "--output", out, "--model", sbd_folder, *OPTIONS)
        said = f"setblock: error: another process is writing to {out}.part: wait for it, or name another file"
        assert (outcome.code, outcome.message) == (1, said)
    assert run("generate", "--input", plain, "--output", out, "--model", sbd_folder, *OPTIONS).code == 0


def test_a_full_disk_is_named_with_its_file(run, sbd_folder, plain, tmp_path, monkeypatch):
    """And not stdout."""

    def full(_: int) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr("setblock.json_lines.os.fsync", full)
    outcome = run("generate", "--input", plain, "--output", tmp_path / "out.jsonl", "--model", sbd_folder, *OPTIONS)
    said = f"setblock: error: can't write {tmp_path / 'out.jsonl'}.part: No space left on device"
    assert (outcome.code, outcome.message) == (1, said)


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("{", "line 2 is not JSON"),
        ("[1]", "line 2 must be an object, not list"),
        ('{"promt": "x"}', "line 2: unknown key 'promt'"),
        ('{"id": 1}', "line 2 must have either prompt or messages"),
        (
            '{"messages": [{"role": "user", "content": "a"}, {"role": "assistant", "content": "b"}]}',
            "line 2: messages end in an assistant's message",
        ),
        ('{"prompt": " "}', "line 2: prompt must be a text that is not empty"),
        ('{"prompt": "x", "id": 1.5}', "line 2: id must be a text or a whole number, not 1.5"),
        ('{"messages": []}', "line 2: messages must be a list of objects with role and content"),
        ('{"messages": [{"role": "user", "content": 3}]}', "line 2: content of message 1 must be a text"),
    ],
)
def test_names_the_line_that_is_no_prompt(run, tmp_path, line, message):
    path = tmp_path / "prompts.jsonl"
    path.write_text(f'{{"prompt": "fine"}}\n{line}\n')
    outcome = run("generate", "--input", path, "--output", tmp_path / "out.jsonl")
    assert outcome.code == 1
    assert f"{path}, {message}" in outcome.message
    assert not list(tmp_path.glob("out*"))


def test_names_the_line_that_is_too_long_before_answering_any(run, sbd_folder, tmp_path):
    path = tmp_path / "prompts.jsonl"
    path.write_text('{"prompt": "fine"}\n' + json.dumps({"prompt": "apples " * 600}) + "\n")
    outcome = run("generate", "--input", path, "--output", tmp_path / "out.jsonl", "--model", sbd_folder)
    assert outcome.code == 1
    assert "prompts.jsonl, line 2: prompt has " in outcome.message


def test_names_the_line_that_is_too_long_for_a_tokenizer(run, sbd_folder, tmp_path, monkeypatch):
    path = tmp_path / "prompts.jsonl"
    path.write_text('{"prompt": "fine"}\n' + json.dumps({"prompt": "apples " * 10}) + "\n")
    monkeypatch.setattr("setblock.errors.MOST_CHARACTERS", 50)
    outcome = run("generate", "--input", path, "--output", tmp_path / "out.jsonl", "--model", sbd_folder)
    assert outcome.code == 1
    assert outcome.message.endswith("prompts.jsonl, line 2: prompt has 70 characters: it must have at most 50")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("--input", "a"), "--input and --output go together"),
        (("hello", "--input", "a", "--output", "b"), "--input and --output go together"),
        ((), "PROMPT is missing"),
        (("--input", "a", "--output", "b", "--concurrency", 0), "--concurrency must be at least 1, not 0"),
        (("--input", "a", "--output", "-", "--json"), "--output - prints the answers: leave out --json"),
    ],
)
def test_refuses_options_that_contradict_each_other(run, arguments, message):
    outcome = run("generate", *arguments)
    assert outcome.code == 2
    assert message in outcome.message


def test_names_a_file_that_is_not_there(run, tmp_path):
    outcome = run("generate", "--input", tmp_path / "none.jsonl", "--output", tmp_path / "out.jsonl")
    assert (outcome.code, outcome.message.endswith("No such file or directory")) == (1, True)
