"""The harness's own evaluator drives the adapter; its own `hf` model is the oracle of log-likelihoods."""

import copy
import importlib
import json
import os
import subprocess
import sys
import tomllib
from dataclasses import replace
from pathlib import Path

import pytest
from lm_eval import simple_evaluate
from lm_eval.api.instance import Instance
from lm_eval.api.registry import get_model

from families import tiny_sbd
from harness_tasks import write_tasks
from setblock.decoding.samplers import EntropyBounded, Factor, FixedCount
from setblock.decoding.settings.table import DecodingSettings
from setblock.engine.generate import generate_batch
from setblock.errors import ParameterError, SetBlockError, SetBlockWarning
from setblock.integrations.lm_eval.__main__ import main as command
from setblock.integrations.lm_eval.arguments import request_settings, settings_from
from setblock.integrations.lm_eval.model import SetBlockLM, figures_of

pytestmark = [
    pytest.mark.filterwarnings("ignore::DeprecationWarning"),  # of the harness and what it imports
    pytest.mark.filterwarnings("ignore::FutureWarning"),
    pytest.mark.filterwarnings("ignore::ResourceWarning"),
]
ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def model(trained_tokenizer):
    return tiny_sbd("llama", copy.deepcopy(trained_tokenizer), mode="shifted")


def ask(prompt, repeats=1, task="t", doc=0, **generation):
    return [Instance("generate_until", {}, (prompt, generation), 0, (task, doc, repeats))] * repeats


def scored(context, continuation):
    return Instance("loglikelihood", {}, (context, continuation), 0, ("t", 0, 1))


def test_the_entry_point_names_the_model_that_is_registered():
    entry_points = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["entry-points"]["lm_eval.models"]
    module, _, name = entry_points["setblock"].partition(":")
    assert getattr(importlib.import_module(module), name) is SetBlockLM is get_model("setblock")


class TestLikelihoods:
    CONTEXTS = ("Question: Tom has 12 apples.", "Ana reads", "", "In 6 days ")
    CONTINUATIONS = (" How many apples does he have now?", " 15", "Then", "a")

    @pytest.fixture(scope="class")
    def both(self, model, tmp_path_factory):
        """The same checkpoint by us and by the harness's `hf`."""
        folder = tmp_path_factory.mktemp("checkpoint")
        model.save(folder)
        hf = get_model("hf")(pretrained=str(folder), device="cpu", batch_size=2, dtype="float32")
        return SetBlockLM(folder, device="cpu", batch_size=3), hf

    def test_of_continuations_are_those_of_hf(self, both):
        requested = [scored(context, continuation) for context in self.CONTEXTS for continuation in self.CONTINUATIONS]
        ours, theirs = ([*lm.loglikelihood(requested, disable_tqdm=True)] for lm in both)
        assert [logprob for logprob, _ in ours] == pytest.approx([logprob for logprob, _ in theirs], abs=1e-3)
        assert [is_greedy for _, is_greedy in ours] == [is_greedy for _, is_greedy in theirs]

    def test_of_texts_are_those_of_hf_even_longer_than_the_context(self, both):
        texts = ["Ana reads 15 pages.", " The bags hold 3 * 4 = 12 apples." * 12]
        assert len(both[0].tok_encode(texts[1])) > both[0].max_length
        requested = [Instance("loglikelihood_rolling", {}, (text,), 0, ("t", 0, 1)) for text in texts]
        ours, theirs = (lm.loglikelihood_rolling(requested, disable_tqdm=True) for lm in both)
        assert ours == pytest.approx(theirs, abs=1e-3)


class TestAnswers:
    PROMPTS = ("Question: Tom has 12 apples", "Ana reads 15 pages a day for 6 days, and then", "A school")

    @pytest.mark.parametrize(
        "settings",
        [
            DecodingSettings(method="ntp"),
            DecodingSettings(method="exact", drafts="fixed", block_size=8),
            DecodingSettings(method="sbd", sampler=EntropyBounded(0.5)),
            DecodingSettings(method="sbd", sampler=Factor(2.0)),
        ],
        ids=lambda settings: f"{settings.method}, {type(settings.sampler).__name__}",
    )
    def test_are_those_of_generate_at_any_batch_size(self, model, settings):
        requested = [
            each
            for number, prompt in enumerate(self.PROMPTS)
            for each in ask(prompt, doc=number, until=["9", "ap"], max_gen_toks=24)
        ]
        alone = generate_batch(
            model, self.PROMPTS, settings=replace(settings, stop=("9", "ap"), max_new_tokens=24), raw=True
        )
        for batch_size in (1, 2, 8):
            lm = SetBlockLM(model, settings=settings, batch_size=batch_size)
            assert lm.generate_until(requested, disable_tqdm=True) == [answer.text for answer in alone]
            figures = figures_of(lm.answers["t"])
            assert figures["num_tokens"] == sum(answer.num_tokens for answer in alone)
            assert figures["num_forwards"] == 3 + sum(answer.passes.decoding for answer in alone)
            assert figures["prefill_forwards"] == figures["num_answers"] == 3
            assert [answer.token_ids for answer in lm.answers["t"].generations] == [
                answer.token_ids for answer in alone
            ]

    def test_of_tasks_in_one_run_are_counted_apart(self, model):
        lm = SetBlockLM(model, settings=DecodingSettings(method="ntp"), batch_size=4)
        lm.generate_until(
            [
                *ask("Tom", task="a", max_gen_toks=3),
                *ask("Ana", task="b", max_gen_toks=9),
                *ask("A", task="a", max_gen_toks=5),
            ],
            disable_tqdm=True,
        )
        reported = {task: figures_of(lm.answers[task]) for task in "ab"}
        assert [reported[task]["num_answers"] for task in "ab"] == [2, 1]
        for figures in reported.values():
            assert figures["tokens_per_forward"] == 1
            assert figures["nfe_speedup_of_text"] in (1, None)
        assert lm.get_model_info()["setblock"]["tasks"]["b"]["num_tokens"] == reported["b"]["num_tokens"]

    def test_that_are_drawn_more_than_once_differ(self, model):
        lm = SetBlockLM(model, settings=DecodingSettings(method="sbd", seed=3), batch_size=2)
        texts = lm.generate_until(
            ask("Tom has", repeats=4, temperature=1.5, do_sample=True, max_gen_toks=12), disable_tqdm=True
        )
        assert len(set(texts)) > 1
        alone = DecodingSettings(method="sbd", seed=4, temperature=1.5, max_new_tokens=12)
        assert texts[1] == generate_batch(model, ["Tom has"], settings=alone, raw=True)[0].text

    def test_that_do_not_fit_get_what_room_there_is(self, model):
        lm, long = SetBlockLM(model, settings=DecodingSettings(method="ntp")), "Tom has 12 apples. " * 60
        with pytest.warns(SetBlockWarning, match="task t: .* 50 tokens"):
            lm.generate_until(ask(long, max_gen_toks=50), disable_tqdm=True)
        assert figures_of(lm.answers["t"])["num_tokens"] == 1

    def test_before_the_end_of_thinking_are_left_out(self, model):
        (whole,) = SetBlockLM(model).generate_until(ask("Tom", max_gen_toks=20), disable_tqdm=True)
        cut = SetBlockLM(model, think_end_token=whole[3]).generate_until(ask("Tom", max_gen_toks=20), disable_tqdm=True)
        assert cut == [whole.split(whole[3])[-1].lstrip()]

    def test_in_a_chat(self, model):
        lm = SetBlockLM(model)
        lm.tokenizer = tokenizer = copy.deepcopy(model.tokenizer)
        tokenizer.chat_template = None
        with pytest.raises(SetBlockError, match="a tokenizer with a chat template"):
            lm.chat_template(True)
        tokenizer.chat_template = (
            "{% for m in messages %}{% if m.role == 'system' %}{{ raise_exception('no') }}{% endif %}{{ m.content }};"
            "{% endfor %}{% if add_generation_prompt %}A:{% endif %}"
        )
        chat = [{"role": "system", "content": "s"}, {"role": "user", "content": "u"}]
        assert lm.apply_chat_template(chat) == "u;A:"
        assert lm.chat_template(True) == tokenizer.chat_template


class TestArguments:
    def test_of_a_model(self):
        assert settings_from({}) == DecodingSettings()
        assert settings_from({"gamma": 0.3}).sampler == EntropyBounded(0.3)
        assert settings_from({"method": "exact", "sampler": "fixed-count", "count": "3"}) == DecodingSettings(
            method="exact", sampler=FixedCount(3)
        )

    @pytest.mark.parametrize(
        ("arguments", "said"),
        [
            ({"gama": 1}, "model argument 'gama' is not known, did you mean 'gamma'.; there are method, .*block_size"),
            ({"temperature": 1}, "belongs to a request: give it with --gen_kwargs"),
            ({"sampler": "nonsense"}, "sampler must be one of"),
            ({"method": "fast"}, "method must be one of"),
            ({"gamma": -1}, "gamma"),
        ],
    )
    def test_of_a_model_that_are_refused(self, arguments, said):
        with pytest.raises(ParameterError, match=said):
            settings_from(arguments)

    def test_of_a_request(self):
        base = DecodingSettings(method="exact", block_size=4, stop=("x",), temperature=0.5)

        def settings(base=base, **generation):
            return request_settings(base, generation, default_max_gen_toks=256)

        assert settings() == replace(base, max_new_tokens=256, temperature=0.0)
        assert settings(until="y", max_gen_toks=7).stop == ("x", "y")
        assert settings(until=["x", ""]).stop == ("x",)
        assert settings(do_sample=True).temperature == 1
        assert settings(temperature=0.3, do_sample=False).temperature == 0
        assert settings(temperature=0.3, top_p=0.9, num_beams=1).top_p == 0.9
        assert settings(gamma=0.2).sampler == EntropyBounded(0.2)
        assert settings(DecodingSettings(method="ntp"), gamma=0.2).sampler is None

    @pytest.mark.parametrize(
        ("generation", "said"),
        [
            ({"num_beams": 4}, "generation argument num_beams=4 is not known; there are "),
            ({"top_p": 3}, "top_p must be above 0"),
            ({"until": ["a" * n for n in range(1, 30)]}, "number of stop strings must be at most"),
        ],
    )
    def test_of_a_request_that_are_refused(self, generation, said):
        with pytest.raises(ParameterError, match=said):
            request_settings(DecodingSettings(), generation, default_max_gen_toks=256)

    def test_a_task_s_gamma_needs_a_sampler_that_has_one(self):
        with pytest.raises(
            ParameterError, match=r"generation argument gamma=0\.1: sampler factor has no 'gamma'; it has factor"
        ):
            request_settings(DecodingSettings(sampler=Factor()), {"gamma": 0.1}, default_max_gen_toks=256)

    @pytest.mark.parametrize(
        ("given", "said"), [({"batch_size": "auto"}, "batch_size"), ({"dtype": "float12"}, "dtype")]
    )
    def test_of_loading_that_are_refused(self, model, given, said):
        with pytest.raises(ParameterError, match=f"{said} must be"):
            SetBlockLM(**({} if "dtype" in given else {"pretrained": model}), **given)


def test_the_harness_runs_every_kind_of_task(trained_tokenizer, tmp_path):
    from lm_eval.tasks import TaskManager

    index = TaskManager(include_path=str(write_tasks(tmp_path / "tasks", problems=3)), include_defaults=False)
    model = tiny_sbd("llama", copy.deepcopy(trained_tokenizer), max_position_embeddings=512)
    lm = SetBlockLM(model, settings=DecodingSettings(method="exact"), batch_size=2, max_gen_toks=8)
    results = simple_evaluate(
        model=lm,
        tasks=["word_problems_gsm8k", "word_problems_choice", "word_problems_text"],
        task_manager=index,
        bootstrap_iters=0,
    )
    assert results["results"]["word_problems_gsm8k"]["exact_match,strict-match"] == 0
    assert 0 <= results["results"]["word_problems_choice"]["acc,none"] <= 1
    assert results["results"]["word_problems_text"]["bits_per_byte,none"] > 0
    assert results["config"]["setblock"]["tasks"]["word_problems_gsm8k"]["num_answers"] == 3
    assert results["config"]["setblock"]["settings"]["method"] == "exact"


@pytest.mark.nightly  # the harness takes long to start
class TestCommand:
    """The harness's own command, as a process of its own."""

    def run(self, *arguments):
        return subprocess.run(
            [sys.executable, "-m", "setblock.integrations.lm_eval", "run", *map(str, arguments)],
            capture_output=True,
            text=True,
            env={**os.environ, "OMP_NUM_THREADS": "1", "CUDA_VISIBLE_DEVICES": ""},
            timeout=300,
            check=False,
        )

    def test_answers_a_task_file_on_whatever_device_there_is(self, model, tmp_path):
        model.save(tmp_path / "model")
        task = write_tasks(tmp_path / "tasks", problems=2) / "0.yaml"
        arguments = f"pretrained={tmp_path / 'model'},method=exact,max_gen_toks=8"
        completed = self.run(
            *("--model", "setblock", "--model_args", arguments, "--tasks", task, "--output_path", tmp_path / "results")
        )
        assert completed.returncode == 0, completed.stderr
        assert "|word_problems_gsm8k|" in completed.stdout
        (written,) = (tmp_path / "results").rglob("results_*.json")
        assert "word_problems_gsm8k" in json.loads(written.read_text())["results"]


@pytest.mark.nightly  # the harness takes long to start
def test_a_mistake_in_the_command_is_one_line(tmp_path, monkeypatch, capsys):
    task = write_tasks(tmp_path, problems=1) / "0.yaml"
    words = ["run", "--model", "setblock", "--model_args", "gamma=-1", "--tasks", str(task)]
    monkeypatch.setattr("sys.argv", ["lm_eval", *words])
    with pytest.raises(SystemExit) as ended:
        command()
    assert ended.value.code == 2
    stderr = capsys.readouterr().err
    assert stderr.splitlines()[-1].startswith("setblock: error: gamma")
    assert "Traceback" not in stderr


def test_prepacked_weights_are_all_counted():
    plain, prepacked = (
        SetBlockLM(prepack=prepack).get_model_info()["model_num_parameters"] for prepack in (False, True)
    )
    assert plain == prepacked > 4_000_000
