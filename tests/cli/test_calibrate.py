"""`setblock calibrate`, and what every command makes of its result."""

import json
import shutil

import pytest

from evaluation.sweeps import point, row, sweep_of
from setblock import load
from setblock.decoding.samplers import EntropyBounded
from setblock.decoding.settings.resolve import calibration_for, with_calibration
from setblock.decoding.settings.table import DecodingSettings
from setblock.engine.generate import generate
from setblock.errors import ParameterError
from setblock.evaluation.sweeps.fingerprint import model_fingerprint
from setblock.evaluation.tracing import trace
from setblock.model.loading.named import BUNDLED_MODEL
from setblock.model.protocol.sbd_config import CONFIG_KEY

N = 400
TOLERANCE = ("--tolerance", "accuracy=5")


@pytest.fixture(scope="session")
def fingerprint(sbd_folder):
    return model_fingerprint(load(sbd_folder))


@pytest.fixture
def sweep_file(tmp_path, fingerprint):
    """A sweep of the tiny model, as it never was: gamma 0.3 loses nothing, gamma 0.9 a third."""
    ntp = [1] * N
    rows = [
        row(point(0.3, block_size=8), ntp, [5] * N, [0] * N),
        row(point(0.9), [int(i % 3 > 0) for i in range(N)], [2] * N, [int(i % 3 == 0) for i in range(N)]),
        row(point(1.0, method="exact"), ntp, [10] * N, [0] * N),
    ]
    path = tmp_path / "sweep.jsonl"
    results = sweep_of(ntp, rows, fingerprint=fingerprint)
    path.write_text("".join(json.dumps(each.to_json()) + "\n" for each in results))
    return path


def test_what_is_found_is_written_and_used(run, copied, sweep_file):
    before = json.loads((copied / "config.json").read_text())
    untouched = {
        path.name: path.read_bytes() for path in copied.iterdir() if path.is_file() and path.name != "config.json"
    }
    outcome = run("calibrate", "--model", copied, "--results", sweep_file, *TOLERANCE, "--domain", "sums", "--json")
    assert (outcome.code, outcome.stderr) == (0, "")
    result = json.loads(outcome.stdout)
    assert result["chosen"]["sampler_options"]["gamma"] == 0.3
    assert (result["tested"], result["nfe_speedup"], result["exact_nfe_speedup"]) == (True, 4, 2)
    assert [test["passed"] for test in result["tests"]] == [True, False]
    after = json.loads((copied / "config.json").read_text())
    recorded = after[CONFIG_KEY].pop("calibrations")
    assert after == before
    assert {
        path.name: path.read_bytes() for path in copied.iterdir() if path.is_file() and path.name != "config.json"
    } == untouched
    assert [(each["domain"], each["point"]["method"]) for each in recorded] == [("sums", "sbd"), ("sums", "exact")]

    # Exact mode stays the default. The command line says what it uses; an explicit option wins, without a word
    quick = ("A prompt.", "--model", copied, "--max-new-tokens", 4, "--json")
    assert "calibrated for sums: method exact, " in run("generate", *quick).message
    outcome = run("generate", *quick, "--method", "sbd")
    line = (
        "setblock: calibrated for sums: method sbd, entropy-bounded (gamma 0.3, proxy entropy), block size 8 "
        "(at most 5 points of accuracy lost, 95% confidence)"
    )
    assert outcome.message == line
    assert "method exact, " in run("generate", *quick, "--method", "exact").message
    for options in (("--gamma", 0.5), ("--block-size", 4), ("--method", "ntp"), ("--sampler", "factor")):
        assert run("generate", *quick, *options).stderr == ""
    evaluated = run("evaluate", "--model", copied, "--method", "sbd", "--limit", 1, "--max-new-tokens", 4, "--json")
    assert evaluated.message == line
    assert [json.loads(evaluated.stdout)[key] for key in ("gamma", "block_size")] == [0.3, 8]
    compared = run("compare", *quick, "--method", "sbd")
    assert json.loads(compared.stdout)["gamma"] == 0.3
    traced = run("generate", "--trace", *quick, "--method", "sbd")
    assert traced.message == line
    assert [json.loads(traced.stdout)[key] for key in ("gamma", "block_size")] == [0.3, 8]
    assert (
        "domain 'prose' is not known: this model was calibrated for sums"
        in run("generate", *quick, "--domain", "prose").message
    )
    assert "give no other option" in run("generate", *quick, "--domain", "sums", "--gamma", 1).message

    # So does the library
    model = load(copied)
    blocks = DecodingSettings(method="sbd")
    calibrated = DecodingSettings(method="sbd", sampler=EntropyBounded(0.3), block_size=8)
    assert with_calibration(model, blocks) == with_calibration(model, blocks, domain="sums") == calibrated
    assert with_calibration(model, DecodingSettings(method="sbd", max_new_tokens=9)).sampler == EntropyBounded(0.3)
    assert with_calibration(model) == with_calibration(model, DecodingSettings(method="exact"))
    assert (with_calibration(model).method, with_calibration(model).block_size) == ("exact", 16)
    for settings in (
        DecodingSettings(method="sbd", block_size=4),
        DecodingSettings(method="sbd", sampler=EntropyBounded()),
        DecodingSettings(method="exact", prompt_lookup=2),
        DecodingSettings(method="ntp"),
    ):
        assert with_calibration(model, settings) == settings
    answers = [generate(model, "A prompt of some words.", settings=each) for each in (blocks, calibrated)]
    assert trace(model, "A prompt.", settings=DecodingSettings(method="sbd", max_new_tokens=4)).block_size == 8
    assert answers[0].token_ids == answers[1].token_ids
    assert answers[0].revealed_by == answers[1].revealed_by
    assert (
        answers[0].revealed_by
        != generate(model, "A prompt of some words.", settings=DecodingSettings(method="sbd", block_size=2)).revealed_by
    )

    # Calibrated again, a domain has the new result only; others keep theirs, and the slowest is the default
    for domain, tolerance in (("sums", "accuracy=5"), ("prose", "tokens=5")):
        requested = ("--tolerance", tolerance, "--domain", domain)
        assert run("calibrate", "--model", copied, "--results", sweep_file, *requested).code == 0
    model = load(copied)
    assert [each.domain for each in model.sbd_config.calibrations] == ["sums", "sums", "prose", "prose"]
    assert model_fingerprint(model) == json.loads(sweep_file.read_text().splitlines()[0])["run"]["model"]["fingerprint"]
    assert calibration_for(model, method="exact").nfe_speedup == 2
    assert calibration_for(model, method="sbd").nfe_speedup == 4
    assert (
        calibration_for(model, method="sbd", domain="prose").nfe_speedup == 10
    )  # a third of the answers, in one token of twenty
    with pytest.raises(ParameterError, match="was calibrated for sums, prose"):
        calibration_for(model, method="sbd", domain="verse")
    # Trained further, it is another model
    model.prepare_for_training(block_sizes=[4], logit_shift=True)
    assert model.sbd_config.calibrations == ()


def test_a_copy_or_nothing_is_written(run, sbd_folder, sweep_file, tmp_path):
    before = (sbd_folder / "config.json").read_bytes()
    common = ("calibrate", "--model", sbd_folder, "--results", sweep_file, *TOLERANCE)
    dry = run(*common, "--dry-run")
    assert "chosen: entropy-bounded 0.3, k 8, which passed; 4.00 times fewer passes" in dry.stdout
    assert "nothing was written (--dry-run)" in dry.stdout
    copy = tmp_path / "copy"
    assert f"written to {copy / 'config.json'}" in run(*common, "--output", copy).stdout
    assert (sbd_folder / "config.json").read_bytes() == before
    assert load(copy).sbd_config.calibrations
    assert sorted(each.name for each in copy.iterdir()) == sorted(each.name for each in sbd_folder.iterdir())
    assert "exists already: --output must be a new folder" in run(*common, "--output", copy).message


def test_where_nothing_passes_exact_mode_is_offered(run, sbd_folder, sweep_file, tmp_path):
    lines = sweep_file.read_text().splitlines()
    bad = tmp_path / "bad.jsonl"
    bad.write_text("\n".join([lines[0], lines[2], lines[3]]) + "\n")
    common = ("calibrate", "--model", sbd_folder, "--dry-run", *TOLERANCE, "--results")
    found = run(*common, bad)
    assert "which loses nothing, whatever the examples; no other setting passed; 2.00 times fewer" in found.stdout
    bad.write_text("\n".join([lines[0], lines[2]]) + "\n")
    found = run(*common, bad)
    assert (found.code, found.message) == (
        1,
        "setblock: error: no setting passed: sweep --method exact, which keeps any tolerance, or allow a larger one",
    )


def test_prompts_of_a_file(run, sbd_folder, tmp_path):
    path = tmp_path / "chats.jsonl"
    path.write_text("".join(json.dumps({"prompt": f"Say {n}."}) + "\n" for n in range(24)))
    quick = ("--max-new-tokens", 3, "--grid", "gamma=0", "--dry-run", "--confidence", 0.5, "--json")
    outcome = run("calibrate", "--model", sbd_folder, "--input", path, "--tolerance", "tokens=90", *quick)
    assert json.loads(outcome.stdout)["domain"] == "chats"
    assert "has no right answers" in run("calibrate", "--model", sbd_folder, "--input", path, *quick).message
    path.write_text('{"prompt": "Hi"}\n{"text": "Hi"}\n')
    outcome = run("calibrate", "--model", sbd_folder, "--input", path, "--tolerance", "tokens=90", *quick)
    assert "line 2 must have either prompt or messages, not text" in outcome.message


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (
            ("--tolerance", "speed=1"),
            "--tolerance must be accuracy=PERCENT or tokens=PERCENT, such as accuracy=0.5, not 'speed=1'",
        ),
        (
            ("--tolerance", "accuracy"),
            "--tolerance must be accuracy=PERCENT or tokens=PERCENT, such as accuracy=0.5, not 'accuracy'",
        ),
        (("--tolerance", "accuracy=0"), "the tolerance of accuracy must be above 0% and below 100%"),
        (("--confidence", 2), "confidence must be between 0.5 and 0.999, not 2"),
        (("--results", "s.jsonl", "--sampler", "factor"), "--results decodes nothing"),
        (
            ("--limit", 30, "--dry-run"),
            "30 examples are too few to show at most 0.5 points of accuracy lost, 95% confidence",
        ),
    ],
)
def test_mistakes(run, sbd_folder, options, message):
    outcome = run("calibrate", "--model", sbd_folder, *options)
    assert outcome.code == 2
    assert message in outcome.message


def test_the_bundled_model_stays_as_it_is(run):
    outcome = run("calibrate", "--limit", 2000)
    assert outcome.message.endswith("the bundled model is read-only: give --output FOLDER for a copy, or --dry-run")
    outcome = run("calibrate", "--limit", 2000, "--model", "bundled")
    assert outcome.message.endswith("bundled is no folder: give --output FOLDER for a copy, or --dry-run")
    assert "calibrations" not in json.loads((BUNDLED_MODEL / "config.json").read_text())[CONFIG_KEY]


def test_a_sweep_of_another_model_is_refused(run, copied, sweep_file, tmp_path):
    config = json.loads((copied / "config.json").read_text())
    config["rms_norm_eps"] = 1e-3
    (copied / "config.json").write_text(json.dumps(config))
    assert (
        "is of another model: its fingerprint is"
        in run("calibrate", "--model", copied, "--results", sweep_file, *TOLERANCE).message
    )


def test_a_calibrated_sampler_of_one_s_own_must_be_known(run, copied, sweep_file):
    run("calibrate", "--model", copied, "--results", sweep_file, *TOLERANCE)
    path = copied / "config.json"
    path.write_text(path.read_text().replace('"entropy-bounded"', '"mine"'))
    message = run("generate", "A prompt.", "--model", copied).message
    assert "the model's calibrated setting for greetings can't be used: sampler must be one of" in message
    shutil.rmtree(copied)
