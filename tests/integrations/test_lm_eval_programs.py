"""The code tasks of the suite: the harness's words, and programs that run in a sandbox alone."""

import json
from importlib.resources import files

import pytest
import yaml

pytest.importorskip("lm_eval")

from lm_eval import simple_evaluate
from lm_eval.api.model import LM
from lm_eval.tasks import TaskManager

from setblock.integrations.lm_eval.tasks import SUITE

MBPP = [
    {
        "task_id": number,
        "text": f"Write a function to add {number}.",
        "code": f"def add(a):\r\n  return a + {number}",
        "test_setup_code": "",
        "test_list": [f"assert add({a}) == {a + number}" for a in (1, 2, 3)],
    }
    for number in range(1, 13)
]
HUMANEVAL = [
    {
        "task_id": f"HumanEval/{number}",
        "prompt": f'def add(a):\n    """Add {number}."""\n',
        "entry_point": "add",
        "test": "import numpy as np\ndef check(candidate):\n"
        f"    assert np.allclose(candidate(np.ones(3)), {number + 1})\n",
    }
    for number in range(2)
]


class Written(LM):
    """Answers prompts with what a function says, as a model does that continues text."""

    def __init__(self, answer):
        super().__init__()
        self.answer, self.prompts = answer, []

    def generate_until(self, requests, disable_tqdm=False):
        self.prompts += [request.args[0] for request in requests]
        return [self.answer(request.args[0]) for request in requests]

    def loglikelihood(self, requests, disable_tqdm=False):
        raise NotImplementedError

    def loglikelihood_rolling(self, requests, disable_tqdm=False):
        raise NotImplementedError


class _Function(str):
    """The name of a function in a task's file."""


class _Loader(yaml.SafeLoader):
    """Keeps the names of functions."""


class _Dumper(yaml.SafeDumper):
    """Writes them back."""


_Loader.add_constructor("!function", lambda loader, node: _Function(node.value))
_Dumper.add_representer(_Function, lambda dumper, name: dumper.represent_scalar("!function", str(name)))


def local_task(folder, name, **splits):
    """A task of the suite, its judge and all, over data that lie here instead of on the hub."""
    files_of = {}
    for split, docs in splits.items():
        files_of[split] = str(folder / f"{split}.jsonl")
        (folder / f"{split}.jsonl").write_text("".join(json.dumps(doc) + "\n" for doc in docs))
    task = yaml.load((SUITE / f"{name}.yaml").read_text(), _Loader)
    task |= {"dataset_path": "json", "dataset_kwargs": {"data_files": files_of}}
    task.pop("dataset_name", None)
    (folder / f"{name}.yaml").write_text(yaml.dump(task, Dumper=_Dumper))
    (folder / "programs.py").write_text((SUITE / "programs.py").read_text())
    return task["task"]


def score(folder, name, task, answer):
    model = Written(answer)
    index = TaskManager(include_path=str(folder), include_defaults=False)
    results = simple_evaluate(model=model, tasks=[task], task_manager=index, bootstrap_iters=0)
    return results["results"][task]["pass@1,none"], model.prompts


@pytest.fixture
def mbpp(tmp_path):
    return tmp_path, "mbpp", local_task(tmp_path, "mbpp", test=MBPP[10:], prompt=MBPP[:10])


def test_mbpp_judges_by_running_the_tests(mbpp):
    def answer(prompt):
        number = prompt.split("Write a function to add ")[-1].split(".")[0]
        return f"def add(a):\n  return a + {number if number == '11' else 0}\n"

    accuracy, prompts = score(*mbpp, answer)
    assert accuracy == 0.5
    # Three solved problems, the second to the fourth, then the question: the harness's words.
    for prompt in prompts:
        told = [part.split(".")[0] for part in prompt.split("Write a function to add ")[1:]]
        assert told[:3] == ["2", "3", "4"]
        assert prompt.count("[DONE]") == 3
        assert prompt.endswith("[BEGIN]\n")


@pytest.mark.parametrize(
    "hostile", ["import os\nos.fork()", "open('/etc/passwd').read()", "import sys\nsys.exit(0)", "while True: pass"]
)
def test_hostile_programs_fail_and_the_evaluation_goes_on(mbpp, hostile, tmp_path):
    path = tmp_path / "programs.py"
    path.write_text(path.read_text().replace("cpu_seconds=30", "cpu_seconds=1"))
    accuracy, prompts = score(*mbpp, lambda prompt: hostile if "add 11" in prompt else "def add(a):\n  return a + 12")
    assert accuracy == 0.5
    assert len(prompts) == 2


def test_humaneval_goes_on_from_the_prompt(tmp_path):
    task = local_task(tmp_path, "humaneval_plus", test=HUMANEVAL)
    accuracy, prompts = score(tmp_path, "humaneval_plus", task, lambda prompt: "    return a + 1\n")
    assert accuracy == 0.5
    assert prompts == [doc["prompt"] for doc in HUMANEVAL]


@pytest.mark.parametrize(("ours", "theirs"), [("mbpp", "mbpp/mbpp"), ("humaneval_plus", "humaneval/humaneval")])
def test_the_words_are_the_harness_s(ours, theirs):
    own = yaml.load((SUITE / f"{ours}.yaml").read_text(), _Loader)
    stock = yaml.load((files("lm_eval") / "tasks" / f"{theirs}.yaml").read_text(), _Loader)
    assert own["doc_to_text"] == stock["doc_to_text"]
    assert own["generation_kwargs"]["until"] == stock["generation_kwargs"]["until"]
    assert own["num_fewshot"] == stock["num_fewshot"]
    assert "unsafe_code" not in own  # nothing to confirm: it can't do harm
