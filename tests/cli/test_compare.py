import json

import pytest

SHORT = ("--max-new-tokens", 20)


@pytest.mark.parametrize("second", ["sbd", "exact"])
def test_json_has_both_sides(run, sbd_folder, second):
    outcome = run("compare", "Tom has 5 pens.", "--model", sbd_folder, "--method", second, "--json", *SHORT)
    result = json.loads(outcome.stdout)
    assert outcome.stderr == ""
    assert {"prompt", "ntp", second, "identical", "nfe_speedup", "wall_clock_speedup"} <= result.keys()
    for method in ("ntp", second):
        assert result[method]["method"] == method
        assert len(result[method]["token_ids"]) == len(result[method]["revealed_by"]) == result[method]["num_tokens"]
    passes = {m: result[m]["num_forwards"] - result[m]["num_prefill_forwards"] for m in ("ntp", second)}
    assert result["nfe_speedup"] == passes["ntp"] / passes[second]
    assert {"sbd", "exact"} & result.keys() == {second}
    assert result["identical"] or second == "sbd"
    assert result["identical"] == (result["ntp"]["token_ids"] == result[second]["token_ids"])


def test_without_a_prompt_the_seed_chooses_a_problem(run, sbd_folder):
    results = [
        json.loads(run("compare", "--model", sbd_folder, "--method", "sbd", "--seed", seed, "--json", *SHORT).stdout)
        for seed in (1, 1, 2)
    ]
    assert results[0]["prompt"] == results[1]["prompt"] != results[2]["prompt"]


def test_titles_and_tables_name_the_method(run, sbd_folder):
    lines = run("compare", "Tom", "--model", sbd_folder, "--method", "exact", *SHORT).stdout.splitlines()
    assert "exact: blocks, each checked so that the text is ntp's" in lines
    rows = [line.split()[0] for line in lines if line.startswith((" ntp  ", " exact  ", " sbd  "))]
    assert rows == ["ntp", "exact"]
    assert any(line.split() == ["texts", "identical"] for line in lines)


def test_an_endless_gamma_is_still_json(run, sbd_folder):
    def refuse(constant):
        raise AssertionError(f"{constant} is not JSON")

    outcome = run("compare", "Tom", "--model", sbd_folder, "--method", "sbd", "--gamma", "inf", "--json", *SHORT)
    assert json.loads(outcome.stdout, parse_constant=refuse)["gamma"] == "inf"
    assert json.loads(outcome.stdout)["sampler_options"]["gamma"] == "inf"


def test_without_colour_there_is_none(run, sbd_folder):
    outcome = run("compare", "Tom", "--model", sbd_folder, "--method", "sbd", "--gamma", "inf", *SHORT)
    assert "\x1b" not in outcome.stdout  # though this random model writes that byte
    header = next(line.split() for line in outcome.stdout.splitlines() if "prefill  " in line and "method" in line)
    assert header == ["method", "tokens", "prefill", "block", "commit", "forwards", "per", "forward", "seconds"]
    assert "NFE speed-up" in outcome.stdout


@pytest.mark.parametrize(("no_color", "coloured"), [("", True), ("1", False)])
def test_colours_and_their_legend(run, sbd_folder, monkeypatch, no_color, coloured):
    monkeypatch.setenv("FORCE_COLOR", "1")
    monkeypatch.setenv("TERM", "xterm-256color")
    monkeypatch.setenv("NO_COLOR", no_color)
    outcome = run("compare", "Tom", "--model", sbd_folder, "--method", "sbd", *SHORT)
    assert ("\x1b[36m" in outcome.stdout) is coloured
    assert ("colour: the pass that revealed a token" in outcome.stdout) is coloured
