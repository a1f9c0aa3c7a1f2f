"""The vLLM plugin where no vLLM is: what it takes from a request, what it refuses, and the overrides it writes."""

import json
import math
import tomllib
from dataclasses import replace
from enum import Enum
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from packaging.requirements import Requirement
from safetensors.torch import save_file
from transformers import PreTrainedTokenizerBase

from families import tiny_sbd
from setblock.decoding.samplers import EntropyBounded, Factor
from setblock.decoding.settings.resolve import with_calibration
from setblock.decoding.settings.table import DecodingSettings
from setblock.errors import ParameterError, SetBlockError
from setblock.model.loading.named import BUNDLED_MODEL
from setblock.model.protocol.sbd_config import CalibratedSetting, SBDModelConfig
from setblock_vllm import fields, hooks, vllm_api
from setblock_vllm.config import SetBlockConfig, overrides_for
from setblock_vllm.draft_text import read_draft_text
from setblock_vllm.parameters import Served, admitted, refuse_unsupported, settings_of
from setblock_vllm.plugin import STOCK, register
from setblock_vllm.scheduler import make_scheduler


def params(**fields: Any) -> SimpleNamespace:
    """What vLLM's `SamplingParams` are when a request says nothing."""
    neutral = {"extra_args": None, "top_k": 0, "top_p": 1.0, "n": 1, "logprobs": None, "logprob_token_ids": None}
    penalties = {"repetition_penalty": 1.0, "presence_penalty": 0.0, "frequency_penalty": 0.0}
    return SimpleNamespace(**(neutral | penalties | fields))


def requested(**extra: Any) -> Any:
    return settings_of(params(extra_args=extra))


def test_a_request_that_says_nothing_gets_the_defaults() -> None:
    settings = settings_of(params())
    assert (settings.method, settings.sampler, settings.block_size, settings.temperature) == ("exact", None, None, 0)
    assert settings_of(params(top_k=-1)).top_k == 0


def test_every_parameter_arrives() -> None:
    settings = settings_of(
        params(
            top_k=5,
            top_p=0.9,
            extra_args={
                "method": "exact",
                "gamma": 0.35,
                "block_size": 8,
                "prompt_lookup": 2,
                "temperature": 0.7,
                "min_p": 0.05,
                "seed": 11,
                "kv_transfer_params": {},
            },
        )
    )
    assert settings.sampler == EntropyBounded(0.35)
    assert (settings.method, settings.block_size, settings.prompt_lookup) == ("exact", 8, 2)
    assert (settings.temperature, settings.min_p, settings.seed) == (0.7, 0.05, 11)
    assert (settings.top_k, settings.top_p) == (5, 0.9)
    assert settings_of(params(repetition_penalty=1.3)).repetition_penalty == 1.3
    assert requested(logit_bias='{"17": -5}').logit_bias == requested(logit_bias={17: -5}).logit_bias == {17: -5.0}
    assert requested(sampler="factor", factor=0.5).sampler == Factor(0.5)
    assert requested(gamma=math.inf).sampler == requested(gamma="inf").sampler == EntropyBounded(math.inf)


@pytest.mark.parametrize(
    ("extra", "message"),
    [
        (
            {"gama": 0.1},
            "parameter 'gama' is not known, did you mean 'gamma'.; there are method, .*, and of sampler entropy-bounded gamma",
        ),
        ({"factor": 0.1}, "parameter 'factor' is not known; there are .*, and of sampler entropy-bounded gamma, proxy"),
        ({"gamma": -1}, "gamma must be at least 0, not -1"),
        ({"gamma": "low"}, "gamma of sampler entropy-bounded must be a number, not 'low'"),
        ({"sampler": "best"}, "sampler must be one of confidence-threshold, "),
        ({"sampler": ["factor"]}, r"sampler must be one of .*, not \['factor'\]"),
        ({"method": "fast"}, "method must be one of sbd, exact, ntp, not 'fast'"),
        ({"block_size": 0}, "block_size must be at least 1, not 0"),
        ({"block_size": 8.0}, "block_size must be a whole number, not 8.0"),
        ({"temperature": -1.0}, "temperature must be a finite number of at least 0, not -1.0"),
        ({"seed": "x"}, "seed must be a whole number, not 'x'"),
        ({"logit_bias": "17=1"}, "logit_bias must be JSON of token ids and numbers, as .*, not '17=1'"),
        ({"min_new_tokens": -1}, "min_new_tokens must be at least 0, not -1"),
    ],
)
def test_mistakes_are_named(extra: dict[str, Any], message: str) -> None:
    with pytest.raises(ParameterError, match=message):
        requested(**extra)


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"logprob_token_ids": [1]}, "logprob_token_ids must be left out"),
        ({"n": 2}, "n must be 1, not 2"),
        ({"frequency_penalty": 1.1}, r"frequency_penalty must be 0.0, not 1.1"),
        ({"presence_penalty": 0.5}, r"presence_penalty must be 0.0, not 0.5"),
    ],
)
def test_what_blocks_have_not_is_refused(fields: dict[str, Any], message: str) -> None:
    refuse_unsupported(params())
    with pytest.raises(ParameterError, match=message):
        refuse_unsupported(params(**fields))


def calibrated(method: str, **point: Any) -> CalibratedSetting:
    requested = {
        "method": method,
        "sampler": "entropy-bounded",
        "sampler_options": {"gamma": 0.3},
        "block_size": 8,
        **point,
    }
    return CalibratedSetting("sums", requested, "none lost", True, 4.0, 100, "abc")


def test_a_calibrated_setting_is_taken_as_everywhere() -> None:
    sbd_config = SBDModelConfig(mask_token_id=1, block_sizes=(8, 16), calibrations=(calibrated("sbd"),))
    served = Served(sbd_config, canvas_length=16)
    found = params(extra_args=admitted(params(extra_args={"method": "sbd", "seed": 3}), served))
    assert settings_of(found) == with_calibration(served, DecodingSettings(method="sbd", seed=3))
    assert settings_of(found).sampler == EntropyBounded(0.3)
    assert found.extra_args["diffusion_canvas_length"] == 16
    for own in ({}, {"method": "sbd", "gamma": 0.5}, {"method": "sbd", "block_size": 4}, {"method": "ntp"}):
        given = params(extra_args=own)
        assert settings_of(params(extra_args=admitted(given, served))) == settings_of(given)
    # What is too large for this server is not taken in part
    large = Served(replace(sbd_config, calibrations=(calibrated("sbd", block_size=32),)), canvas_length=16)
    assert admitted(params(extra_args={"method": "sbd"}), large) == {"method": "sbd"}
    assert admitted(params(), None) == {}


class Registry:
    """vLLM's, as far as a plugin sees it."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, problem: str | None) -> None:
        self.models: dict[str, str] = {}
        self.configs: dict[str, Any] = {}
        registry = SimpleNamespace(register_model=self.models.__setitem__)
        monkeypatch.setitem(vars(vllm_api), "ModelRegistry", registry)
        monkeypatch.setitem(vars(vllm_api), "MODELS_CONFIG_MAP", self.configs)
        monkeypatch.setattr(hooks, "problem", lambda: problem)
        register()


def test_the_distribution_requires_what_is_supported() -> None:
    project = tomllib.loads((Path(__file__).parents[1] / "pyproject.toml").read_text())["project"]
    (wanted,) = [each for each in map(Requirement, project["dependencies"]) if each.name == "vllm"]
    assert wanted.specifier == vllm_api.SUPPORTED


def test_the_plugin_registers_every_architecture(monkeypatch: pytest.MonkeyPatch) -> None:
    registry = Registry(monkeypatch, None)
    names = [f"SetBlock{name}" for name in STOCK]
    assert registry.models == {name: f"setblock_vllm.plugin:{name}" for name in names}
    assert registry.configs == dict.fromkeys(names, SetBlockConfig)


def test_where_vllm_has_changed_nothing_is_registered(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    registry = Registry(monkeypatch, "needs vLLM >=0.32.0, and 0.40.0 has changed: it has no hook")
    assert (registry.models, registry.configs) == ({}, {})
    (line,) = [record.getMessage() for record in caplog.records]
    assert "0.40.0 has changed: it has no hook; pip install 'vllm" in line
    assert "setblock serve" in line


def vllm_config(**changes: Any) -> Any:
    sbd_config = {"mask_token_id": 1, "block_sizes": [4, 8], "logit_shift": False, "version": 1}
    hf_config = SimpleNamespace(
        setblock=sbd_config, canvas_length=8, get_text_config=lambda: SimpleNamespace(vocab_size=9)
    )
    for name in ("setblock", "canvas_length", "sbd_adapter", "sbd_draft_text"):
        if name in changes:
            setattr(hf_config, name, changes.pop(name))
    window, longest = changes.pop("window", None), changes.pop("max_model_len", 128)
    model = SimpleNamespace(
        model=str(Path(__file__).parent),
        architecture="SetBlockLlamaForCausalLM",
        hf_config=hf_config,
        override_generation_config={"top_p": 0.5},
        logits_processors=None,
        max_model_len=longest,
        get_sliding_window=lambda: window,
        get_head_size=lambda: 64,
    )
    parallel = SimpleNamespace(
        pipeline_parallel_size=changes.pop("pipeline_parallel_size", 1),
    )
    backend = changes.pop("backend", None)  # of `Backends`
    attention = SimpleNamespace(backend=backend, use_non_causal=False)
    scheduler = SimpleNamespace(scheduler_cls=changes.pop("scheduler_cls", None))
    usual: dict[str, Any] = {
        "use_v2_model_runner": True,
        "additional_config": {},
        "speculative_config": None,
        "diffusion_config": None,
    }
    return SimpleNamespace(
        model_config=model,
        parallel_config=parallel,
        attention_config=attention,
        scheduler_config=scheduler,
        **(usual | changes),
    )


class Backends(Enum):
    """vLLM's."""

    TRITON_ATTN, FLASH_ATTN, CPU_ATTN, FLASHINFER = range(4)


def platform(name: str) -> SimpleNamespace:
    return SimpleNamespace(
        is_cpu=lambda: name == "cpu", is_cuda=lambda: name == "cuda", is_cuda_alike=lambda: name in ("cuda", "rocm")
    )


@pytest.fixture
def some_vllm(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(vars(vllm_api), "DiffusionConfig", SimpleNamespace)
    monkeypatch.setitem(vars(vllm_api), "current_platform", platform("cpu"))
    monkeypatch.setitem(vars(vllm_api), "AttentionBackendEnum", Backends)
    monkeypatch.setattr(Served, "here", None)
    monkeypatch.setattr(fields, "install", lambda: None)


@pytest.mark.usefixtures("some_vllm")
def test_the_configuration_becomes_that_of_a_block_decoder() -> None:
    config = vllm_config()
    SetBlockConfig.verify_and_update_config(config)
    assert config.diffusion_config.canvas_length == 16, "room for a block and for the one that is committed"
    assert config.attention_config.use_non_causal
    assert Served.here is not None
    assert (Served.here.sbd_config.block_sizes, Served.here.canvas_length) == ((4, 8), 8)
    assert config.model_config.logits_processors == ["setblock_vllm.admission:BlockAdmission"]
    overrides = config.model_config.override_generation_config
    assert overrides["temperature"] == 0.0  # block decoding has its own defaults, and not a checkpoint's
    assert overrides["top_p"] == 0.5  # what the operator sets stays


@pytest.mark.usefixtures("some_vllm")
def test_a_request_is_fed_two_of_its_blocks() -> None:
    """That which it commits, and the next one. A request's block size is that of `generate`."""
    SetBlockConfig.verify_and_update_config(vllm_config())
    for extra, width in (({"block_size": 4}, 8), ({"method": "ntp"}, 1)):
        assert admitted(params(extra_args=extra), Served.here)["diffusion_canvas_length"] == width
    assert "diffusion_canvas_length" not in admitted(params(), Served.here)


@pytest.mark.usefixtures("some_vllm")
@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"setblock": None}, "never trained for block decoding"),
        ({"canvas_length": None}, "must set canvas_length"),
        ({"use_v2_model_runner": False}, "VLLM_USE_V2_MODEL_RUNNER=1"),
        ({"pipeline_parallel_size": 2}, "pipeline parallelism: use --tensor-parallel-size"),
        ({"speculative_config": object()}, "--speculative-config"),
        ({"backend": Backends.FLASHINFER}, "FLASHINFER can't .* use TRITON_ATTN, FLASH_ATTN, CPU_ATTN, or name none"),
        ({"window": 64}, "--max-model-len 64"),
        ({"sbd_adapter": "/nowhere/to be found"}, "must be the folder of an adapter, not '/nowhere/to be found'"),
        ({"sbd_draft_text": "nowhere"}, "must be a file of texts, not 'nowhere'"),
        ({"sbd_draft_text": __file__}, "test_plugin.py, line 1 is not JSON"),
        ({"additional_config": {"setblock_pass_tokens": "many"}}, "must be a whole number of at least 1, not 'many'"),
        ({"additional_config": {"setblock_pass_tokens": True}}, "must be a whole number of at least 1, not True"),
        ({"additional_config": {"setblock_cuda_graphs": "yes"}}, "must be true or false, not 'yes'"),
        ({"additional_config": {"setblock_cuda_graphs": True}}, "needs a GPU: leave it out"),
    ],
)
def test_what_can_not_be_served_is_refused_with_what_to_do(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(SetBlockError, match=message):
        SetBlockConfig.verify_and_update_config(vllm_config(**changes))


@pytest.fixture
def adapter(tmp_path: Path) -> Path:
    """A folder with an adapter of one layer."""
    folder = tmp_path / "adapter"
    folder.mkdir()
    facts = {"mask_token_id": 1, "block_sizes": [4], "noisy_adapter": True, "version": 1}
    (folder / "facts.json").write_text(json.dumps(facts))
    (folder / "adapter_config.json").write_text(json.dumps({"peft_type": "LORA", "r": 2, "lora_alpha": 4}))
    weights = {f"base_model.model.lm_head.lora_{part}.weight": torch.ones(2, 2) for part in "AB"}
    save_file(weights, folder / "adapter_model.safetensors")
    return folder


@pytest.mark.usefixtures("some_vllm")
def test_an_adapter_of_a_base_model_is_found_from_any_folder(adapter: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its SBD config holds, and a digest tells forms apart, by which vLLM keeps compiled code."""
    monkeypatch.chdir(adapter.parent)
    found = []
    for rank in (2, 3):
        (adapter / "adapter_config.json").write_text(json.dumps({"peft_type": "LORA", "r": rank, "lora_alpha": 4}))
        config = vllm_config(setblock=None, sbd_adapter="adapter")
        SetBlockConfig.verify_and_update_config(config)
        found.append(vars(config.model_config.hf_config))
    assert [each["sbd_adapter"] for each in found] == [str(adapter)] * 2
    assert found[0]["sbd_adapter_form"] != found[1]["sbd_adapter_form"]
    assert Served.here is not None
    assert (Served.here.sbd_config.block_sizes, Served.here.sbd_config.noisy_adapter) == ((4,), True)


@pytest.mark.usefixtures("some_vllm")
@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"lora_config": object()}, "does not work with --enable-lora"),
        (
            {"setblock": {"mask_token_id": 1, "block_sizes": [4], "noisy_adapter": True, "version": 1}},
            "has an adapter on its future block already: leave out sbd_adapter",
        ),
    ],
)
def test_what_does_not_go_with_an_adapter_is_refused(changes: dict[str, Any], message: str, adapter: Path) -> None:
    with pytest.raises(SetBlockError, match=message):
        SetBlockConfig.verify_and_update_config(
            vllm_config(**{"setblock": None, "sbd_adapter": str(adapter)} | changes)
        )


@pytest.mark.usefixtures("some_vllm")
def test_a_broken_adapter_is_refused_before_any_process_starts(adapter: Path) -> None:
    (adapter / "adapter_model.safetensors").write_bytes(b"none")
    with pytest.raises(SetBlockError, match="must hold an adapter"):
        SetBlockConfig.verify_and_update_config(vllm_config(setblock=None, sbd_adapter=str(adapter)))


@pytest.mark.usefixtures("some_vllm")
def test_a_draft_text_is_that_of_the_checkpoint_or_the_one_named(
    tokenizer: PreTrainedTokenizerBase, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(vars(vllm_api), "cached_tokenizer_from_config", lambda model_config: tokenizer)
    monkeypatch.chdir(tmp_path)
    texts = ["one two three four five", "six seven eight nine ten eleven twelve"]
    for name, text in zip(("draft_text.jsonl", "other.jsonl"), texts, strict=True):
        Path(name).write_text(json.dumps(text))
    for named, text in ((None, texts[0]), ("other.jsonl", texts[1])):
        model_config = vllm_config(**({} if named is None else {"sbd_draft_text": named})).model_config
        model_config.model, model_config.get_vocab_size = str(tmp_path), lambda: len(tokenizer)
        found = read_draft_text(model_config)
        assert found is not None
        assert tokenizer.decode(found.token_ids, skip_special_tokens=True) == text
        assert getattr(model_config.hf_config, "sbd_draft_text", None) == (named and str(tmp_path / named))
    Path("draft_text.jsonl").unlink()
    assert read_draft_text(SimpleNamespace(model=str(tmp_path), hf_config=SimpleNamespace())) is None


def test_overrides_name_the_adapter(adapter: Path, tokenizer: PreTrainedTokenizerBase, tmp_path: Path) -> None:
    sbd = tiny_sbd("llama", tokenizer)
    sbd.model.config.setblock = None
    sbd.model.save_pretrained(tmp_path / "base")
    tokenizer.save_pretrained(tmp_path / "base")
    overrides = overrides_for(tmp_path / "base", adapter=adapter)
    assert (overrides["canvas_length"], overrides["sbd_adapter"]) == (4, str(adapter))
    assert overrides_for(tmp_path / "base", adapter=adapter, draft_text="it") == overrides | {"sbd_draft_text": "it"}
    (adapter / "facts.json").unlink()  # as UNO adapters of others are
    with pytest.raises(SetBlockError, match="records no block size: give block_size"):
        overrides_for(tmp_path / "base", adapter=adapter)
    assert overrides_for(tmp_path / "base", adapter=adapter, block_size=6)["canvas_length"] == 6


@pytest.mark.usefixtures("some_vllm")
@pytest.mark.parametrize(
    ("name", "has_flash", "requested", "found"),
    [
        ("cpu", False, None, None),
        ("cuda", False, None, Backends.TRITON_ATTN),  # a Hopper GPU without FlashAttention 4
        ("cuda", True, None, Backends.FLASH_ATTN),
        ("cuda", True, Backends.TRITON_ATTN, Backends.TRITON_ATTN),
        ("cuda", True, Backends.FLASH_ATTN, Backends.FLASH_ATTN),
        ("rocm", False, None, Backends.TRITON_ATTN),
    ],
)
def test_attention_takes_a_flag_by_sequence(
    name: str, has_flash: bool, requested: Any, found: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(vars(vllm_api), "current_platform", platform(name))
    monkeypatch.setitem(vars(vllm_api), "is_fa_version_supported", lambda version: has_flash and version == 4)
    config = vllm_config(backend=requested)
    SetBlockConfig.verify_and_update_config(config)
    assert config.attention_config.backend == found


@pytest.mark.usefixtures("some_vllm")
def test_flash_attention_of_another_version_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(vars(vllm_api), "current_platform", platform("cuda"))
    monkeypatch.setitem(vars(vllm_api), "is_fa_version_supported", lambda version: version < 4)
    with pytest.raises(SetBlockError, match=r"need FlashAttention 4.* use TRITON_ATTN"):
        SetBlockConfig.verify_and_update_config(vllm_config(backend=Backends.FLASH_ATTN))


@pytest.mark.parametrize("own", [None, "some.Scheduler"])
@pytest.mark.usefixtures("some_vllm")
def test_an_operators_own_scheduler_stays(own: str | None) -> None:
    config = vllm_config(scheduler_cls=own)
    SetBlockConfig.verify_and_update_config(config)
    assert config.scheduler_config.scheduler_cls == (own or "setblock_vllm.scheduler.make_scheduler")


@pytest.mark.parametrize("is_async", [False, True])
def test_requests_share_a_pass(is_async: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """Exact drafts get shorter, down to a token; blocks of method `sbd` stay whole; and alone each has all that it may have."""

    class Scheduler:
        def __init__(self, vllm_config: Any, log_stats: bool) -> None:
            self.running: list[Any] = []

        def schedule(self, throttle_prefills: bool = False) -> list[int]:
            return [len(each.spec_token_ids) for each in self.running]

    name = "DiffusionAsyncScheduler" if is_async else "DiffusionScheduler"
    monkeypatch.setitem(vars(vllm_api), name, Scheduler)
    scheduling = SimpleNamespace(async_scheduling=is_async)
    config = SimpleNamespace(scheduler_config=scheduling, additional_config={"setblock_pass_tokens": 64})
    scheduler = make_scheduler(vllm_config=config, log_stats=True)
    assert isinstance(scheduler, Scheduler)

    def fed(*of_each: tuple[str, int]) -> list[int]:
        scheduler.running = [
            SimpleNamespace(
                spec_token_ids=[-1] * width,
                sampling_params=params(extra_args={"method": method, "diffusion_canvas_length": width}),
            )
            for method, width in of_each
        ]
        scheduled: list[int] = scheduler.schedule()
        return scheduled

    assert fed() == []
    assert fed(("exact", 32)) == fed(("sbd", 32)) == [32]
    assert fed(*[("exact", 32)] * 2) == [32] * 2
    assert fed(*[("exact", 32)] * 8) == [8] * 8
    assert fed(*[("exact", 32)] * 100) == [1] * 100
    assert fed(*[("sbd", 32), ("exact", 32), ("ntp", 1), ("exact", 4)] * 2) == [16, 11, 1, 4] * 2
    assert fed(("exact", 32), *[("ntp", 1)] * 40) == [24, *[1] * 40]
    assert fed(("ntp", 1), ("exact", 0)) == [1, 0]


def test_the_served_block_size_is_the_callers() -> None:
    assert overrides_for(BUNDLED_MODEL) == {"architectures": ["SetBlockLlamaForCausalLM"], "canvas_length": 16}
    assert overrides_for(BUNDLED_MODEL, block_size=8)["canvas_length"] == 8


@pytest.mark.parametrize(
    ("model", "block_size", "message"),
    [(BUNDLED_MODEL, 0, "block_size must be at least 1, not 0"), ("/nowhere/to be found", None, "no such folder")],
)
def test_wrong_overrides_are_refused(model: str | Path, block_size: int | None, message: str) -> None:
    with pytest.raises(SetBlockError, match=message):
        overrides_for(model, block_size=block_size)


@pytest.mark.parametrize(("family", "message"), [("gpt2", "vLLM can't decode GPT2LMHeadModel in blocks, only Llama")])
def test_other_architectures_are_refused(
    family: str, message: str, tokenizer: PreTrainedTokenizerBase, tmp_path: Any
) -> None:
    tiny_sbd(family, tokenizer).save(tmp_path)
    with pytest.raises(SetBlockError, match=message):
        overrides_for(tmp_path)


def test_an_untrained_checkpoint_is_refused(tokenizer: PreTrainedTokenizerBase, tmp_path: Any) -> None:
    sbd = tiny_sbd("llama", tokenizer)
    sbd.model.config.setblock = None
    sbd.model.save_pretrained(tmp_path)
    tokenizer.save_pretrained(tmp_path)
    with pytest.raises(SetBlockError, match=r"never trained for block decoding.*setblock train"):
        overrides_for(tmp_path)


def test_empty_passes_have_empty_logits() -> None:
    from setblock_vllm.plugin import SetBlockDecoding

    class Model(SetBlockDecoding):
        config = SimpleNamespace(vocab_size=7)

    assert Model().compute_logits(torch.zeros((0, 3))).shape == (0, 7)
