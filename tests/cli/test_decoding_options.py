"""The decoding options without a command around them: what is typed becomes the settings it says."""

import json
from dataclasses import fields

import pytest

from setblock.cli.answering.generate import GenerateOptions
from setblock.cli.options.decoding_options import DecodingOptions, sampler_json, sampler_text
from setblock.decoding.samplers import SAMPLERS, EntropyBounded, EntropyPrefix
from setblock.decoding.settings.resolve import DRAFT_GAMMA
from setblock.decoding.settings.table import DecodingSettings
from setblock.errors import ParameterError


def test_every_setting_has_an_option_of_its_name():
    options = {field.name for field in fields(GenerateOptions)}
    typed = {field.name for field in fields(DecodingSettings)} - {"constraints", "structure"}  # objects of Python
    assert options == typed | {"sampler_options", "gamma", "domain", "json_schema", "regex", "choice", "grammar"}


def test_nothing_typed_is_the_library_s_default():
    assert GenerateOptions().settings() == DecodingOptions().settings() == DecodingSettings()
    assert DecodingOptions().settings().method == "exact"
    assert DecodingOptions(method="sbd").settings().sampler is None


def test_the_help_names_every_sampler(run):
    help_text = "".join(run("generate", "--help-all").stdout.translate(str.maketrans("", "", "│ \n")))
    assert ",".join(SAMPLERS) in help_text


@pytest.mark.parametrize("name", SAMPLERS)
def test_a_sampler_goes_by_its_name_both_ways(name):
    settings = DecodingOptions(sampler=name).settings()
    assert settings.sampler == SAMPLERS[name]()
    assert sampler_json(settings)["sampler"] == name
    assert sampler_text(settings).startswith(name)
    typed = [
        f"{key}={value}" for key, value in json.loads(json.dumps(sampler_json(settings)["sampler_options"])).items()
    ]
    assert typed
    assert DecodingOptions(sampler=name, sampler_options=typed).settings() == settings


def test_sampler_options_have_the_types_of_the_sampler_s_fields():
    typed = ["gamma=0.5", "proxy=margin"]
    expected = EntropyBounded(0.5, proxy="margin")
    assert DecodingOptions(sampler="entropy-bounded", sampler_options=typed).settings().sampler == expected
    assert DecodingOptions(sampler_options=typed).settings().sampler == expected
    assert DecodingOptions(gamma=0.5, sampler_options=typed[1:]).settings().sampler == expected
    count = DecodingOptions(sampler="fixed-count", sampler_options=["count=3"]).settings().sampler.count
    assert (count, type(count)) == (3, int)


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (
            {"sampler": "entropy-bound"},
            "sampler must be one of confidence-threshold, .*, did you mean 'entropy-bounded'",
        ),
        ({"sampler": "zzz"}, "fixed-count, not 'zzz'$"),
        ({"sampler_options": ["gama=1"]}, "entropy-bounded has no 'gama', did you mean 'gamma'.*; it has gamma, proxy"),
        ({"sampler_options": ["gamma"]}, "--sampler-option must be KEY=VALUE, not 'gamma'"),
        ({"sampler_options": ["gamma=much"]}, "gamma of sampler entropy-bounded must be a number, not 'much'"),
        (
            {"sampler_options": ["proxy=luck"]},
            "proxy of .* must be one of 'entropy', 'confidence' or 'margin', not 'luck'",
        ),
        ({"sampler_options": ["gamma=-1"]}, "gamma must be at least 0"),
        ({"sampler_options": ["gamma=1"], "gamma": 1.0}, "gamma is given more than once"),
        ({"sampler": "fixed-count", "sampler_options": ["count=1.5"]}, "count of .* must be a whole number, not '1.5'"),
        ({"sampler": "fixed-count", "gamma": 1.0}, "sampler fixed-count has no 'gamma'; it has count"),
    ],
)
def test_what_a_sampler_can_t_be(options, said):
    with pytest.raises(ParameterError, match=said):
        DecodingOptions(**options).settings()


def test_other_options_reach_the_settings_of_their_names():
    options = DecodingOptions(
        logit_bias=["3=-1.5", "4=2"], banned_tokens=[7], stop=["a", "b"], stop_token_ids=[9], top_k=5, prompt_lookup=2
    )
    assert options.settings() == DecodingSettings(
        logit_bias={3: -1.5, 4: 2.0}, banned_tokens=[7], stop=["a", "b"], stop_token_ids=[9], top_k=5, prompt_lookup=2
    )


@pytest.mark.parametrize("text", ["", "3", "3:1", "three=1", "3=", "3=much", "=1"])
def test_a_malformed_logit_bias(text):
    with pytest.raises(ParameterError, match=f"--logit-bias must be ID=BIAS, such as 42=-1.5, not '{text}'"):
        DecodingOptions(logit_bias=[text]).settings()


def test_reports_of_ntp_name_no_sampler():
    assert set(sampler_json(DecodingSettings(method="ntp")).values()) == {None}


def test_reports_name_the_default_sampler():
    found = sampler_json(DecodingSettings())
    assert (found["sampler"], found["gamma"]) == ("entropy-bounded", DRAFT_GAMMA)
    found = sampler_json(DecodingSettings(method="sbd"))
    assert (found["sampler"], found["gamma"]) == ("entropy-prefix", EntropyPrefix().gamma)
    assert found["sampler_options"] == {"gamma": found["gamma"]}


@pytest.mark.parametrize("typed", [["--draft-lookup", "2"], ["--draft-lookup=2"]])
def test_an_option_s_earlier_name_still_works_and_says_the_current_one(run, typed):
    result = run("generate", "4 + 4 =", "--max-new-tokens", "3", "--json", *typed)
    assert result.code == 0
    assert "--draft-lookup is now called --prompt-lookup" in result.stderr
    assert "draft-lookup" not in run("generate", "--help-all").stdout
