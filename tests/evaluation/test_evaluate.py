import copy
from dataclasses import dataclass, replace
from itertools import cycle, islice

import pytest

from families import tiny_sbd
from setblock.data.tasks import TASKS, Example, Task, Verdict
from setblock.data.tasks.word_problems import answer_in, word_problems
from setblock.decoding.answer.prompt import encode_prompt
from setblock.decoding.samplers import EntropyBounded
from setblock.decoding.settings.table import DecodingSettings
from setblock.engine.generate import generate
from setblock.errors import SetBlockError
from setblock.evaluation.result import nfe_speedup
from setblock.evaluation.run import compare, evaluate

SETTINGS = DecodingSettings(method="sbd", max_new_tokens=24)


@pytest.fixture(scope="module")
def model(trained_tokenizer):
    return tiny_sbd("llama", copy.deepcopy(trained_tokenizer), mode="shifted", max_position_embeddings=512)


@dataclass(frozen=True)
class Greeting(Example):
    right: bool = False


def greetings(split, seed):
    texts = cycle(("Hi", "How do you do?", "Good morning, Tom.", "Hello there", "Bye", "See you"))
    return (Greeting(text, right=i % 3 == 0) for i, text in enumerate(texts))


def judge(example, answer):
    assert isinstance(answer, str)
    return Verdict(example.right, {"politeness": 0.75 if example.right else 0.0})


GREETINGS = Task("greetings", "a greeting", greetings, judge)


def test_figures_are_sums_over_the_examples(model):
    settings = replace(SETTINGS, sampler=EntropyBounded(1.0))
    found = evaluate(model, GREETINGS, settings=settings, limit=6, batch_size=4)
    alone = [compare(model, example.question, settings=settings) for example in islice(GREETINGS.examples(), 6)]
    assert (found.run["task"]["name"], found.point.method) == ("greetings", "sbd")
    assert (found.point.block_size, found.num_examples) == (16, 6)
    assert found.accuracy == found.ntp.accuracy == 2 / 6
    assert found.scores == {"politeness": 0.75 * 2 / 6}
    for result, answers in ((found, [c.blocks for c in alone]), (found.ntp, [c.ntp for c in alone])):
        assert sum(result.outcomes.tokens) == sum(answer.num_tokens for answer in answers)
        assert result.outcomes.num_forwards == sum(answer.num_forwards for answer in answers)
        assert result.outcomes.prefill == (1,) * 6
    assert found.nfe_speedup == sum(c.ntp.passes.decoding for c in alone) / sum(c.blocks.passes.decoding for c in alone)
    assert found.identical_to_ntp == sum(c.identical for c in alone) / 6
    assert found.outcomes.tokens_per_forward == sum(found.outcomes.tokens) / found.outcomes.num_forwards
    low, high = found.accuracy_interval
    assert low < found.accuracy < high


def test_batches_change_no_count(model):
    def counts(batch_size):
        done = []
        found = evaluate(
            model,
            GREETINGS,
            settings=SETTINGS,
            limit=5,
            batch_size=batch_size,
            on_progress=lambda point, count: done.append((point.method, count)),
        )
        assert done[-1] == ("ntp", 5)
        return found.outcomes, found.ntp.outcomes

    assert counts(1) == counts(3) == counts(8)


def test_ntp_runs_once_and_is_its_own_measure(model):
    calls = []
    settings = DecodingSettings(method="ntp", max_new_tokens=8)
    found = evaluate(
        model,
        GREETINGS,
        settings=settings,
        limit=4,
        batch_size=2,
        on_progress=lambda point, count: calls.append((point.method, count)),
    )
    assert calls == [("ntp", 2), ("ntp", 4)]
    assert found.ntp is None
    assert found.plain is found
    assert found.point.block_size == found.nfe_speedup == found.identical_to_ntp == found.token_agreement == 1


def test_progress_has_both_methods(model):
    calls = []
    evaluate(
        model,
        GREETINGS,
        settings=SETTINGS,
        limit=3,
        batch_size=2,
        on_progress=lambda point, count: calls.append((point.method, count)),
    )
    assert calls == [("sbd", 2), ("sbd", 3), ("ntp", 2), ("ntp", 3)]


@pytest.mark.parametrize("argument", ["limit", "batch_size"])
def test_ranges(model, argument):
    with pytest.raises(SetBlockError, match=f"{argument} must be at least 1, not 0"):
        evaluate(model, GREETINGS, **{argument: 0})


def test_comparison_is_two_plain_generations(model):
    sampler = EntropyBounded(0.5)
    found = compare(model, "Tom has 5 pens.", settings=replace(SETTINGS, sampler=sampler))
    for side in (found.ntp, found.blocks):
        settings = DecodingSettings(method=side.method, max_new_tokens=24, sampler=sampler)
        assert side.token_ids == generate(model, "Tom has 5 pens.", settings=settings).token_ids
    assert found.wall_clock_speedup > 0


def test_speedup_of_nothing_is_none():
    assert nfe_speedup(ntp_passes=0, passes=0) is None
    assert nfe_speedup(ntp_passes=12, passes=4) == 3


def test_word_problems_of_a_split(model):
    task = TASKS["word-problems"]
    examples = list(islice(task.examples("validation", seed=3), 8))
    problems = list(islice(word_problems("validation", 3), 8))
    assert [example.question for example in examples] == [problem.question for problem in problems]
    for example, problem in zip(examples, problems, strict=True):
        assert task.judge(example, problem.completion).right
        assert not task.judge(example, f" So it is.\n#### {problem.number + 1}").right
        assert not task.judge(example, "I don't know").right
        assert answer_in(problem.completion) == problem.number
        # What a chat model of the bundled tokenizer sees is the very prompt that the documents are made of.
        assert encode_prompt(model.tokenizer, example.question) == model.tokenizer(example.prompt).input_ids


def test_agreement_is_an_average_over_answers(model):
    """One definition, in `evaluate`, in sweeps and in tolerances."""
    settings = replace(SETTINGS, sampler=EntropyBounded(5.0))
    found = evaluate(model, GREETINGS, settings=settings, limit=6, batch_size=4)
    alone = [compare(model, example.question, settings=settings) for example in islice(GREETINGS.examples(), 6)]
    shares = []
    for each in alone:
        places = max(each.ntp.num_tokens, each.blocks.num_tokens)
        agreeing = sum(
            place < each.ntp.num_tokens and token == each.ntp.token_ids[place]
            for place, token in enumerate(each.blocks.token_ids)
        )
        shares.append(agreeing / places)
    assert 0 < sum(shares) < 6
    assert found.token_agreement == pytest.approx(sum(shares) / 6)


CUT_TEXTS = [Example(text, " and so on") for text in ("Hi there", "Good morning")]
CUT = Task("cut-texts", "how a text goes on", lambda split, seed: iter(CUT_TEXTS))


def test_a_task_without_right_answers_has_no_accuracy(model):
    found = evaluate(model, CUT, settings=SETTINGS, limit=2)
    assert found.accuracy is found.accuracy_interval is found.ntp.accuracy is None
    assert 0 <= found.token_agreement <= 1


def test_a_task_without_examples_is_an_error(model):
    nothing = Task("nothing", "nothing", lambda split, seed: iter(()))
    with pytest.raises(SetBlockError, match="task nothing has no examples here"):
        evaluate(model, nothing)
