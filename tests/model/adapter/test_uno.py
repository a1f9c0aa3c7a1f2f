"""UNO adapters: what is exported is what PEFT reads, and what is loaded decodes as a plain two-pass UNO does."""

import itertools
import json
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers import AutoModelForCausalLM, PreTrainedTokenizerBase

from families import save_with_random_adapter, tiny_sbd
from naive import columns_of
from setblock.decoding.samplers import ConfidenceThreshold
from setblock.decoding.settings.table import DecodingSettings
from setblock.decoding.step.choice import choose_tokens, draws_of, random_tokens
from setblock.engine.generate import generate_batch
from setblock.errors import SetBlockError
from setblock.model.adapter.adapter import ADAPTER_FOLDER, quiet_peft
from setblock.model.adapter.files import write_adapter
from setblock.model.loading.loading import load
from setblock.model.protocol.sbd_config import SBDModelConfig
from setblock.model.sbd_model import SBDModel

pytestmark = pytest.mark.usefixtures("longest_drafts")

peft = pytest.importorskip("peft")

UNO: dict[str, Any] = {"noise": "uniform", "causal_block": True, "logit_shift": True, "noisy_adapter": True}


@pytest.fixture
def folder(tmp_path: Path, tokenizer: PreTrainedTokenizerBase) -> Path:
    """Holds `base`, without an SBD config; and `model`, the same with an adapter in UNO's form."""
    sbd = tiny_sbd("llama", tokenizer, mode="shifted", initializer_range=0.2)
    sbd.sbd_config = None
    sbd.model.config.setblock = None
    SBDModel(sbd.model, tokenizer).save(tmp_path / "base")
    sbd.prepare_for_training(block_sizes=[4], **UNO)
    save_with_random_adapter(sbd, tmp_path / "model", alpha=64, std=0.1)
    shutil.copytree(tmp_path / "model" / ADAPTER_FOLDER, tmp_path / "trained")
    return tmp_path


def by_peft(base: Path, adapter: Path) -> Any:
    with quiet_peft():
        return peft.PeftModel.from_pretrained(AutoModelForCausalLM.from_pretrained(base), adapter)


def test_an_exported_adapter_comes_back_equal_through_peft(folder: Path) -> None:
    sbd = load(folder / "model")
    write_adapter(folder / "model" / ADAPTER_FOLDER, sbd.sbd_config, folder / "uno")
    ours = load_file(folder / "model" / ADAPTER_FOLDER / "adapter_model.safetensors")
    written = load_file(folder / "uno" / "adapter_model.safetensors")
    assert written.keys() == ours.keys()
    for name, weight in written.items():
        assert weight.dtype == torch.bfloat16
        assert torch.equal(weight, ours[name].bfloat16()), name
    config = json.loads((folder / "uno" / "adapter_config.json").read_text())
    assert (config["r"], config["lora_alpha"], config["peft_type"]) == (4, 64, "LORA")
    projections = ["down_proj", "gate_proj", "k_proj", "o_proj", "q_proj", "up_proj", "v_proj"]
    assert config["target_modules"] == projections
    wrapped = by_peft(folder / "base", folder / "uno")
    found = peft.get_peft_model_state_dict(wrapped)
    assert found.keys() == ours.keys()
    assert all(torch.equal(found[name].float(), weight.bfloat16().float()) for name, weight in ours.items())
    layers = [each for each in wrapped.modules() if isinstance(each, peft.tuners.lora.LoraLayer)]
    assert len(layers) == 7 * sbd.model.config.num_hidden_layers
    assert {each.scaling["default"] for each in layers} == {16.0}
    with pytest.raises(SetBlockError, match="exists already"):
        write_adapter(folder / "model" / ADAPTER_FOLDER, sbd.sbd_config, folder / "uno")


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"noise_vocab_size": None, "mask_token_id": 3}, "needs training.noise uniform$"),
        ({"causal_block": False}, "needs training.block_attention causal$"),
        ({"logit_shift": False}, "needs training.logit_shift true$"),
        ({"noisy_adapter": False}, "only an adapter on the future block"),
    ],
)
def test_another_form_is_refused(folder: Path, change: dict[str, Any], message: str) -> None:
    sbd_config = SBDModelConfig(**(vars(load(folder / "model").sbd_config) | change))
    with pytest.raises(SetBlockError, match=message):
        write_adapter(folder / "model" / ADAPTER_FOLDER, sbd_config, folder / "uno", uno=True)


@pytest.mark.parametrize(
    "change", ["use_rslora", "use_dora", "trainable_token_indices", "peft_type", "weights", "k_proj"]
)
def test_what_is_no_plain_lora_is_refused_and_not_read(folder: Path, change: str) -> None:
    trained = folder / "trained"
    config = json.loads((trained / "adapter_config.json").read_text())
    weights = load_file(trained / "adapter_model.safetensors")
    if change == "weights":
        weights["base_model.model.model.embed_tokens.weight"] = torch.zeros(1)
    elif change == "k_proj":
        weights = {name: each for name, each in weights.items() if change in name}
    else:
        config[change] = "IA3" if change == "peft_type" else [3]
    (trained / "adapter_config.json").write_text(json.dumps(config))
    save_file(weights, trained / "adapter_model.safetensors")
    with pytest.raises(SetBlockError, match=r"must be plain LoRA|must be LORA|q_proj with v_proj"):
        write_adapter(trained, load(folder / "model").sbd_config, folder / "uno", uno=True)
    if change != "k_proj":
        with pytest.raises(SetBlockError, match=r"must be plain LoRA|must be LORA"):
            load(folder / "base", adapter=trained)


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        (
            "v_proj",
            "r_proj",
            r"another model: model.layers.*r_proj with weights of sizes \[16, 32\], which the model lacks",
        ),
        ("q_proj.lora_B", "q_proj.lora_B", r"another model: model.layers.*sizes \[9, 32\], not \[32, 32\], which"),
        (".lora_B", ".lora_A2", "other weights"),
        (
            "0.self_attn.q_proj.lora_A",
            "9.self_attn.q_proj.lora_A",
            "only one of A and B of base_model.*0.self_attn.q_proj",
        ),
    ],
)
def test_an_adapter_of_another_model_is_refused(folder: Path, old: str, new: str, message: str) -> None:
    weights = load_file(folder / "trained" / "adapter_model.safetensors")
    if old == new:
        weights = {name: torch.zeros(9, 4) if old in name else each for name, each in weights.items()}
    weights = {name.replace(old, new): each for name, each in weights.items()}
    save_file(weights, folder / "trained" / "adapter_model.safetensors")
    with pytest.raises(SetBlockError, match=message):
        load(folder / "base", adapter=folder / "trained")


def test_a_folder_without_safetensors_is_refused(folder: Path) -> None:
    (folder / "trained" / "adapter_model.safetensors").rename(folder / "trained" / "adapter_model.bin")
    with pytest.raises(SetBlockError, match="must hold an adapter"):
        load(folder / "base", adapter=folder / "trained")
    with pytest.raises(SetBlockError, match="has an adapter on its future block already"):
        load(folder / "model", adapter=folder / "trained")


class TwoPasses:
    """UNO by Transformers and PEFT alone: a pass that drafts F candidates, and a pass that checks them. The check says one
    token more. After a block that was right to its end, UNO drafts behind this token. As ours does (`drops_last`), it drafts
    from the same place without it."""

    def __init__(self, model: Any, settings: DecodingSettings, *, drops_last: bool) -> None:
        self.model, self.settings, self.drops_last = model.eval(), settings, drops_last
        self.passes = self.saved = 0

    def chosen(self, logits: torch.Tensor, start: int) -> list[int]:
        draws = draws_of([self.settings], columns_of([self.settings]), vocab_size=logits.shape[-1])
        positions = start + torch.arange(len(logits))[None]
        found: list[int] = choose_tokens(logits[None].float(), draws, positions=positions)[0].tolist()
        return found

    @torch.inference_mode()
    def answer(self, prompt: list[int], new_tokens: int) -> list[int]:
        limit, vocabulary, was_right = len(prompt) + new_tokens, self.model.config.vocab_size, False
        with self.model.disable_adapter():  # the prefill gives the first seed
            kept = [*prompt, *self.chosen(self.model(input_ids=torch.tensor([prompt])).logits[0, -1:], len(prompt))]
        while len(kept) < limit:
            start, size = len(kept), min(self.settings.block_size or 0, limit - len(kept))
            # 1. The seed and what is before it by the base model; then noise, by the adapter
            with self.model.disable_adapter():
                before = self.model(input_ids=torch.tensor([kept]), use_cache=True)
            candidates = self.chosen(before.logits[0, -1:], start)
            if size > 1:
                positions = start + torch.arange(size - 1)[None]
                noise = random_tokens(torch.tensor([self.settings.seed]), positions, vocab_size=vocabulary)
                drafted = self.model(input_ids=noise, position_ids=positions, past_key_values=before.past_key_values)
                candidates += self.chosen(drafted.logits[0], start + 1)
            self.passes += 1
            self.saved += was_right
            # 2. The check
            if start + 1 == limit:
                return [*kept[len(prompt) :], candidates[0]]
            with self.model.disable_adapter():
                logits = self.model(input_ids=torch.tensor([kept + candidates])).logits[0, start:]
            causal = self.chosen(logits, start + 1)
            self.passes += 1
            agreed = next((i for i, drafted in enumerate(candidates[1:]) if drafted != causal[i]), size - 1)
            was_right = agreed == size - 1
            kept += candidates[: agreed + 1]
            if not (was_right and self.drops_last):
                kept.append(causal[agreed])
        return kept[len(prompt) :][:new_tokens]


def settings_of(**others: Any) -> DecodingSettings:
    sampler = ConfidenceThreshold(threshold=0.0)  # all of a block
    return DecodingSettings(
        method="exact", max_new_tokens=40, sampler=sampler, drafts="fixed", prompt_lookup=0, **others
    )


@pytest.mark.in_turn
@pytest.mark.parametrize("temperature", [0.0, 4.0])
@pytest.mark.parametrize("seed", [0, 1])
def test_drafts_are_those_of_two_passes_and_a_right_block_saves_one(
    folder: Path, prompts: list[list[int]], temperature: float, seed: int
) -> None:
    sbd = load(folder / "base", adapter=folder / "trained")
    sbd.end_of_text_ids = ()
    settings = settings_of(block_size=4, temperature=temperature, seed=seed)
    plain = DecodingSettings(method="ntp", max_new_tokens=40, temperature=temperature, seed=seed)
    expected = [answer.token_ids for answer in generate_batch(sbd, prompts, settings=plain)]
    model, saved = by_peft(folder / "base", folder / "trained"), 0
    for prompt, tokens in zip(prompts, expected, strict=True):
        (answer,) = generate_batch(sbd, [prompt], settings=settings)
        twin = TwoPasses(model, settings, drops_last=True)
        assert list(answer.token_ids) == list(tokens) == twin.answer(prompt, 40)
        assert answer.passes.decoding == twin.passes - twin.saved
        saved += twin.saved
    assert (saved > 0) == (temperature > 0)


def test_passes_beside_unos_own(folder: Path, prompts: list[list[int]]) -> None:
    """Fewer together, at any temperature and block size. One answer may take more: the draft behind a right block does not
    know the token that UNO's check says."""
    sbd = load(folder / "base", adapter=folder / "trained")
    sbd.end_of_text_ids = ()
    model, counts = by_peft(folder / "base", folder / "trained"), []
    for temperature, block_size in ((2.0, 2), (8.0, 4), (2.0, 6)):
        for seed, prompt in itertools.product(range(2), prompts):
            settings = settings_of(block_size=block_size, temperature=temperature, seed=seed)
            (answer,) = generate_batch(sbd, [prompt], settings=settings)
            uno = TwoPasses(model, settings, drops_last=False)
            assert uno.answer(prompt, 40) == list(answer.token_ids)
            counts.append((answer.passes.decoding, uno.passes))
        ours, unos = map(sum, zip(*counts[-2 * len(prompts) :], strict=True))
        assert ours < unos, (temperature, block_size)
    assert sum(ours > unos for ours, unos in counts) < len(counts) / 10
    assert all(ours <= unos + 2 for ours, unos in counts)
