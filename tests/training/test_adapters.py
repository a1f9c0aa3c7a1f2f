"""Adapters: what they leave alone, what they change, and that a saved one is the trained one."""

import warnings
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import torch
import yaml
from safetensors.torch import load_file
from torch import Tensor
from transformers import AutoModelForCausalLM, PreTrainedTokenizerBase

from families import tiny_model
from naive import full_logits, naive_decode
from setblock.decoding.samplers import EntropyBounded
from setblock.decoding.settings.table import DecodingSettings
from setblock.engine.generate import generate_batch
from setblock.errors import SetBlockError
from setblock.masks import CLEAN
from setblock.model.adapter.adapter import ADAPTER_FOLDER, Gate
from setblock.model.loading.loading import load
from setblock.model.protocol.sbd_config import SBDModelConfig
from setblock.model.sbd_model import SBDModel
from setblock.training.inputs.collator import SBDCollator
from setblock.training.inputs.doubled import TrainingInputs
from setblock.training.recipe import load_recipe
from setblock.training.run.checkpoints import newest_checkpoint
from setblock.training.run.train import train
from setblock.training.trainer.metrics import read_metrics
from setblock.training.trainer.trainer import SBDTrainer

pytest.importorskip("peft")

PROMPTS = ["Tom has 12 apples.", "Ana reads"]
STEPS = 4


@pytest.fixture(scope="module", params=["llama", "gpt2"])
def base(
    request: pytest.FixtureRequest, trained_tokenizer: PreTrainedTokenizerBase, tmp_path_factory: pytest.TempPathFactory
) -> Path:
    """A checkpoint without a mask token: tied embeddings and linear layers, or GPT-2's own kind of layer."""
    folder = tmp_path_factory.mktemp("base")
    model = tiny_model(
        request.param,
        vocab_size=len(trained_tokenizer),
        tie_word_embeddings=True,
        initializer_range=0.2,
        **({"n_positions": 512} if request.param == "gpt2" else {"max_position_embeddings": 512}),
    )
    SBDModel(model, trained_tokenizer).save(folder)
    return folder


def recipe_of(base: Path, folder: Path, *, training: dict[str, Any] | None = None, **adapter: Any) -> Path:
    content = {
        "model": {"path": str(base)},
        "data": {"source": "word-problems", "documents": 8, "evaluation": {"split": "validation", "documents": 2}},
        "adapter": {"r": 4, "alpha": 16} | adapter,
        "training": {
            "output_dir": str(folder / "model"),
            "block_sizes": [4],
            "max_steps": STEPS,
            "per_device_train_batch_size": 2,
            "learning_rate": 3e-2,
            "lr_scheduler_type": "constant",
            "use_cpu": True,
            "logging_steps": 1,
            "save_steps": 2,
            "report_to": "none",
            "disable_tqdm": True,
        }
        | (training or {}),
    }
    path = folder / "recipe.yaml"
    path.write_text(yaml.safe_dump(content))
    return path


def trained(base: Path, folder: Path, **adapter: Any) -> Path:
    return train(*load_recipe(recipe_of(base, folder, **adapter)))


@dataclass
class Watched:
    """A run: what it trained, the inputs of each step, and the tokens that each gated layer of each pass changes."""

    folder: Path
    model: Any = None
    inputs: list[TrainingInputs] = field(default_factory=list)
    acted: list[Tensor] = field(default_factory=list)


def watched(base: Path, folder: Path, *, attention: str = "sdpa", **adapter: Any) -> Watched:
    found = Watched(folder / "model")
    made, gated = SBDCollator.inputs, Gate.gated

    def inputs(self: SBDCollator, rows: Any, **kwargs: Any) -> Any:
        found.inputs.append(made(self, rows, **kwargs))
        return found.inputs[-1]

    def act(self: Gate, update: Tensor) -> Tensor:
        found.acted.append(gated(self, torch.ones_like(update)).bool().all(dim=-1))
        return gated(self, update)

    def callbacks(trainer: SBDTrainer, sbd: SBDModel) -> list[Any]:
        found.model = trainer.model
        return []

    path = recipe_of(base, folder, keep_adapter=True, **adapter)
    recipe, args = load_recipe(path, overrides={"model.attn_implementation": attention, "data.evaluation": None})
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(SBDCollator, "inputs", inputs)
        patch.setattr(Gate, "gated", act)
        train(recipe, args, callbacks=callbacks)
    return found


Runs = Callable[[bool], Watched]


@pytest.fixture(scope="module")
def run(base: Path, tmp_path_factory: pytest.TempPathFactory) -> Runs:
    """A run of an adapter on noisy tokens only, or on all, made once."""
    return cache(lambda only_noisy: watched(base, tmp_path_factory.mktemp("run"), only_noisy=only_noisy))


@pytest.fixture
def noisy(run: Runs) -> Watched:
    return run(True)


def plain_logits(folder: Path, tokenizer: PreTrainedTokenizerBase) -> Tensor:
    """[B, T, V] of plain Transformers."""
    model = AutoModelForCausalLM.from_pretrained(folder)
    with torch.inference_mode():
        return model(torch.tensor([tokenizer(PROMPTS[0]).input_ids])).logits


ONE_PAIR = pytest.mark.parametrize(
    ("base", "only_noisy"),
    [("llama", True), *(pytest.param(*pair, marks=pytest.mark.nightly) for pair in [("gpt2", True), ("llama", False)])],
    indirect=["base"],
)
"""A kind of layer and of adapter; nightly, the others."""

ONE_BASE = pytest.mark.parametrize("base", ["llama", pytest.param("gpt2", marks=pytest.mark.nightly)], indirect=True)


@ONE_PAIR
def test_an_adapter_trains_under_autocast(base: Path, tmp_path: Path, only_noisy: bool) -> None:
    """Half precision must reach every layer of PEFT's, that of the mask token's embedding among them."""
    folder = trained(base, tmp_path, training={"bf16": True}, only_noisy=only_noisy)
    losses = [line["matp_loss"] for line in read_metrics(folder) if "matp_loss" in line]
    assert len(losses) == STEPS
    assert losses[-1] < 0.95 * losses[0]


def test_a_merged_adapter_computes_what_the_unmerged_one_did(
    base: Path, run: Runs, trained_tokenizer: PreTrainedTokenizerBase
) -> None:
    folder = run(False).folder
    sbd = load(folder)
    assert sbd.sbd_config is not None
    tokens = torch.tensor([[*trained_tokenizer(PROMPTS[0]).input_ids, sbd.sbd_config.mask_token_id]])
    with torch.inference_mode():
        unmerged, merged = run(False).model.eval()(input_ids=tokens).logits, sbd.model(tokens).logits
        before = load_quietly(base).model(tokens[:, :-1]).logits
    torch.testing.assert_close(merged, unmerged, atol=1e-4, rtol=1e-4)
    assert (merged[:, :-1, : before.shape[-1]] - before).abs().max() > 0.1, "nothing was learned"
    assert (folder / ADAPTER_FOLDER / "adapter_model.safetensors").is_file()
    assert sbd.gate is None
    assert not any("lora" in name for name, _ in sbd.model.named_modules())
    torch.testing.assert_close(plain_logits(folder, trained_tokenizer), merged[:, :-1], atol=1e-5, rtol=1e-5)


def load_quietly(folder: Path) -> SBDModel:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return load(folder)


def test_next_token_decoding_stays_the_base_models_to_the_bit(
    base: Path, noisy: Watched, trained_tokenizer: PreTrainedTokenizerBase
) -> None:
    """Of the checkpoint under this package and under plain Transformers; but for the mask token, which is new."""
    adapted, before = load(noisy.folder), load_quietly(base)
    assert adapted.gate is not None
    tokens = torch.tensor([trained_tokenizer(PROMPTS[0]).input_ids])
    assert adapted.sbd_config is not None
    others = torch.arange(before.model.config.vocab_size) != adapted.sbd_config.mask_token_id
    with torch.inference_mode():
        expected = before.model(tokens).logits[..., others]
        ours_now = adapted.model(tokens).logits
        assert torch.equal(ours_now[..., : len(others)][..., others], expected)
    assert torch.equal(plain_logits(noisy.folder, trained_tokenizer), ours_now), (
        "the head's row of the mask token is trained"
    )
    settings = DecodingSettings(method="ntp", max_new_tokens=20)
    ours, theirs = (generate_batch(m, PROMPTS, settings=settings, raw=True) for m in (adapted, before))
    assert [answer.token_ids for answer in ours] == [answer.token_ids for answer in theirs]


def test_the_cache_and_the_causal_logits_of_block_decoding_are_the_base_models(noisy: Watched) -> None:
    """Exact mode's text is next-token decoding's, which only holds if what it commits is the base model's."""
    adapted = load(noisy.folder)
    how = [DecodingSettings(method=method, block_size=4, max_new_tokens=20) for method in ("exact", "ntp")]
    exact, ntp = (generate_batch(adapted, PROMPTS, settings=each, raw=True) for each in how)
    assert [answer.token_ids for answer in exact] == [answer.token_ids for answer in ntp]


@ONE_BASE
def test_unos_form_trains_no_row_and_adds_no_token(
    base: Path, tmp_path: Path, trained_tokenizer: PreTrainedTokenizerBase
) -> None:
    """The weights and the tokenizer stay as they were, the adapter is plain LoRA, and the SBD config says how it is decoded."""
    form = {"noise": "uniform", "block_attention": "causal", "full_mask_share": 1.0, "logit_shift": True}
    folder = trained(base, tmp_path, training=form, only_noisy=True)
    sbd, before = load(folder), load_quietly(base)
    assert sbd.sbd_config == SBDModelConfig(
        None, (4,), True, True, noisy_adapter=True, noise_vocab_size=before.vocab_size, causal_block=True
    )
    assert (len(sbd.tokenizer), sbd.vocab_size) == (len(trained_tokenizer),) * 2
    assert torch.equal(plain_logits(folder, trained_tokenizer), plain_logits(base, trained_tokenizer))
    weights = load_file(folder / ADAPTER_FOLDER / "adapter_model.safetensors")
    assert weights
    assert all("lora_A" in name or "lora_B" in name for name in weights)
    losses = [line["matp_loss"] for line in read_metrics(folder) if "matp_loss" in line]
    assert losses[-1] < 0.95 * losses[0]


def test_block_decoding_uses_the_adapter_as_the_naive_twin_does(
    noisy: Watched, trained_tokenizer: PreTrainedTokenizerBase
) -> None:
    adapted, closed = load(noisy.folder), load(noisy.folder)
    assert adapted.gate is not None
    delattr(closed.model, "_setblock_gate")  # what decoding would be if the adapter were left out
    sampler = EntropyBounded(gamma=1.0)
    settings = DecodingSettings(method="sbd", block_size=4, max_new_tokens=24, sampler=sampler)
    fast = generate_batch(adapted, PROMPTS, settings=settings, raw=True)
    for text, answer in zip(PROMPTS, fast, strict=True):
        prompt = trained_tokenizer(text).input_ids
        tokens, _ = naive_decode(adapted, prompt, settings, sampler=sampler, forward=full_logits)
        assert list(answer.token_ids) == tokens
    assert [a.token_ids for a in fast] != [
        a.token_ids for a in generate_batch(closed, PROMPTS, settings=settings, raw=True)
    ]


def test_a_model_with_such_an_adapter_is_distinguished_from_its_base(noisy: Watched, tmp_path: Path) -> None:
    adapted = load(noisy.folder)
    for what, action in (
        ("saved", lambda: adapted.save(tmp_path / "copy")),
        ("trained", lambda: adapted.prepare_for_training(block_sizes=[4], logit_shift=False)),
    ):
        with pytest.raises(SetBlockError, match=f"can't be {what} again: take its base model"):
            action()
    with pytest.raises(SetBlockError, match="can't be quantised"):
        load(noisy.folder, quantization="int8")
    alone = AutoModelForCausalLM.from_pretrained(noisy.folder)
    with pytest.raises(SetBlockError, match="loaded without its adapter"):
        SBDModel(alone, adapted.tokenizer, sbd_config=adapted.sbd_config)


@ONE_PAIR
def test_an_interrupted_run_ends_in_the_adapter_of_one_that_was_not(
    base: Path, run: Runs, tmp_path: Path, only_noisy: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    options = {"only_noisy": only_noisy, "keep_adapter": True}
    whole = run(only_noisy).folder
    step = SBDTrainer.training_step

    def interrupted(self: SBDTrainer, *args: Any, **kwargs: Any) -> Any:
        if self.state.global_step == 3:
            raise KeyboardInterrupt
        return step(self, *args, **kwargs)

    with monkeypatch.context() as patched:
        patched.setattr(SBDTrainer, "training_step", interrupted)
        with pytest.raises(KeyboardInterrupt):
            trained(base, tmp_path, **options)
    checkpoint = newest_checkpoint(tmp_path / "model")
    assert checkpoint is not None
    assert checkpoint.name == "checkpoint-2"
    assert not list(checkpoint.glob("model*"))
    weights = load_file(checkpoint / "adapter_model.safetensors")
    assert all("lora_" in name or "trainable_tokens" in name for name in weights), "frozen weights are saved"
    states = torch.load(checkpoint / "optimizer.pt", weights_only=True)["state"]
    momenta = sum(each.numel() for state in states.values() for each in state.values() if each.ndim)
    assert momenta == 2 * sum(weight.numel() for weight in weights.values())
    broken = trained(base, tmp_path, **options)
    for name in ("model.safetensors", f"{ADAPTER_FOLDER}/adapter_model.safetensors"):
        assert (broken / name).read_bytes() == (whole / name).read_bytes(), name


def check_where_it_acted(run: Watched, *, clean_apart: bool) -> None:
    """Seen from where it matters: in every pass of every step, which tokens the adapter's layers change.

    Where the clean half was run by itself, without the adapter, these passes have no clean tokens at all.
    """
    assert len(run.inputs) == STEPS
    layers, rest = divmod(len(run.acted), STEPS)
    assert layers > 1
    assert not rest
    for step, each in enumerate(run.inputs):
        is_noisy = each.block_ids != CLEAN
        if clean_apart:
            is_noisy = is_noisy[:, each.columns("noisy")[0] :]
        for tokens in run.acted[step * layers : (step + 1) * layers]:
            assert torch.equal(tokens.view(is_noisy.shape), is_noisy)


def test_the_adapter_acts_on_the_noisy_half_of_a_training_pass(noisy: Watched) -> None:
    check_where_it_acted(noisy, clean_apart=True)


@ONE_BASE
def test_the_adapter_acts_on_the_noisy_half_where_both_halves_are_one_pass(base: Path, tmp_path: Path) -> None:
    check_where_it_acted(watched(base, tmp_path, attention="eager", only_noisy=True), clean_apart=False)


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        ({"adapter.r": 0}, "adapter.r must be at least 1, not 0"),
        ({"adapter.alpha": 0}, "adapter.alpha must be at least 1, not 0"),
        ({"adapter.dropout": 1.0}, "adapter.dropout must be below 1, not 1.0"),
        ({"adapter.rank": 8}, "unknown key 'adapter.rank'"),
        ({"adapter.only_noisy": True, "training.objective": "ntp"}, "adapter.only_noisy trains nothing"),
        ({"adapter": None, "model.quantization": "nf4"}, "model.quantization needs an adapter"),
        ({"model.quantization": "int8"}, "model.quantization must be 'nf4', not 'int8'"),
        (
            {"model.path": None, "model.config": {"model_type": "llama"}, "model.vocab_size": 300},
            "adapter needs model.path",
        ),
    ],
)
def test_what_is_not_valid_or_does_not_go_together(tmp_path: Path, overrides: dict[str, Any], message: str) -> None:
    with pytest.raises(SetBlockError, match=message):
        load_recipe(recipe_of(tmp_path / "base", tmp_path), overrides=overrides)


def test_layers_that_are_not_there(base: Path, tmp_path: Path) -> None:
    with pytest.raises(SetBlockError, match=r"adapter: Target modules .*nowhere.* not found") as refusal:
        trained(base, tmp_path, target_modules=["nowhere"])
    assert "\n" not in str(refusal.value)


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
def test_four_bits_and_flex_attention_need_a_gpu(base: Path, tmp_path: Path) -> None:
    for overrides, message in (
        ({"model.quantization": "nf4"}, "quantisation nf4 needs a GPU"),
        ({"model.attn_implementation": "flex_attention"}, "flex_attention trains on a GPU only"),
    ):
        with pytest.raises(SetBlockError, match=message):
            train(*load_recipe(recipe_of(base, tmp_path), overrides=overrides))
