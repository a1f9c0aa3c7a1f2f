"""`setblock evaluate --tasks`: the harness behind our command line."""

import json
import sys

import pytest

from harness_tasks import write_tasks

pytestmark = [
    pytest.mark.filterwarnings("ignore::DeprecationWarning"),  # of the harness and what it imports
    pytest.mark.filterwarnings("ignore::FutureWarning"),
    pytest.mark.filterwarnings("ignore::ResourceWarning"),
]


@pytest.fixture(scope="module")
def tasks(tmp_path_factory):
    return write_tasks(tmp_path_factory.mktemp("harness") / "tasks", problems=4)


@pytest.fixture(autouse=True)
def _only_our_tasks(monkeypatch):
    """Without the harness's thousands, whose files take seconds to read."""
    from lm_eval.tasks import TaskManager

    monkeypatch.setattr(
        "setblock.integrations.lm_eval.tasks.TaskManager",
        lambda **kwargs: TaskManager(**kwargs, include_defaults=False),
    )


def evaluate(run, model, tasks, *arguments, names="word_problems_gsm8k"):
    options = ("--batch-size", 3, "--max-new-tokens", 16)
    return run("evaluate", "--tasks", names, "--include-path", tasks, "--model", model, *options, *arguments)


@pytest.mark.parametrize("method", ["sbd", "exact", "ntp"])
def test_figures_beside_the_accuracy_in_the_harness_s_file(run, sbd_folder, tasks, tmp_path, method):
    outcome = evaluate(run, sbd_folder, tasks, "--method", method, "--output-path", tmp_path / "out", "--json")
    told = json.loads(outcome.stdout)
    (path,) = (tmp_path / "out").rglob("results_*.json")
    assert told["result_file"] == str(path)
    written = json.loads(path.read_text())
    result = written["results"]["word_problems_gsm8k"]
    assert result == told["tasks"]["word_problems_gsm8k"]
    assert result["exact_match,strict-match"] == result["ntp_exact_match,strict-match"] == 0
    assert result["num_answers,setblock"] == result["prefill_forwards,setblock"] == 4
    assert result["tokens_per_forward,setblock"] == result["num_tokens,setblock"] / result["num_forwards,setblock"]
    ntp_decoding, decoding = (result[f"{name}_forwards,setblock"] - 4 for name in ("ntp", "num"))
    assert result["nfe_speedup,setblock"] == ntp_decoding / decoding
    assert written["config"]["setblock"]["settings"]["method"] == method
    if method != "sbd":
        assert result["identical_to_ntp,setblock"] == 1


def test_agrees_with_our_own_task(run, sbd_folder, tasks):
    harness = json.loads(evaluate(run, sbd_folder, tasks, "--method", "sbd", "--gamma", 0.5, "--json").stdout)["tasks"][
        "word_problems_gsm8k"
    ]
    own = (
        "--batch-size",
        3,
        "--max-new-tokens",
        16,
        "--limit",
        4,
        "--method",
        "sbd",
        "--gamma",
        0.5,
        "--stop",
        "Question:",
        "--json",
    )
    ours = json.loads(run("evaluate", "--model", sbd_folder, *own).stdout)
    for name in ("num_forwards", "num_tokens", "nfe_speedup", "ntp_forwards", "ntp_tokens", "identical_to_ntp"):
        assert harness[f"{name},setblock"] == ours[name]


def test_what_was_typed_goes_before_the_task_s_own(run, sbd_folder, tmp_path):
    tasks = write_tasks(tmp_path / "with-gamma", problems=2, gamma=9.0)

    def forwards(*arguments):
        outcome = evaluate(run, sbd_folder, tasks, "--method", "sbd", *arguments, "--json")
        return json.loads(outcome.stdout)["tasks"]["word_problems_gsm8k"]["num_forwards,setblock"]

    assert forwards() == forwards("--gamma", 9) < forwards("--gamma", 0)


def test_the_report(run, sbd_folder, tasks, tmp_path):
    outcome = evaluate(
        run, sbd_folder, tasks, "--method", "sbd", "--limit", 2, "--output-path", tmp_path, "--log-samples",
        names="word_problems_gsm8k,word_problems_choice",
    )  # fmt: skip
    assert "word_problems_gsm8k, 2 examples, method sbd, entropy-bounded (gamma 0.1, proxy entropy)" in outcome.stdout
    assert "exact_match, strict-match  0.0000" in outcome.stdout
    assert "(ntp: 0.0000)" in outcome.stdout
    assert "prefill left out on both sides" in outcome.stdout
    assert "word_problems_choice, 2 examples" in outcome.stdout
    assert "\nacc  " in outcome.stdout
    assert outcome.stdout.splitlines()[-1].startswith("written to ")
    assert len(list(tmp_path.rglob("samples_*.jsonl"))) == 2


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("--task", "word-problem"), "there is no task 'word-problem'; near it: word-problems"),
        (("--tasks", "word_problem_gsm8k"), "there is no task 'word_problem_gsm8k'; near it: word_problems_gsm8k"),
        (("--tasks", "setblock_papers"), "there is no task 'setblock_papers'; near it: setblock_paper"),
        (("--tasks", ","), "--tasks must name a task"),
        (("--tasks", "word_problems_unsafe"), "task word_problems_unsafe runs code that the model wrote"),
        (("--tasks", "word_problems_*"), "task word_problems_unsafe runs code that the model wrote"),
        (("--tasks", "word_problems_gsm8k", "--limit", 0), "limit must be at least 1, not 0"),
        (("--tasks", "word_problems_gsm8k", "--num-fewshot", -1), "num_fewshot must be at least 0, not -1"),
        (("--tasks", "word_problems_gsm8k", "--log-samples"), "--log-samples needs --output-path"),
        (("--tasks", "word_problems_gsm8k", "--include-path", "/nowhere"), "--include-path must be a folder"),
        (("--num-fewshot", 3), "--num-fewshot needs --tasks"),
        (("--confirm-run-unsafe-code",), "--confirm-run-unsafe-code needs --tasks"),
    ],
)
def test_mistakes_are_one_line_before_a_model_is_loaded(run, tasks, arguments, said, monkeypatch):
    monkeypatch.setattr("setblock.cli.harness.load_model", None)
    monkeypatch.setattr("setblock.cli.evaluate.load_language_model", None)
    include = () if "--tasks" not in arguments or "--include-path" in arguments else ("--include-path", tasks)
    outcome = run("evaluate", *arguments, *include)
    assert outcome.code == 2
    assert said in outcome.message


def test_confirmed_code_tasks_run(run, sbd_folder, tasks):
    outcome = evaluate(run, sbd_folder, tasks, "--confirm-run-unsafe-code", "--json", names="word_problems_unsafe")
    assert json.loads(outcome.stdout)["tasks"]["word_problems_unsafe"]["num_answers,setblock"] == 4


def test_data_that_can_t_be_read_is_one_line(run, sbd_folder, tmp_path):
    tasks = write_tasks(tmp_path / "tasks", problems=1)
    (tasks / "problems.jsonl").unlink()
    outcome = evaluate(run, sbd_folder, tasks)
    assert outcome.code == 1
    assert "task word_problems_gsm8k can't be loaded: FileNotFoundError" in outcome.message


def test_without_the_harness_one_line_says_what_to_install(run, sbd_folder, monkeypatch):
    monkeypatch.setitem(sys.modules, "lm_eval", None)
    outcome = run("evaluate", "--tasks", "gsm8k")
    assert outcome.code == 1
    assert outcome.message == "setblock: error: --tasks needs lm-evaluation-harness: pip install 'setblock[eval]'"
    own = run("evaluate", "--model", sbd_folder, "--limit", 1, "--max-new-tokens", 4, "--json")
    assert json.loads(own.stdout)["num_examples"] == 1


def test_the_paper_s_group_names_tasks_that_the_harness_or_we_have():
    from importlib.resources import files

    import yaml

    from setblock.integrations.lm_eval.tasks import SUITE

    harness = files("lm_eval") / "tasks"
    names = {"setblock_math500": SUITE / "math500.yaml"}
    names |= {"aime25": harness / "aime" / "aime25.yaml", "gsm8k": harness / "gsm8k" / "gsm8k.yaml"}
    names |= {"setblock_humaneval_plus": SUITE / "humaneval_plus.yaml", "setblock_mbpp": SUITE / "mbpp.yaml"}
    gammas = {"": [None] * 5, "_low": [0.1, 0.1, 0.35, 0.35, 0.35], "_high": [0.35, 0.35, 0.6, 0.6, 0.6]}
    for suffix, expected in gammas.items():
        group = yaml.safe_load((SUITE / f"paper{suffix}.yaml").read_text())
        assert group["group"] == f"setblock_paper{suffix}"
        assert [task["task"] for task in group["task"]] == [*names]
        assert [task["generation_kwargs"].get("gamma") for task in group["task"]] == expected
        for task in group["task"]:
            text = names[task["task"]].read_text()
            assert f"task: {task['task']}\n" in text
            for stop in task["generation_kwargs"]["until"]:
                assert repr(stop)[1:-1] in text  # the task's own, since an override replaces them all
