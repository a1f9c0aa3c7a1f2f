import json
from pathlib import Path

import pytest

from setblock.data.tasks import TASKS, Task, TextExample, Verdict

QUICK = ("--limit", 5, "--batch-size", 2, "--max-new-tokens", 16, "--json")


@pytest.mark.parametrize("method", ["sbd", "exact", "ntp"])
def test_json_keys_and_their_arithmetic(run, sbd_folder, method):
    outcome = run("evaluate", "--task", "word-problems", "--model", sbd_folder, "--method", method, *QUICK)
    result = json.loads(outcome.stdout)
    assert outcome.stderr == ""
    assert {
        "accuracy",
        "accuracy_interval",
        "num_examples",
        "num_forwards",
        "num_tokens",
        "nfe_speedup",
        "ntp_accuracy",
        "ntp_forwards",
        "mean_forwards",
        "tokens_per_forward",
        "prefill_forwards",
        "gamma",
        "sampler",
        "sampler_options",
        "settings",
        "block_size",
        "method",
        "split",
        "identical_to_ntp",
        "token_agreement",
        "seconds",
    } <= result.keys()
    assert (result["model"], result["batch_size"]) == (str(sbd_folder), 2)
    assert result["num_examples"] == result["prefill_forwards"] == 5
    assert result["mean_forwards"] == result["num_forwards"] / 5
    assert result["nfe_speedup"] == (result["ntp_forwards"] - 5) / (result["num_forwards"] - 5)
    assert result["block_size"] == (1 if method == "ntp" else 16)
    assert result["gamma"] == {"ntp": None, "sbd": 0.1, "exact": "inf"}[method]
    if method != "sbd":
        assert result["identical_to_ntp"] == result["token_agreement"] == 1
    if method == "ntp":
        assert result["nfe_speedup"] == 1


def test_splits_and_seeds_are_other_problems(run, sbd_folder):
    def tokens(*arguments):
        return json.loads(
            run("evaluate", "--model", sbd_folder, *arguments, *QUICK, "--method", "sbd", "--gamma", 9).stdout
        )["num_forwards"]

    assert len({tokens(), tokens("--split", "validation"), tokens("--seed", 1)}) > 1


def test_the_report_says_what_is_counted(run, sbd_folder):
    outcome = run("evaluate", "--model", sbd_folder, "--method", "sbd", "--limit", 1)
    how = "method sbd, entropy-prefix (gamma 0.1), block size 16"
    assert outcome.stdout.startswith(f"1 word-problems, test split, {how}\n")
    assert "95% interval" in outcome.stdout
    assert "prefill left out on both sides" in outcome.stdout


def test_the_report_says_what_is_not_as_usual(run, sbd_folder):
    how = ("--method", "exact", "--sampler", "fixed-count", "--sampler-option", "count=3", "--temperature", 0.5)
    outcome = run("evaluate", "--model", sbd_folder, *how, "--block-size", 4, *QUICK[:-1])
    expected = "method exact, fixed-count (count 3), block size 4, drafts adaptive, max_new_tokens 16, temperature 0.5"
    assert outcome.stdout.startswith(f"5 word-problems, test split, {expected}\n")
    assert "identical to ntp" in outcome.stdout
    result = json.loads(run("evaluate", "--model", sbd_folder, *how, "--block-size", 4, *QUICK).stdout)
    assert (result["sampler"], result["sampler_options"], result["gamma"]) == ("fixed-count", {"count": 3}, None)
    assert result["settings"] == {"max_new_tokens": 16, "temperature": 0.5}


def test_a_wrong_task_lists_the_near_ones(run):
    outcome = run("evaluate", "--task", "word-problem")
    assert outcome.code == 2
    assert outcome.message.startswith("setblock: error: there is no task 'word-problem', did you mean 'word-problems'?")
    assert "instructions" in run("evaluate", "--task", "?").message


def test_every_kind_of_task_runs(run, sbd_folder, monkeypatch):
    def texts(split, seed):
        return iter([TextExample("Hi there", " and so on"), TextExample("Good morning", " to you")])

    def judge(example, answer):
        return Verdict(False, {"fields": 0.25})

    monkeypatch.setitem(TASKS, "open", Task("open", "how a text goes on", texts, raw=True))
    monkeypatch.setitem(TASKS, "scored", Task("scored", "how a text goes on", texts, judge))
    for task in ("word-problems", "scored", "open"):
        arguments = ("--task", task, "--model", sbd_folder, "--limit", 2, "--max-new-tokens", 8)
        result = json.loads(run("evaluate", *arguments, "--json").stdout)
        assert (result["task"], result["num_examples"]) == (task, 2)
        assert (task == "open") == (result["accuracy"] is None)
        assert result["scores"] == ({"fields": 0.25} if task == "scored" else {})
    assert "tokens as in ntp" in run("evaluate", *arguments).stdout


@pytest.mark.parametrize("command", ["evaluate", "sweep", "calibrate"])
def test_a_task_that_runs_programs_asks_first(run, command):
    humaneval = Path(__file__).parents[2] / "tasks" / "humaneval"
    assert "allow it with --allow-code-execution" in run(command, "--task", humaneval, "--limit", "1").message


def records(folder, *lines):
    path = folder / "own.jsonl"
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    return path


def test_own_records_are_answered_and_compared_with_plain_decoding(run, sbd_folder, tmp_path):
    prompts = [{"prompt": f"Tom has {number} pens."} for number in range(130)]
    quick = ("--model", sbd_folder, "--max-new-tokens", 3)
    result = json.loads(run("evaluate", "--input", records(tmp_path, *prompts), *quick, "--json").stdout)
    assert (result["task"], result["num_examples"], result["accuracy"]) == ("own", 130, None)
    assert result["identical_to_ntp"] == 1
    pairs = [{**prompt, "completion": "no"} for prompt in prompts[:2]]
    outcome = run("evaluate", "--input", records(tmp_path, *pairs), *quick, "--judge", "contains")
    assert outcome.stdout.startswith("2 records of own.jsonl, judge contains, method exact, ")
    assert "accuracy            0.0%" in outcome.stdout
    assert ", 2 at once\n" in outcome.stdout
    scored = json.loads(run("evaluate", "--input", records(tmp_path, *pairs), *quick, "--json").stdout)
    loss, tokens = scored["token_loss"], scored["reference_tokens"]
    assert (
        f"reference loss      {loss:.3f} nats a token, over the {tokens} tokens of the reference answers\n"
        in outcome.stdout
    )
    assert f"reference tokens    {scored['mean_token_accuracy']:.1%} are the most likely" in outcome.stdout
    swept = run("sweep", "--input", records(tmp_path, *pairs), *quick, "--grid", "gamma=0.1", "--limit", 1, "--json")
    assert [row["num_examples"] for row in json.loads(swept.stdout)["rows"]] == [1] * 3


@pytest.mark.parametrize(
    ("arguments", "code", "said"),
    [
        (("--judge", "contains"), 2, "--judge needs --input: a task has its own way to ask and to judge"),
        (("--raw",), 2, "--raw needs --input: "),
        (("--input", "own.jsonl", "--task", "instructions"), 2, "--task and --input exclude each other"),
        (("--input", "own.jsonl", "--split", "test"), 2, "--split and --input exclude each other"),
        (("--input", "own.jsonl"), 1, "can't read own.jsonl: no such file"),
    ],
)
@pytest.mark.parametrize("command", ["evaluate", "sweep", "calibrate"])
def test_mistakes_with_own_records_are_reported_before_a_model_is_loaded(
    run, command, arguments, code, said, monkeypatch
):
    monkeypatch.setattr("setblock.model.loading.loading.load", lambda *_, **__: pytest.fail("it was loaded"))
    outcome = run(command, *arguments)
    assert outcome.code == code
    assert said in outcome.message
