import json
import math

import pytest

from setblock.data.tasks.word_problems import word_problems

SHORT = ("--max-new-tokens", 20)


@pytest.mark.parametrize("method", ["sbd", "exact", "ntp"])
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
        "num_drafted_tokens",
        "num_accepted_tokens",
        "tokens_per_forward",
        "seconds",
        "method",
    }
    assert result["method"] == method
    kinds = ("prefill", "block", "commit")
    assert result["num_forwards"] == sum(result[f"num_{kind}_forwards"] for kind in kinds)
    assert result["tokens_per_forward"] == result["num_tokens"] / result["num_forwards"]


def test_the_stream_is_the_text_and_its_figures_are_one_line(run, sbd_folder):
    arguments = ("generate", "Tom has 5 pens.", "--model", sbd_folder, "--method", "sbd", "--gamma", "inf", *SHORT)
    outcome, result = run(*arguments), json.loads(run(*arguments, "--json").stdout)
    assert outcome.stdout == result["text"] + "\n"
    assert outcome.message.startswith(f"{result['num_tokens']} tokens, {result['num_forwards']} forwards (1 prefill, ")


def test_the_figures_say_how_many_drafted_tokens_were_kept(run, sbd_folder):
    arguments = ("generate", "Tom has 5 pens.", "--model", sbd_folder, "--method", "exact", "--drafts", "fixed", *SHORT)
    outcome, result = run(*arguments), json.loads(run(*arguments, "--json").stdout)
    drafted, kept = result["num_drafted_tokens"], result["num_accepted_tokens"]
    assert drafted > 1
    assert f", {kept} of {drafted} drafted tokens kept, " in outcome.message


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
    outcome = run("generate", "Tom", "--model", sbd_folder, "--method", "sbd", "--block-size", 32, "--json", *SHORT)
    assert outcome.code == 0
    assert outcome.message.startswith("setblock: warning: block_size 32 is larger than any")
    assert json.loads(outcome.stdout)["num_tokens"] > 0


def test_ntp_needs_no_sbd_training(run, ntp_folder):
    outcome = run("generate", "Tom", "--model", ntp_folder, "--method", "ntp", "--json", *SHORT)
    assert outcome.code == 0
    assert outcome.stderr == ""


def test_an_endless_gamma_reveals_whole_blocks(run, sbd_folder):
    arguments = ("--model", sbd_folder, "--method", "sbd", "--gamma", math.inf, "--block-size", 5, "--json", *SHORT)
    result = json.loads(run("generate", "Tom", *arguments).stdout)
    # The prefill gives the first token; each block of 5 then takes one pass, and the answer may end early.
    assert result["num_block_forwards"] == 1
    assert result["num_commit_forwards"] == math.ceil(result["num_tokens"] / 5) - 1


@pytest.fixture
def answer(run, sbd_folder):
    """The JSON object that `generate` prints for a prompt and options."""

    def answer(*arguments):
        outcome = run("generate", "Tom", "--model", sbd_folder, "--json", *SHORT, *arguments)
        assert (outcome.code, outcome.stderr) == (0, "")
        return json.loads(outcome.stdout, parse_constant=pytest.fail)

    return answer


def tokens_of(result):
    return [each["token"] for each in result["logprobs"]]


def test_n_answers_are_those_of_the_seeds_alone(run, sbd_folder, answer):
    drawn = ("--temperature", 2, "--seed", 7)
    result = answer(*drawn, "--n", 3)
    assert result.keys() == {"answers"}
    texts = [each["text"] for each in result["answers"]]
    assert texts == [answer("--temperature", 2, "--seed", seed)["text"] for seed in (7, 8, 9)]
    assert len(set(texts)) == 3

    outcome = run("generate", "Tom", "--model", sbd_folder, *SHORT, *drawn, "--n", 3)
    printed = "".join(f"-- answer {number} of 3\n{text}\n" for number, text in enumerate(texts, start=1))
    assert outcome.stdout == printed
    figures = outcome.stderr.splitlines()
    assert [line.split(",")[0] for line in figures] == [f"{each['num_tokens']} tokens" for each in result["answers"]]


@pytest.mark.parametrize("method", ["sbd", "ntp"])
def test_a_stop_text_is_cut_off_and_never_shown(run, sbd_folder, answer, method):
    whole = answer("--method", method)
    stop = whole["text"][3:6]
    before = whole["text"][: whole["text"].index(stop)]
    arguments = ("--method", method, "--stop", "no such text", "--stop", stop)
    result = answer(*arguments)
    assert (result["text"], result["finish_reason"]) == (before, "stop")
    assert result["num_tokens"] < whole["num_tokens"]
    outcome = run("generate", "Tom", "--model", sbd_folder, *SHORT, *arguments)
    assert outcome.stdout == before + "\n"


def test_tokens_can_be_banned_biased_and_made_to_stop(answer):
    plain = tokens_of(answer("--logprobs", 0))
    first, other = plain[0], next(token for token in plain if token != plain[0])
    assert not {first, other} & set(tokens_of(answer("--logprobs", 0, "--ban", first, "--ban", other)))
    biased = answer("--logprobs", 0, "--logit-bias", f"{other}=500", "--logit-bias", f"{first}=-500")
    assert set(tokens_of(biased)) == {other}
    stopped = answer("--logprobs", 0, "--stop-token-id", other)
    assert stopped["finish_reason"] == "stop"
    assert tokens_of(stopped) == plain[: plain.index(other) + 1]
    assert answer("--stop-token-id", first, "--min-new-tokens", 5)["num_tokens"] >= 5


def test_logprobs_are_of_the_tokens_and_their_most_likely_alternatives(answer):
    result = answer("--logprobs", 3, "--method", "ntp")
    assert len(result["logprobs"]) == result["num_tokens"]
    for each in result["logprobs"]:
        likely = each["alternatives"]
        assert [set(one) for one in likely] == [{"token", "text", "logprob"}] * 3
        # Greedy: the token itself is the most likely.
        assert likely[0] == {name: each[name] for name in ("token", "text", "logprob")}
        assert 0 > likely[0]["logprob"] >= likely[1]["logprob"] >= likely[2]["logprob"]
    several = answer("--logprobs", 0, "--n", 2, "--temperature", 1)["answers"]
    assert all(len(each["logprobs"]) == each["num_tokens"] for each in several)
    assert all(one["alternatives"] == [] for each in several for one in each["logprobs"])


def test_methods_exact_and_ntp_write_the_same(answer):
    exact = answer("--method", "exact", "--gamma", "inf")
    assert exact["text"] == answer("--method", "ntp")["text"]


def test_sampler_options_reach_the_sampler(answer):
    def blocks(count):
        sampler = ("--method", "sbd", "--sampler", "fixed-count", "--sampler-option", f"count={count}")
        return answer(*sampler, "--block-size", 6, "--ban", 0, "--ban", 1)["num_forwards"]

    assert blocks(1) > blocks(2) > blocks(6)


@pytest.mark.parametrize(
    "cut", [("--top-k", 1), ("--top-p", 1e-9), ("--min-p", 1)], ids=lambda cut: cut[0].removeprefix("--")
)
def test_the_narrowest_cuts_leave_the_greedy_text(answer, cut):
    assert answer("--temperature", 5, *cut)["text"] == answer()["text"] != answer("--temperature", 5)["text"]


def test_a_repetition_penalty_changes_the_text(answer):
    assert answer("--repetition-penalty", 50)["text"] != answer()["text"]


def test_drafts_are_copied_from_a_file_of_answers(run, ntp_folder, tmp_path):
    arguments = ("generate", "Tom has 5 pens.", "--model", ntp_folder, "--block-size", 8, "--json", *SHORT)
    alone = json.loads(run(*arguments).stdout)
    answers = tmp_path / "answers.jsonl"
    answers.write_text(json.dumps({"text": alone["text"]}) + "\n")
    ours = json.loads(run(*arguments, "--draft-text", answers).stdout)
    assert ours["text"] == alone["text"]
    assert ours["num_forwards"] < alone["num_forwards"]
    outcome = run(*arguments, "--draft-text", tmp_path / "missing.jsonl")
    assert outcome.code == 1
    assert outcome.message.endswith("missing.jsonl: No such file or directory")
    assert "\n" not in outcome.message
