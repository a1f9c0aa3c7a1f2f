"""What `setblock train` reports: losses, speed, held-out figures, decoding, and the card."""

import json
import re

import yaml

from .conftest import assert_same_weights


def test_held_out_data_is_evaluated_at_the_end_and_the_first_step_is_logged(run, recipe, tmp_path):
    recipe.write_text(recipe.read_text().replace("  evaluation:\n    split: validation\n    documents: 2\n", ""))
    recipe.write_text(recipe.read_text().replace("  evaluation:\n    documents: 2\n    split: validation\n", ""))
    outcome = run("train", recipe, "--set", "data.evaluation_fraction=0.2")
    assert outcome.code == 0, outcome.stderr
    lines = outcome.stdout.splitlines()
    assert lines[0].startswith("step 0/6: held out: loss ")
    assert lines[1].startswith("step 1/")
    evaluated, measured, both = lines[-5:-2]
    assert "step 6/6: held out: ntp " in evaluated
    assert "step 6/6: held out: loss " in measured
    assert re.fullmatch(
        r"held-out: loss \d\.\d{3} -> \d\.\d{3} nats a token, \d+\.\d% -> \d+\.\d% of tokens as in the reference "
        r"\(\d+ tokens of \d+ documents\)",
        both,
    )
    folder = tmp_path / "model"
    assert f"saved to {folder} after 0 min " in lines[-2]
    assert lines[-1] == f"next: setblock generate --model {folder} 'Your prompt'"
    card = (folder / "README.md").read_text()
    assert "| eval_ntp_loss | " in card
    assert both.removeprefix("held-out: ") in card


def test_a_run_says_why_there_are_no_held_out_figures(run, recipe):
    content = yaml.safe_load(recipe.read_text())
    del content["data"]["evaluation"]
    recipe.write_text(yaml.safe_dump(content))
    outcome = run("train", recipe, "--set", "training.max_steps=1")
    missing = (
        "held-out: not measured, since the recipe holds no documents out (data.evaluation or data.evaluation_fraction)"
    )
    assert missing in outcome.stdout.splitlines()


def test_a_run_says_how_it_goes(run, recipe, whole, tmp_path):
    """Losses and speed in lines and in the metrics; decoding now and then; a card. None of it changes what is learned."""
    recipe.write_text(
        recipe.read_text()
        + "evaluate_decoding: {task: word-problems, limit: 2, every: 4, gammas: [0.1, inf], max_new_tokens: 12}\n"
    )
    folder = tmp_path / "model"
    outcome = run("train", recipe, "--set", "training.logging_steps=2")
    assert outcome.code == 0
    lines = outcome.stdout.splitlines()
    assert any(line.startswith("step 2/6: loss ") and "tokens/s" in line for line in lines)
    assert sum("held out: " in line and "NFE speed-up" in line for line in lines) == 3  # at steps 0, 4 and 6
    entries = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    decoded = [entry for entry in entries if "eval_accuracy_ntp" in entry]
    assert [entry["step"] for entry in decoded] == [0, 4, 6]
    assert all(entry["eval_nfe_speedup_inf"] > entry["eval_nfe_speedup_0.1"] / 2 > 0 for entry in decoded)
    assert all(entry["eval_nfe_speedup_exact"] > 0 for entry in decoded)
    assert all(entry["eval_accuracy_exact"] == entry["eval_accuracy_ntp"] for entry in decoded)
    card = (folder / "README.md").read_text()
    assert "library_name: transformers" in card
    assert f"| eval_nfe_speedup_inf | {decoded[-1]['eval_nfe_speedup_inf']:.4g} |" in card
    assert "hidden_size: 16" in card
    assert str(tmp_path) not in card

    # The section is no part of what is trained, and a run without it learns the same
    assert_same_weights(folder, whole)
