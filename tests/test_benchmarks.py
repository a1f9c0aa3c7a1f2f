"""The benchmarks run, and what they measure is what they say; in miniature, on a CPU."""

import json
from collections.abc import Callable
from contextlib import chdir
from pathlib import Path
from types import ModuleType

import pytest
import torch

import breakdown
import gpu
import growth
import host
import load
import passes
import recurrent_training
import side_by_side
import structured
import training_step
from measuring.contenders import llama_cpp, ours, transformers
from measuring.llama_cpp import PACKAGES, is_installed
from measuring.output import read, write
from measuring.samples import Sample, Samples, ratio_interval
from measuring.subjects import SIZES, FixedCount, opened, random_model, random_prompt
from measuring.subjects import passes as passes_of
from measuring.synchronisations import Synchronisations
from measuring.tables import TABLES, origin
from setblock import load as load_model
from setblock.decoding.settings.table import DecodingSettings
from setblock.model.sbd_model import SBDModel
from setblock.roofline.shape import shape_of
from setblock.training.inputs.doubled import noisy_halves
from setblock.training.recipe import load_recipe, parse_override
from setblock.training.run.train import train

ROOT = Path(__file__).parent.parent
TINY = SIZES["tiny"] | {"tie_word_embeddings": False, "initializer_range": 0.2}


@pytest.fixture(scope="module")
def sbd() -> SBDModel:
    return random_model(TINY, dtype=torch.float32)


def last_line(text: str) -> dict:
    return json.loads(text.splitlines()[-1])


@pytest.mark.parametrize(
    "program",
    [passes, growth, breakdown, structured, training_step, host, recurrent_training],
    ids=lambda each: each.__name__,
)
def test_a_benchmark_ends_in_a_line_of_json(
    program: ModuleType, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(structured, "MOST", 40)
    program.main(["--quick", "--out", str(tmp_path / "out.json")])
    printed = last_line(capsys.readouterr().out)
    assert printed["benchmark"] == program.__name__
    assert printed == json.loads((tmp_path / "out.json").read_text())
    assert [path.name for path in tmp_path.iterdir()] == ["out.json"]


def test_side_by_side_finds_plain_text_where_it_is_promised(capsys: pytest.CaptureFixture[str]) -> None:
    side_by_side.main(["--quick", "--llama-builds"])
    contenders = last_line(capsys.readouterr().out)["subjects"]["trained"]["contenders"]
    for name, row in contenders.items():
        assert row["same_as_plain"] == 1 or not row["promises_plain"], name
    assert contenders["ours, exact"]["right_answers"] == 1
    assert contenders["ours, exact"]["nfe_speedup"] > 4


def test_side_by_side_continues_where_it_stopped(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A run that ends in the middle keeps its answers, and the next one times only what is missing."""
    arguments = ["--quick", "--llama-builds", "--answer-tokens", "16", "--out", str(tmp_path / "out.json")]
    timed, left = side_by_side.compared.__globals__["timed"], [5]

    def counted(action: Callable[[], object]) -> object:
        if left[0] == 0:
            raise KeyboardInterrupt
        left[0] -= 1
        return timed(action)

    monkeypatch.setitem(side_by_side.compared.__globals__, "timed", counted)
    with pytest.raises(KeyboardInterrupt):
        side_by_side.main(arguments)
    part = tmp_path / "out.part.jsonl"
    kept = part.read_text().splitlines()
    assert len(kept) == 1 + 5
    with pytest.raises(SystemExit, match="holds part of another run"):
        side_by_side.main([*arguments, "--seed", "3"])
    left[0] = 1_000
    side_by_side.main(arguments)
    (trained,) = last_line(capsys.readouterr().out)["subjects"].values()
    assert 1_000 - left[0] == 2 * len(trained["contenders"]) - 5
    assert [path.name for path in tmp_path.iterdir()] == ["out.json"]
    for row in trained["contenders"].values():
        low, high = row["over_transformers_interval"]
        assert low <= row["over_transformers"]["median"] <= high


def test_samples_of_a_round_are_in_the_order_of_the_requests() -> None:
    samples = Samples()
    for request, round_ in ((1, 0), (0, 1), (0, 0)):
        samples.add(Sample("a", request, round_, 1.0 + request, None, [request], None))
    assert [each.request for each in samples.of("a", round=0)] == [0, 1]
    assert ("a", 1, 1) not in samples


def test_an_interval_of_a_ratio_is_paired() -> None:
    """Requests that differ a hundredfold don't widen it where both sides do."""
    seconds = [0.01 * 10 ** (each % 3) for each in range(40)]
    assert ratio_interval([2 * each for each in seconds], seconds) == pytest.approx((2.0, 2.0))
    low, high = ratio_interval([each * (1.5 + each_ % 2) for each_, each in enumerate(seconds)], seconds)
    assert low < 2 < high


def test_growth_goes_on_where_it_stopped(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "growth.json"
    growth.main(["--quick", "--minutes", "0", "--out", str(out)])
    assert last_line(capsys.readouterr().out)["cells"] == {}
    growth.main(["--quick", "--out", str(out)])
    first = last_line(capsys.readouterr().out)["cells"]
    assert len(first) == 2
    growth.main(["--quick", "--out", str(out)])
    assert last_line(capsys.readouterr().out)["cells"] == first


def test_results_of_other_machines_are_not_mixed(tmp_path: Path) -> None:
    machine = {"benchmark": "growth", "quick": False, "cpu": "a", "threads": 2, "gpu": None, "torch": "2"}
    write(machine, tmp_path / "out.json")
    assert read(tmp_path / "out.json", like=machine) == machine
    assert read(tmp_path / "none.json", like=machine) is None
    with pytest.raises(SystemExit, match="cpu 'a', this run has 'b'"):
        read(tmp_path / "out.json", like=machine | {"cpu": "b"})


class InProcess:
    """`setblock train` without the seconds for which a new process imports."""

    def __init__(self, command: list[str], *, cwd: Path) -> None:
        assert command[1:4] == ["-m", "setblock", "train"]
        with chdir(cwd):
            train(*load_recipe(command[4], overrides=dict(map(parse_override, command[6::2]))))

    def wait(self, timeout: float) -> int:
        return 0


@pytest.mark.filterwarnings("ignore:flex_attention called without torch.compile")
@pytest.mark.filterwarnings("ignore:.*torch.jit:DeprecationWarning")  # PyTorch warns of what it does itself
def test_every_stage_for_gpus_runs_in_miniature(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("stages.training.subprocess.Popen", InProcess)
    recipe = tmp_path / "recipe.yaml"
    recipe.write_text((ROOT / "examples" / "tiny.yaml").read_text())
    arguments = ["--quick", "--out", str(tmp_path / "gpu.json"), "--runs", str(tmp_path), "--recipes", str(recipe)]
    arguments += ["--set", "training.dataloader_pin_memory=false", "--set", "training.max_steps=1"]
    arguments += ["--set", "training.block_sizes=[4, 16]", "--set", "data.documents=8"]
    arguments += ["--set", "data.evaluation.documents=2"]
    gpu.main([*arguments, "--minutes", "0"])
    assert not any(last_line(capsys.readouterr().out)["stages"].values()), "no time, no pieces"
    with torch.compiler.set_stance("force_eager"):  # so that FlexAttention is not compiled
        gpu.main(arguments)
    stages = last_line(capsys.readouterr().out)["stages"]
    assert list(stages) == list(gpu.STAGES)
    for stage, pieces in stages.items():
        assert pieces, stage
        for name, piece in pieces.items():
            assert piece.get("passed", "error" not in piece), f"{stage}: {name}: {piece}"
    gpu.main(arguments)
    assert last_line(capsys.readouterr().out)["stages"] == stages, "nothing is measured twice"


@pytest.mark.nightly
def test_half_an_hour_is_spent_on_training_first(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("stages.training.subprocess.Popen", InProcess)
    monkeypatch.setattr(gpu, "HALF_HOUR", ("recipe",))
    recipe = tmp_path / "recipe.yaml"
    recipe.write_text((ROOT / "examples" / "tiny.yaml").read_text())
    arguments = ["--quick", "--half-hour", "--out", str(tmp_path / "gpu.json"), "--runs", str(tmp_path)]
    arguments += ["--recipes", str(recipe), "--training-minutes", "0.05", "--set", "training.use_cpu=true"]
    arguments += ["--set", "data.evaluation.documents=2", "--set", "training.block_sizes=[4, 16]"]
    gpu.main(arguments)
    pieces = last_line(capsys.readouterr().out)["stages"]["recipe"]
    assert list(pieces)[:2] == ["pace of recipe", "train recipe"]
    assert not [name for name, piece in pieces.items() if "error" in piece]
    steps = int(pieces["train recipe"]["training.max_steps"])
    assert steps == max(1, round(3 / pieces["pace of recipe"]["seconds_per_step"]))
    logs = map(json.loads, (tmp_path / "runs" / "tiny" / "metrics.jsonl").read_text().splitlines())
    assert max(log["step"] for log in logs) == steps
    gpu.main(arguments)
    assert last_line(capsys.readouterr().out)["stages"]["recipe"] == pieces, "nothing is done twice"


def test_a_piece_that_fails_is_reported_and_tried_again(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def pieces(options: object) -> object:
        yield "bad", lambda: 1 / 0
        yield "good", lambda: {"value": 1}

    monkeypatch.setitem(gpu.STAGES, "machine", pieces)
    arguments = ["--quick", "--stages", "machine", "--out", str(tmp_path / "gpu.json")]
    with pytest.raises(SystemExit, match="1 pieces failed"):
        gpu.main(arguments)
    done = last_line(capsys.readouterr().out)["stages"]["machine"]
    assert done == {"bad": {"error": "ZeroDivisionError: division by zero"}, "good": {"value": 1}}
    monkeypatch.setitem(gpu.STAGES, "machine", lambda options: iter([("bad", lambda: {"value": 2})]))
    gpu.main(arguments)
    assert last_line(capsys.readouterr().out)["stages"]["machine"]["bad"] == {"value": 2}


@pytest.mark.parametrize("kind", ["one token", "block", "fused"])
def test_a_pass_of_the_model_alone_is_the_librarys(kind: str, sbd: SBDModel) -> None:
    both = passes_of(sbd, kind, block_size=4, kv_length=20, batch=3)
    library, model = both["library"](), both["model"]()
    assert library.shape == model.shape == (3, 1 if kind == "one token" else 4, 768)
    banned = library == -torch.inf
    torch.testing.assert_close(library, model.float().masked_fill(banned, -torch.inf))
    torch.testing.assert_close(both["library"](), library)


def test_the_noise_is_the_same_in_caches_of_all_sizes(sbd: SBDModel) -> None:
    small, large = (
        opened(sbd, DecodingSettings(method="ntp", max_new_tokens=n), batch=2, prompt=9).runner.cache for n in (1, 40)
    )
    for a, b in zip(small.layers, large.layers, strict=True):
        assert torch.equal(a.keys[:, :, :8], b.keys[:, :, :8])
        assert a.keys[:, :, :8].std() > 0.5


@pytest.mark.parametrize(("build", "drafted"), [("from source", False), ("AVX2 wheel", False), ("AVX2 wheel", True)])
def test_llama_cpp_writes_what_transformers_writes(build: str, drafted: bool, sbd: SBDModel, tmp_path: Path) -> None:
    if not is_installed(build):
        pytest.skip(f"{PACKAGES[build]} is not installed")
    common = {"build": build, "threads": 1, "context": 256, "max_new_tokens": 20}
    contender = llama_cpp(
        "llama.cpp", sbd.model, tmp_path, weights="f32", draft=sbd.model if drafted else None, **common
    )
    for length in (3, 11):
        prompt = random_prompt(sbd, length)
        written = transformers("plain", sbd.model, max_new_tokens=20).decode(prompt)
        assert contender.decode(prompt).token_ids == written.token_ids


def test_forced_passes_are_as_many_as_requested(sbd: SBDModel) -> None:
    for count in (1, 3, 8):
        settings = DecodingSettings(method="sbd", sampler=FixedCount(count), block_size=8, max_new_tokens=32)
        assert ours("ours", sbd, settings).decode([5, 6, 7]).passes == 4 * -(-8 // count)


def test_synchronisations_are_counted_where_they_are_requested() -> None:
    with Synchronisations() as waits:
        x = torch.arange(4.0)
        y = (x + 1).cumsum(0).masked_fill(x > 2, 0)
        assert waits.total == 0
        int(y.sum())
        y[x > 1] = 0.0
        x[torch.tensor([1, 2])]
        x.nonzero(as_tuple=True)
    assert waits.total == 3
    with torch.inference_mode(), Synchronisations() as waits:
        bool((torch.arange(3) > 1).all())
    assert waits.total == 1
    assert all("test_benchmarks.py" in line for line in waits.counts)


def test_random_models_have_the_size_of_their_name() -> None:
    for name, config in SIZES.items():
        if name != "tiny":
            millions = shape_of(config | {"max_position_embeddings": 1}).parameters / 1e6
            named = float(name[:-1]) * (1000 if name.endswith("b") else 1)
            assert millions == pytest.approx(named, rel=0.12), name
    for config in SIZES.values():
        assert config["hidden_size"] % config["num_attention_heads"] == 0
        assert config["num_attention_heads"] % config["num_key_value_heads"] == 0


def test_states_give_the_loss_of_rows() -> None:
    """Blocks that continue from the states of one clean pass have the losses of rows with the text before them, and their
    gradients."""
    sbd = recurrent_training.new_model("hybrid", load_model().tokenizer, small=True)
    rows = next(recurrent_training.batches(sbd.tokenizer, seed=0))
    rows = {name: column[-4:] for name, column in rows.items()}
    halves = noisy_halves(rows, **recurrent_training.noise_of(sbd, (0, 3)))
    found = []
    for losses in (
        recurrent_training.row_losses(sbd.model, rows, halves, (0,), copies=100),
        recurrent_training.state_losses(sbd.model, rows, halves),
    ):
        assert losses.matp_count > 20
        sbd.model.zero_grad()
        losses.total.backward()
        gradients = [each.grad for each in sbd.model.parameters() if each.grad is not None]
        found.append([losses.ntp / losses.ntp_count, losses.matp / losses.matp_count, *gradients])
    torch.testing.assert_close(found[1], found[0], rtol=1e-4, atol=1e-4)


def test_the_page_on_drafts_shows_what_was_measured_under_load() -> None:
    page, rounds = (ROOT / "docs" / "drafts.md").read_text(), load.read(ROOT / "benchmarks" / "results" / "load.jsonl")
    cells = list(load.medians(rounds))
    assert "\n".join(load.row_of(*cell) for cell in cells) in page
    assert f"All {sum(about['same'] for *_, about in cells):,} texts" in page
    assert all(about["same"] == about["answers"] for *_, about in cells)


def test_the_page_on_recurrent_models_shows_what_was_measured() -> None:
    page = (ROOT / "docs" / "recurrent-models.md").read_text()
    found = json.loads((ROOT / "benchmarks" / "results" / "recurrent_training.json").read_text())
    assert TABLES["recurrent_training"](found) in page
    assert origin(found).split("; `")[0] in page
