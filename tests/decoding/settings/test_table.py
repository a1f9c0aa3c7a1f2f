"""The table of settings: each is what its row says, and whoever offers it takes it under the row's name."""

import inspect
import math
from dataclasses import fields
from types import SimpleNamespace
from typing import Any

import pytest

from setblock.decoding.samplers import EntropyBounded, Factor
from setblock.decoding.settings.resolve import requested_settings
from setblock.decoding.settings.setting import Setting
from setblock.decoding.settings.table import HYPERPARAMETERS, SETTINGS, DecodingSettings
from setblock.errors import ParameterError
from setblock.integrations.lm_eval import arguments
from setblock.integrations.lm_eval.arguments import request_settings
from setblock.integrations.lm_eval.arguments import settings_from as of_the_harness
from setblock.integrations.transformers import AVAILABLE, sbd_generate
from setblock.server.api.protocol import ChatBody
from setblock.server.api.settings import settings_of as of_the_server
from setblock.server.http import limits
from setblock_vllm import parameters
from setblock_vllm.parameters import settings_of as of_vllm

VALUES: dict[Any, Any] = {
    int: 7,
    float: 0.5,
    list[int]: [3],
    list[str]: ["x"],
    dict[int, float]: {3: 1.5},
}


def value_of(row: Setting) -> Any:
    """A valid value that is not the default."""
    return {"method": "ntp", "sampler": "factor", "drafts": "fixed", "structure": {"regex": "[0-9]+"}}.get(
        row.name
    ) or VALUES[row.type]


def check(found: DecodingSettings, row: Setting) -> None:
    """Of the sampler, a hyperparameter too."""
    value = value_of(row)
    if row.name in HYPERPARAMETERS:
        assert getattr(found.sampler, row.name) == value
    elif row.name == "sampler":
        assert found.sampler == Factor()
    else:
        assert getattr(found, row.name) == getattr(DecodingSettings(**{row.name: value}), row.name)


def rows_of(caller: Any) -> Any:
    return pytest.mark.parametrize(("called", "row"), caller.AVAILABLE.items(), ids=lambda each: str(each)[:20])


def test_the_table_has_a_row_for_each_field() -> None:
    assert list(SETTINGS) == [field.name for field in fields(DecodingSettings)]
    for row in SETTINGS.values():
        assert row.help.endswith(".")
        assert f"    {row.name}: {row.help}" in str(DecodingSettings.__doc__)


@pytest.mark.parametrize("row", SETTINGS.values(), ids=SETTINGS)
def test_a_value_outside_the_range_is_refused_by_name(row: Setting) -> None:
    wrong: list[Any] = ["x"] if row.type in (int, float) else []
    if row.type in (int, float):
        wrong += [row.range.low] if row.range.above else []
        wrong += [row.range.low - 1 if row.type is float else int(row.range.low) - 1]
        wrong += [row.range.high + 1] if abs(row.range.high) < 1e300 else []
        wrong += [math.nan] if row.type is float else []
    for value in wrong:
        with pytest.raises(ParameterError, match=f"^{row.name} must be .*, not "):
            DecodingSettings(**{row.name: value})


@rows_of(limits)
def test_the_server_takes_each(called: str, row: Setting) -> None:
    body = ChatBody.model_validate(
        {"model": "m", "messages": [{"role": "user", "content": "a"}], called: value_of(row)}
    )
    check(of_the_server(body, default=DecodingSettings(method="sbd")), row)
    schema = ChatBody.model_json_schema()["properties"][called]
    if row.name != "max_new_tokens":  # the server has a default of its own: the room that is left
        assert schema["description"] == row.help


@rows_of(arguments)
def test_the_harness_takes_each(called: str, row: Setting) -> None:
    if row.group == "point":
        found = of_the_harness({called: value_of(row)})
    else:
        found = request_settings(
            DecodingSettings(), {called: value_of(row), "do_sample": True}, default_max_gen_toks=256
        )
    check(found, row)


@rows_of(parameters)
def test_vllm_takes_each(called: str, row: Setting) -> None:
    params = SimpleNamespace(
        extra_args={called: value_of(row)}, top_k=0, top_p=1.0, repetition_penalty=1.0, logprobs=None
    )
    check(of_vllm(params), row)


def test_transformers_takes_each() -> None:
    assert AVAILABLE.keys() <= inspect.signature(sbd_generate).parameters.keys()


def test_hyperparameters_stand_beside_or_below() -> None:
    assert requested_settings({"gamma": "inf"}).sampler == EntropyBounded(math.inf)
    assert requested_settings({"sampler": "factor", "factor": 2}).sampler == Factor(2)
    assert requested_settings({"sampler": "factor", "sampler_options": {"factor": 2}}).sampler == Factor(2)
    assert requested_settings({"sampler": Factor(2)}).sampler == Factor(2)
    base = DecodingSettings(sampler=EntropyBounded(0.3, proxy="margin"), top_k=3)
    assert requested_settings({"gamma": 0.2}, base=base) == DecodingSettings(
        sampler=EntropyBounded(0.2, proxy="margin"), top_k=3
    )
    assert requested_settings({"gamma": None, "top_k": None}, base=base) == base


@pytest.mark.parametrize(
    ("requested", "said"),
    [
        ({"gamma": 1, "sampler_options": {"gamma": 1}}, "gamma is given more than once"),
        ({"sampler": "factor", "gamma": 1}, "sampler factor has no 'gamma'; it has factor"),
        ({"sampler": Factor(), "factor": 1}, "factor must be set in the sampler"),
        ({"tempertaure": 1}, "parameter 'tempertaure' is not known, did you mean 'temperature'.; there are method, "),
    ],
)
def test_what_can_not_be_requested(requested: dict[str, Any], said: str) -> None:
    with pytest.raises(ParameterError, match=said):
        requested_settings(requested)


def test_settings_can_be_hashed() -> None:
    """Equal settings have equal keys, however their values came; those that differ in one setting are different keys."""
    every = {
        name: value_of(row)
        for name, row in SETTINGS.items()
        if name not in ("sampler", "constraints", "min_new_tokens")
    }
    given = DecodingSettings(**every, sampler=Factor())
    assert hash(given) == hash(DecodingSettings(**every, sampler=Factor()))
    one_each = [DecodingSettings(**{name: value}) for name, value in every.items()]
    assert len({DecodingSettings(), given, *one_each, *one_each}) == 2 + len(every)
