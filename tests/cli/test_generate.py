import json
import math

import pytest

from setblock.data.word_problems import word_problems

SHORT = ("--max-new-tokens", 20)


@pytest.mark.parametrize("method", ["sbd", "ntp"])
def test_json_is_all_there_is_on_stdout(run, sbd_folder, method):
    outcome = run("generate", "Tom has 5 pens.", "--model", sbd_folder, "--method", method, "--json", *SHORT)
    result = json.loads(outcome.stdout)
    assert outcome.code == 0
    assert outcome.stderr == ""
    assert result.keys() == {
        "text",
        "finish_reason",
        "num_tokens",
        "num_forwards",
        "num_prefill_forwards",
        "num_block_forwards",
        "num_commit_forwards",
        "tokens_per_forward",
        "seconds",
        "method",
    }
    assert result["method"] == method
    kinds = ("prefill", "block", "commit")
    assert result["num_forwards"] == sum(result[f"num_{kind}_forwards"] for kind in kinds)
    assert result["tokens_per_forward"] == result["num_tokens"] / result["num_forwards"]


def test_the_stream_is_the_text_and_its_figures_are_one_line(run, sbd_folder):
    arguments = ("generate", "Tom has 5 pens.", "--model", sbd_folder, "--gamma", "inf", *SHORT)
    outcome, result = run(*arguments), json.loads(run(*arguments, "--json").stdout)
    assert outcome.stdout == result["text"] + "\n"
    assert outcome.message.startswith(f"{result['num_tokens']} tokens, {result['num_forwards']} forwards (1 prefill, ")


def test_a_prompt_can_come_from_stdin(run, sbd_folder):
    arguments = ("--model", sbd_folder, "--json", *SHORT)
    typed = run("generate", "Fünf Äpfel", *arguments)
    piped = run("generate", "-", *arguments, stdin="Fünf Äpfel".encode())
    assert json.loads(typed.stdout)["text"] == json.loads(piped.stdout)["text"]


def test_raw_is_the_same_prompt_without_the_template(run, sbd_folder):
    problem = next(word_problems("test"))
    arguments = ("--model", sbd_folder, "--json", *SHORT)
    templated = run("generate", problem.question, *arguments)
    raw = run("generate", problem.prompt, "--raw", *arguments)
    assert json.loads(templated.stdout)["text"] == json.loads(raw.stdout)["text"]


def test_a_seed_decides_what_is_drawn(run, sbd_folder):
    def text(seed):
        arguments = ("--temperature", 1, "--seed", seed, "--json", *SHORT)
        return json.loads(run("generate", "Tom", "--model", sbd_folder, *arguments).stdout)["text"]

    assert text(1) == text(1) != text(2)


def test_a_block_larger_than_trained_is_decoded_with_a_warning(run, sbd_folder):
    outcome = run("generate", "Tom", "--model", sbd_folder, "--block-size", 32, "--json", *SHORT)
    assert outcome.code == 0
    assert outcome.message.startswith("setblock: warning: block_size 32 is larger than any")
    assert json.loads(outcome.stdout)["num_tokens"] > 0


def test_ntp_needs_no_sbd_training(run, ntp_folder):
    outcome = run("generate", "Tom", "--model", ntp_folder, "--method", "ntp", "--json", *SHORT)
    assert outcome.code == 0
    assert outcome.stderr == ""


def test_an_endless_gamma_reveals_whole_blocks(run, sbd_folder):
    arguments = ("--model", sbd_folder, "--gamma", math.inf, "--block-size", 5, "--json", *SHORT)
    result = json.loads(run("generate", "Tom", *arguments).stdout)
    # The prefill gives the first token; each block of 5 then takes one pass, and the answer may end early.
    assert result["num_block_forwards"] == 1
    assert result["num_commit_forwards"] == math.ceil(result["num_tokens"] / 5) - 1
