"""Sweeps: what is counted, what is kept, and what an interruption leaves."""

import copy
import json
from dataclasses import dataclass, replace
from itertools import cycle, islice
from types import SimpleNamespace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from evaluation.sweeps import point, row, sweep_of
from families import tiny_sbd
from setblock.data.tasks import Example, Task, Verdict
from setblock.decoding.settings.resolve import NTP, at_point
from setblock.decoding.settings.table import DecodingSettings
from setblock.engine.generate import generate
from setblock.errors import ParameterError, SetBlockError
from setblock.evaluation.result import differing, pareto_front
from setblock.evaluation.run import evaluate, sweep
from setblock.evaluation.sweeps.result_file import open_results, read_results

SHARED = DecodingSettings(method="sbd", max_new_tokens=9)
POINTS = [point(0.1), point(3.0, block_size=4), point(1.0, method="exact")]


@pytest.fixture(scope="module")
def model(trained_tokenizer):
    return tiny_sbd("llama", copy.deepcopy(trained_tokenizer), mode="shifted", max_position_embeddings=512)


@dataclass(frozen=True)
class Greeting(Example):
    right: bool = False


def greetings(first="Hi"):
    def generate(split, seed):
        texts = cycle((first, "How do you do?", "Good morning, Tom.", "Hello there", "Bye"))
        return (Greeting(text, right=i % 3 == 0) for i, text in enumerate(texts))

    return Task("greetings", "a greeting", generate, lambda example, answer: Verdict(example.right))


def run(model, path=None, *, points=POINTS, task=None, limit=3, shared=SHARED, **options):
    task = task or greetings()
    return sweep(model, task, points, path=path, shared=shared, limit=limit, batch_size=2, **options)


@pytest.fixture(scope="module")
def finished(model, tmp_path_factory):
    """A whole file, and what was returned when it was made."""
    path = tmp_path_factory.mktemp("sweeps") / "whole.jsonl"
    return path, run(model, path)


def test_rows_are_what_each_request_alone_gives(model, finished):
    found = finished[1]
    assert [each.point for each in found] == [NTP, *POINTS]
    examples = list(islice(greetings().examples(), 3))
    ntp = [generate(model, each.question, settings=replace(SHARED, method="ntp")) for each in examples]
    for each in found:
        alone = [generate(model, example.question, settings=at_point(each.point, SHARED)) for example in examples]
        assert each.outcomes.correct == (1, 0, 0)
        assert each.outcomes.tokens == tuple(a.num_tokens for a in alone)
        assert each.outcomes.decoding == tuple(a.passes.decoding for a in alone)
        assert each.outcomes.prefill == (1,) * 3
        assert each.outcomes.differing == tuple(
            differing(a.token_ids, b.token_ids) for a, b in zip(alone, ntp, strict=True)
        )
        assert each.nfe_speedup == sum(b.passes.decoding for b in ntp) / sum(a.passes.decoding for a in alone)
    assert set(found[3].outcomes.differing) == {0}  # exact mode
    assert found[2].outcomes.differing != found[0].outcomes.differing  # of random weights, with gamma 3


def test_a_file_gives_back_the_sweep(finished):
    path, found = finished
    assert read_results(path) == found


def test_rows_have_the_requested_settings(finished):
    for line in finished[0].read_text().splitlines():
        recorded = json.loads(line)
        assert recorded["num_examples"] == 3
        assert recorded["accuracy"] == 1 / 3
        low, high = recorded["accuracy_interval"]
        assert low < 1 / 3 < high
        assert recorded["passes"].keys() == {"prefill", "block", "commit"}
        assert recorded["run"]["model"]["fingerprint"]
        assert {"date", "hardware", "versions", "nfe_speedup", "num_tokens", "task", "split"} <= recorded.keys()
        assert ("token_ids" in recorded) == (recorded["method"] == "ntp")


def without_times(path):
    """The rows, without what no two runs have in common."""
    return [{**json.loads(line), "seconds": 0, "ntp_seconds": 0, "date": ""} for line in path.read_text().splitlines()]


@pytest.mark.parametrize(
    ("rows", "cut"),
    [
        (0, 0),
        (0, 30),
        (1, 0),
        (2, -1),
        (2, 200),
        (4, 0),
    ],  # whole rows, and bytes of the next one or short of the last one
)
def test_an_interrupted_sweep_goes_on(model, finished, tmp_path, rows, cut):
    content = finished[0].read_bytes()
    end = sum(map(len, content.splitlines(keepends=True)[:rows])) + cut
    path = tmp_path / "cut.jsonl"
    path.write_bytes(content[:end])
    decoded = []
    run(model, path, on_progress=lambda at, done: decoded.append(at))
    assert list(dict.fromkeys(decoded)) == [NTP, *POINTS][rows:]
    assert without_times(path) == without_times(finished[0])


def test_a_line_cut_anywhere_is_left_out(finished, tmp_path):
    content = finished[0].read_bytes()
    starts = [0, *(i + 1 for i, byte in enumerate(content) if byte == ord("\n"))]
    path = tmp_path / "cut.jsonl"
    for end in range(starts[1], len(content), 97):
        path.write_bytes(content[:end])
        assert (
            len(read_results(path)) == sum(start <= end + 1 for start in starts) - 1
        )  # a newline alone may be missing
        with open_results(path) as (results, keep):
            keep(results[0])
        *lines, added = path.read_bytes().splitlines(keepends=True)
        assert content.startswith(b"".join(lines))
        assert json.loads(added)["point"] == json.loads(lines[0])["point"]


def test_another_grid_adds_to_a_file(model, finished, tmp_path):
    path = tmp_path / "more.jsonl"
    path.write_bytes(finished[0].read_bytes())
    found = run(model, path, points=[point(7.0), POINTS[1]])
    assert [each.point for each in found[1:]] == [point(7.0), POINTS[1]]
    assert [each.point for each in read_results(path)[1:]] == [*POINTS, point(7.0)]


def test_a_sweep_goes_on_with_the_same_model_in_another_place(model, finished, tmp_path, monkeypatch):
    path = tmp_path / "moved.jsonl"
    path.write_bytes(b"".join(finished[0].read_bytes().splitlines(keepends=True)[:2]))
    monkeypatch.setattr(model.model, "name_or_path", "elsewhere")
    run(model, path)
    assert [each.point for each in read_results(path)] == [NTP, *POINTS]


def test_another_sweep_is_refused(model, trained_tokenizer, finished, tmp_path, monkeypatch):
    path, _ = finished
    before = path.read_bytes()
    other = tiny_sbd("llama", copy.deepcopy(trained_tokenizer), mode="shifted", max_position_embeddings=512, seed=1)
    for what, options in {
        "model": {"model": other},
        r"task\.num_examples is 3, and now 2": {"limit": 2},
        r"task\.questions is \w+, and now \w+": {"task": greetings("Ho")},
        r"task\.options\.seed is 0, and now 1": {"seed": 1},
        "settings": {"shared": DecodingSettings(method="sbd", max_new_tokens=8)},
    }.items():
        with pytest.raises(SetBlockError, match=rf"holds another sweep: its {what}.*write to another file"):
            run(**{"model": model, "path": path, **options})
    for key in ("commit", "sources"):
        changed = {"version": "0.1.0", "commit": None, "sources": ""} | json.loads(before.splitlines()[0])["run"][
            "code"
        ]
        changed[key] = "f00"
        monkeypatch.setattr("setblock.evaluation.run.code_identity", lambda changed=changed: changed)
        with pytest.raises(SetBlockError, match=r"its code\.(commit|sources) is .*, and now f00"):
            run(model, path)
    assert path.read_bytes() == before


def test_two_processes_do_not_write_to_one_file(model, finished, tmp_path):
    path = tmp_path / "shared.jsonl"
    with open_results(path), pytest.raises(SetBlockError, match=r"another process is writing to .*shared.jsonl"):
        run(model, path)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b'{"name": "ntp"}\n', "line 1 is not a result of a sweep: it has no 'date'"),
        (b"nothing\n", "line 1 is not a result of a sweep: Expecting value"),
        (b"\xff\xfe\n", "line 1 is not a result of a sweep"),
        (b"[1]\n", "line 1 is not a result of a sweep"),
        (b"", "has no result of plain decoding"),
    ],
)
def test_other_files_are_refused(tmp_path, content, message):
    path = tmp_path / "other.jsonl"
    path.write_bytes(content)
    with pytest.raises(SetBlockError, match=message):
        read_results(path)
    if content:
        with pytest.raises(SetBlockError, match=message), open_results(path):
            pass
        assert path.read_bytes() == content


def test_rows_of_two_sweeps_do_not_mix(finished, tmp_path):
    lines = finished[0].read_text().splitlines()
    other = json.loads(lines[1])
    other["run"]["model"]["fingerprint"] = "f00"
    path = tmp_path / "mixed.jsonl"
    path.write_text("\n".join([lines[0], json.dumps(other)]) + "\n")
    with pytest.raises(SetBlockError, match="line 2 is of another sweep than line 1"):
        read_results(path)
    path.write_text("\n".join(lines[1:]) + "\n")
    with pytest.raises(SetBlockError, match="line 1 must be plain decoding"):
        read_results(path)
    with pytest.raises(SetBlockError, match=r"can't read .*nowhere"):
        read_results(tmp_path / "nowhere")


@pytest.mark.parametrize("name", ["limit", "batch_size"])
def test_numbers_out_of_range(model, name):
    options = {"limit": 1, "batch_size": 1, name: 0}
    with pytest.raises(ParameterError, match=f"{name} must be at least 1, not 0"):
        sweep(model, greetings(), POINTS, **options)


def test_losses_are_paired():
    _, found = sweep_of([1, 1, 0, 0], [row(point(1.0), [1, 0, 1, 0], [4, 4, 4, 8], [0, 5, 20, 1])])
    assert found.lost == [0, 1, -1, 0]
    assert found.differing == [0, 0.25, 1, 0.05]
    assert found.token_agreement == 1 - 1.3 / 4
    assert found.nfe_speedup == 80 / 20
    assert found.nfe_speedup_on([3]) == 20 / 8
    assert found.mean_passes == 5


def test_an_evaluation_is_a_sweep_of_one_point(model, finished):
    for each in finished[1]:
        alone = evaluate(model, greetings(), settings=at_point(each.point, SHARED), limit=3, batch_size=3)
        left_out = {"seconds", "ntp_seconds", "date"}
        figures, expected = ({**found.figures(), **dict.fromkeys(left_out)} for found in (alone, each))
        assert figures == expected
        assert alone.outcomes == each.outcomes


@pytest.mark.parametrize(
    ("one", "other", "count"),
    [
        ([1, 2, 3], [1, 2, 3], 0),
        ([1, 2, 3], [1, 5, 3], 1),
        ([1, 2], [1, 2, 3, 4], 2),
        ([], [1], 1),
        ([9, 1, 2], [1, 2], 3),
    ],
)
def test_positions_that_differ(one, other, count):
    assert differing(one, other) == differing(other, one) == count


pairs = st.lists(st.tuples(st.integers(0, 5).map(float), st.integers(0, 5).map(float)), min_size=1, max_size=12)


@given(pairs)
def test_the_pareto_front_is_what_nothing_beats(points):
    def beats(one, other):
        return one[0] <= other[0] and one[1] >= other[1] and one != other

    results = [SimpleNamespace(mean_passes=passes, accuracy=accuracy) for passes, accuracy in points]
    front = [(each.mean_passes, each.accuracy) for each in pareto_front(results)]
    assert sorted(front) == sorted(each for each in points if not any(beats(other, each) for other in points))
    assert [passes for passes, _ in front] == sorted(passes for passes, _ in front)
