"""Every decoder-only family of the installed Transformers: a tiny random model of each, and whether it is decoded right.

The families come from Transformers' own registry, so that a new version brings its new ones. A model is made by the same
`small_copy` that the probe uses, with its thresholds lowered, saved, and loaded by `setblock.load`. What it should say comes
from Transformers alone: greedy decoding by uncached passes.
"""

import copy
import json
import tempfile
import traceback
import warnings
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from importlib import metadata
from pathlib import Path
from typing import Any

import torch
from tokenizers import Tokenizer, models, pre_tokenizers
from torch import Tensor
from transformers import AutoConfig, PretrainedConfig, PreTrainedModel, PreTrainedTokenizerBase, PreTrainedTokenizerFast
from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING_NAMES
from transformers.utils import logging

from setblock.data.documents import Document
from setblock.data.packing import RowCollator, RowDataset, pack
from setblock.decoding.generate import open_batch
from setblock.decoding.naive import naive_decode
from setblock.decoding.samplers import EntropyBounded
from setblock.decoding.settings import DecodingSettings
from setblock.engine.engine import Engine
from setblock.engine.limits import EngineLimits
from setblock.engine.request import Request
from setblock.errors import SetBlockError
from setblock.integrations.transformers import generate as sbd_generate
from setblock.model.document_attention import document_attention
from setblock.model.loading import load, refuse_unsupported
from setblock.model.naive import full_logits
from setblock.model.sbd_model import SBDModel
from setblock.model.small_copy import VOCABULARY, run_text, small_copy, thresholds_of, with_low
from setblock.training.adapters import AdapterSection, add_adapter
from setblock.training.forward import training_logits, training_loss
from setblock.training.inputs import doubled_inputs, ntp_inputs
from setblock.training.noising import Noising

REPRESENTATIVE = (
    "llama", "qwen3", "mistral", "gemma2", "gemma3", "gpt2", "phi3 (longrope)", "falcon", "stablelm", "mixtral",
    "deepseek_v3", "doge (window of 16)", "electra (encoder)", "qwen2_vl", "bart (more decoder layers)", "bert (untied)",
)  # fmt: skip
"""The cases that are in `make test`."""
REFUSED = ("electra (encoder)", "bart (more decoder layers)", "doge (window of 16)")
"""Those of them that are refused."""
RESULTS = Path(__file__).parent / "families" / "results.jsonl"
PAGE = Path(__file__).parents[1] / "docs" / "versions.md"

IMAGES = (
    "llava", "llava_next", "mistral3", "qwen2_vl", "qwen2_5_vl", "qwen3_vl", "idefics3", "smolvlm", "paligemma", "internvl",
)  # fmt: skip
"""Families that take images too, and are given text alone. Transformers has more."""

LOW = 24  # what thresholds are lowered to
NEW, PROMPTS = 14, (5, 30, 42)  # tokens
CONTEXT = 128

_ROPE = {"rope_theta": 10000.0}
_LONG = {"rope_type": "longrope", "short_factor": [1.0] * 8, "long_factor": [2.0 + i for i in range(8)]}
_SMALL_SHAPE = {
    "hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 2,
}  # fmt: skip

# Where the defaults of Transformers' own config make no model, or no decoder.
NEEDED: dict[str, dict[str, Any]] = {
    **{
        name: {"is_decoder": True}
        for name in (
            "bert", "bert-generation", "big_bird", "camembert", "data2vec-text", "electra", "ernie", "megatron-bert",
            "rembert", "roberta", "roberta-prelayernorm", "roc_bert", "roformer", "xlm-roberta", "xlm-roberta-xl",
        )
    },
    **{
        name: {"text_config": {"rope_parameters": _ROPE | {"rope_type": "default", "mrope_section": [16, 24, 24]}}}
        for name in ("qwen2_vl", "qwen2_5_vl")
    },
    "qwen3_vl": {"text_config": {"rope_parameters": _ROPE | {"rope_type": "default", "mrope_section": [24, 20, 20]}}},
    **{
        name: {"is_encoder_decoder": False, "is_decoder": True}
        for name in (
            "bart", "bigbird_pegasus", "blenderbot", "blenderbot-small", "marian", "mbart", "mvp", "pegasus", "plbart",
            "prophetnet", "whisper",
        )
    },
    "dbrx": {"attn_config": {"kv_n_heads": 8, "rope_theta": 10000.0}},
    "xmod": {"is_decoder": True, "default_language": "en_XX"},
    "reformer": {"is_decoder": True},
    "nemotron": {"num_key_value_heads": 8},
    "hunyuan_v1_dense": {"head_dim": 128},
    "hunyuan_v1_moe": {"head_dim": 128, "num_experts": 4, "moe_topk": 2},
    "ministral": {"head_dim": 128},
    "deepseek_v2": {"moe_intermediate_size": 1408, "num_experts_per_tok": 6, "n_group": 1, "topk_group": 1},
    "dots1": {"n_routed_experts": 8, "n_shared_experts": 1, "num_experts_per_tok": 2},
    "gemma4_text": {"num_hidden_layers": 6},
    "gemma4_unified_text": {"num_hidden_layers": 6},
    **{name: {"text_config": {"num_hidden_layers": 6}} for name in ("gemma4", "gemma4_unified")},
    "lfm2_moe": {"layer_types": ["full_attention"] * 2, "num_hidden_layers": 2},
}  # fmt: skip

# Beside the defaults of each family: what is known to differ.
VARIANTS: dict[str, tuple[str, dict[str, Any]]] = {
    "falcon (one key head)": ("falcon", {"new_decoder_architecture": False, "multi_query": True}),
    "falcon (new architecture)": (
        "falcon",
        {"new_decoder_architecture": True, "num_kv_heads": 8, "num_attention_heads": 16, "hidden_size": 1024},
    ),
    "falcon (sequential)": (
        "falcon",
        {"parallel_attn": False, "multi_query": False, "num_attention_heads": 16, "hidden_size": 1024},
    ),
    "falcon (ALiBi)": ("falcon", {"alibi": True}),
    "phi3 (longrope)": (
        "phi3",
        _SMALL_SHAPE
        | {
            "rope_parameters": _ROPE | _LONG | {"original_max_position_embeddings": 40},
            "original_max_position_embeddings": 40,
            "max_position_embeddings": CONTEXT,
        },
    ),
    "llama (dynamic NTK)": (
        "llama",
        _SMALL_SHAPE
        | {"rope_parameters": _ROPE | {"rope_type": "dynamic", "factor": 2.0}, "max_position_embeddings": CONTEXT},
    ),
    "llama (YaRN)": (
        "llama",
        _SMALL_SHAPE
        | {
            "rope_parameters": _ROPE | {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 32},
            "max_position_embeddings": CONTEXT,
        },
    ),
    "doge (window of 16)": ("doge", {"keep_window_size": 16}),
    "electra (encoder)": ("electra", {"is_decoder": False}),
    "bart (more decoder layers)": (
        "bart",
        {"is_encoder_decoder": False, "is_decoder": True, "encoder_layers": 1, "decoder_layers": 3},
    ),
    "bert (untied)": ("bert", {"is_decoder": True, "tie_word_embeddings": False}),
    "qwen2 (sliding)": ("qwen2", {"use_sliding_window": True, "sliding_window": 64, "max_window_layers": 1}),
}

UNSHRINKABLE: dict[str, str] = {
    "gemma3n": "its image tower needs the package timm",
}
"""Families that no tiny model can be made of here, with why."""


@dataclass
class Outcome:
    """What became of a case.

    Attributes:
        name: of the case; `family` is its model type.
        status: `right`, `refused`, `not covered` or `wrong`.
        reason: why it is not right.
        plan: how its attention is called.
        limits: what it is right in, but refuses beyond.
        refused_paths: the ways of running it that are refused, with why; in all others it is right.
    """

    name: str
    family: str
    status: str
    reason: str = ""
    plan: str = ""
    limits: str = ""
    refused_paths: dict[str, str] = field(default_factory=dict)

    def to_json(self) -> dict[str, Any]:
        """Without what is empty."""
        return {key: value for key, value in asdict(self).items() if value}


class WrongError(Exception):
    """A model says something else than it should."""


def cases() -> dict[str, tuple[str, dict[str, Any]]]:
    """Of each case, the model type and the fields of its config that are not the defaults."""
    families = [*MODEL_FOR_CAUSAL_LM_MAPPING_NAMES, *IMAGES]
    return {name: (name, NEEDED.get(name, {})) for name in sorted(set(families))} | VARIANTS


def run_case(name: str, *, every_path: bool = True) -> Outcome:
    """Make a case's model and hold it to "right, or refused with a reason".

    Args:
        every_path: also eight-bit, prepacked, compiled and with an adapter.
    """
    family, fields = cases()[name]
    outcome = Outcome(name, family, "not covered")
    with tempfile.TemporaryDirectory() as temporary, quiet():
        folder = Path(temporary)
        try:
            if name in UNSHRINKABLE:
                raise NotImplementedError(UNSHRINKABLE[name])
            config = AutoConfig.for_model(family, **fields)
            refuse_unsupported(config)
            save_tiny(config, folder / "base", lower=name not in VARIANTS)
        except SetBlockError as error:
            outcome.status, outcome.reason = "refused", str(error)
            return outcome
        except Exception as error:
            outcome.reason = " ".join(f"{type(error).__name__}: {error}".split())[:300]
            return outcome
        try:
            check_family(folder, outcome, every_path=every_path)
            outcome.status = "right"
        except SetBlockError as error:
            outcome.status, outcome.reason = "refused", str(error).replace(f"{folder}/", "")
        except Exception as error:  # a traceback is as wrong as a wrong text
            where = traceback.extract_tb(error.__traceback__)[-1]
            text = " ".join(f"{type(error).__name__}: {error}".split())[:300]
            outcome.status, outcome.reason = "wrong", f"{text} ({Path(where.filename).name}:{where.lineno})"
    return outcome


def save_tiny(config: PretrainedConfig, folder: Path, *, lower: bool) -> None:
    """Save a tiny random model of a config, with a tokenizer."""
    with torch.device("meta"):
        whole = auto_class(config).from_config(copy.deepcopy(config), dtype=torch.float32)
    small = small_copy(type(whole), whole.config)
    if lower and (found := thresholds_of(whole.config, small)):
        small = with_low(small, found, value=LOW)
        run_text(small)
    small.generation_config.eos_token_id = small.generation_config.pad_token_id = 0
    small.save_pretrained(folder)
    tokenizer_of(VOCABULARY).save_pretrained(folder)


def auto_class(config: PretrainedConfig) -> Any:
    """What makes the model of a config."""
    from setblock.model.loading import _auto_class

    return _auto_class(config)


def tokenizer_of(size: int) -> PreTrainedTokenizerBase:
    """One whose tokens are words; the first ends a text."""
    words = {f"t{number}": number for number in range(size)}
    made = Tokenizer(models.WordLevel(words, unk_token="t1"))
    made.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    return PreTrainedTokenizerFast(tokenizer_object=made, eos_token="t0", pad_token="t0", unk_token="t1")


def prompts_of(lengths: Sequence[int]) -> list[list[int]]:
    """Random token ids that are no special ones."""
    generator = torch.Generator().manual_seed(5)
    return [torch.randint(2, VOCABULARY, (n,), generator=generator).tolist() for n in lengths]


# What is checked


def check_family(folder: Path, outcome: Outcome, *, every_path: bool) -> None:
    """Raise `WrongError` where a saved model, loaded by setblock, says something else than Transformers does."""
    base = load(folder / "base")
    outcome.plan = repr(base.model._setblock_attention)
    context = base.context_length or CONTEXT
    fitting = [n for n in PROMPTS if n + NEW <= context] or [max(1, context - NEW)]
    prompts, new = prompts_of(fitting), min(NEW, context - 1)
    if len(fitting) < len(PROMPTS):
        outcome.limits = f"at most {context} tokens"
        check_refusal(base, context)
    theirs = own_model(folder / "base", base)
    reason = base.model._setblock_attention.untrainable
    if reason:
        outcome.refused_paths["training"] = reason
        same_tokens(base, prompts, expected(theirs, prompts, new, banned={0}), settings("ntp", new))
        return
    check_training(base, prompts)
    base.save(folder / "trained")
    try:
        sbd = load(folder / "trained")
    except SetBlockError as error:
        raise WrongError(f"what was saved does not load: {error}") from error
    theirs = own_model(folder / "trained", sbd)
    wanted = expected(theirs, prompts, new, banned={0, sbd.facts.mask_token_id})
    for each in (settings("ntp", new), settings("exact", new, 4), settings("exact", new, 16)):
        same_tokens(sbd, prompts, wanted, each)
    check_blocks(sbd, prompts, new)
    refusable(outcome, "engine", lambda: check_engine(sbd, prompts, wanted, new))
    refusable(outcome, "generate", lambda: check_generate(sbd, theirs, prompts, wanted, new))
    if every_path:
        refusable(outcome, "int8", lambda: check_int8(folder / "trained", prompts, new))
        refusable(outcome, "prepacked", lambda: check_prepacked(folder / "trained", prompts, wanted, new))
        refusable(outcome, "compiled", lambda: check_compiled(folder / "trained", prompts, wanted, new))
        refusable(outcome, "adapter", lambda: check_adapter(folder / "base", prompts, new))


def settings(method: Any, new: int, block_size: int | None = None) -> DecodingSettings:
    """Greedy, without an end."""
    return DecodingSettings(
        method=method,
        block_size=block_size,
        max_new_tokens=new,
        banned_tokens=(0,),
        sampler=EntropyBounded(1.0),
        temperature=0.0,
    )


def own_model(folder: Path, sbd: SBDModel) -> PreTrainedModel:
    """The saved model as Transformers itself loads it."""
    model: PreTrainedModel = type(sbd.model).from_pretrained(folder, dtype=torch.float32).eval()
    return model


@torch.no_grad()
def expected(
    model: PreTrainedModel, prompts: Sequence[Sequence[int]], new: int, *, banned: set[int]
) -> list[list[Tensor]]:
    """Of each prompt, the logits [V] of each new token: Transformers' own uncached greedy decoding."""
    answers = []
    for prompt in prompts:
        ids, rows = list(prompt), []
        for _ in range(new):
            logits = model(input_ids=torch.tensor([ids]), use_cache=False).logits[0, -1].float()
            logits[list(banned)] = -torch.inf
            rows.append(logits)
            ids.append(int(logits.argmax()))
        answers.append(rows)
    return answers


def decoded(sbd: SBDModel, prompts: Sequence[Sequence[int]], each: DecodingSettings) -> list[list[int]]:
    """The answers of one batch."""
    batch = open_batch(sbd, prompts, [each] * len(prompts))
    for _ in batch.steps():
        pass
    return [batch.generation(row).token_ids for row in range(len(prompts))]


def same_tokens(
    sbd: SBDModel, prompts: Sequence[Sequence[int]], wanted: list[list[Tensor]], each: DecodingSettings
) -> None:
    """The longest prompt alone, and all of them beside each other."""
    what = f"{each.method} {each.block_size or ''}".strip()
    same_answer(decoded(sbd, prompts[-1:], each)[0], wanted[-1], f"{what}, a prompt of {len(prompts[-1])}")
    for prompt, answer, logits in zip(prompts, decoded(sbd, prompts, each), wanted, strict=True):
        same_answer(answer, logits, f"{what} in a batch, a prompt of {len(prompt)}")


def same_answer(found: Sequence[int], wanted: Sequence[Tensor], what: str) -> None:
    """Up to a tie, after which two texts may go different ways."""
    if len(found) != len(wanted):
        raise WrongError(f"{what}: {len(found)} tokens, not {len(wanted)}")
    for place, (token, logits) in enumerate(zip(found, wanted, strict=True)):
        best = float(logits.max())
        if float(logits[token]) < best:
            if best - float(logits[token]) > 1e-3 * max(1.0, abs(best)):
                raise WrongError(f"{what}: token {place} differs, by {best - float(logits[token]):.3g} of a logit")
            return


def check_refusal(sbd: SBDModel, context: int) -> None:
    """What does not fit a limited context is refused."""
    try:
        decoded(sbd, prompts_of([context - 2]), settings("ntp", NEW))
    except SetBlockError:
        return
    raise WrongError(f"more than {context} tokens are not refused")


def check_blocks(sbd: SBDModel, prompts: Sequence[list[int]], new: int) -> None:
    """Method `sbd` is the naive twin's, and a request in a batch what it is alone."""
    each = settings("sbd", min(12, new), 4)
    together = decoded(sbd, prompts, each)
    if decoded(sbd, prompts[:1], each)[0] != together[0]:
        raise WrongError(f"sbd in a batch, a prompt of {len(prompts[0])}: not what it is alone")
    with banned_head(sbd):
        forward = full_logits
        naive, _ = naive_decode(sbd, prompts[-1], each, sampler=EntropyBounded(1.0), forward=forward)
    if naive != together[-1]:
        raise WrongError("sbd: not what the naive twin decodes")


@contextmanager
def banned_head(sbd: SBDModel) -> Iterator[None]:
    """The naive twin knows no banned tokens: their logits are low for a while."""

    def ban(_: Any, __: Any, logits: Tensor) -> Tensor:
        return logits.index_fill(-1, torch.tensor([0]), -1e4)

    handle = sbd.model.get_output_embeddings().register_forward_hook(ban)
    try:
        yield
    finally:
        handle.remove()


def check_engine(sbd: SBDModel, prompts: Sequence[list[int]], wanted: list[list[Tensor]], new: int) -> None:
    """Requests that come and go."""
    engine = Engine(sbd, EngineLimits(max_running=3, kv_tokens=256, tokens_per_pass=40, page_tokens=4))
    methods = ("ntp", "exact", "exact")
    for number, prompt in enumerate(prompts):
        engine.submit(Request(str(number), prompt, settings(methods[number], new, 4)))
    answers = {}
    while not engine.is_idle:
        for progress in engine.step():
            if progress.generation is not None:
                answers[int(progress.id)] = progress.generation.token_ids
    for number, logits in enumerate(wanted):
        same_answer(answers[number], logits, f"the engine, a prompt of {len(prompts[number])}")


def check_generate(
    sbd: SBDModel, theirs: PreTrainedModel, prompts: Sequence[list[int]], wanted: list[list[Tensor]], new: int
) -> None:
    """Transformers' own `generate`, decoding in blocks."""
    try:
        found = sbd_generate(
            torch.tensor([prompts[-1]]), model=theirs, method="exact", block_size=4, max_new_tokens=new, min_new_tokens=new,
            do_sample=False, pad_token_id=0, eos_token_id=0,
        )  # fmt: skip
    except ValueError as error:
        if "attn_implementation" in str(error) or isinstance(error, SetBlockError):
            raise SetBlockError(str(error)) from error
        raise
    assert isinstance(found, Tensor)
    same_answer(found[0, len(prompts[-1]) :].tolist(), wanted[-1], "generate")


def check_training(sbd: SBDModel, prompts: Sequence[list[int]]) -> None:
    """The next-token loss of packed rows is Transformers' own, and three steps change the model."""
    sbd.prepare_for_training(block_sizes=[4, 16], logit_shift=False)
    assert sbd.facts is not None
    documents = [Document(prompt, [True] * len(prompt)) for prompt in prompts if len(prompt) > 1]
    rows = RowDataset(pack(documents, row_length=max(map(len, prompts)) + 12, pad_token_id=0))
    batch = RowCollator(pad_token_id=0)([rows[number] for number in range(len(rows))])
    inputs = ntp_inputs(batch)
    with torch.no_grad():
        logits = training_logits(sbd.model, inputs, inputs.ntp.index)
        found = float(torch.nn.functional.cross_entropy(logits.float(), inputs.ntp.token_ids, reduction="sum"))
        wanted = 0.0
        for document in documents:
            ids = torch.tensor([list(document.token_ids)])
            own = sbd.model(input_ids=ids, use_cache=False).logits[0, :-1].float()
            wanted += float(torch.nn.functional.cross_entropy(own, ids[0, 1:], reduction="sum"))
    if abs(found - wanted) > 1e-3 * wanted:
        raise WrongError(f"training: a next-token sum of {found:.2f}, not {wanted:.2f}")
    before = {name: weight.detach().clone() for name, weight in sbd.model.named_parameters()}
    optimizer = torch.optim.SGD([p for p in sbd.model.parameters() if p.requires_grad], lr=1e-3)
    for step in range(3):
        doubled = doubled_inputs(
            batch,
            block_size=4,
            noising=Noising(),
            logit_shift=False,
            mask_token_id=sbd.facts.mask_token_id,
            end_of_text_id=0,
            context_length=sbd.context_length or CONTEXT,
            seed=(0, step),
        )
        with document_attention(sbd.model):
            loss = training_loss(sbd.model, doubled, head=None, ntp_weight=1.0, matp_weight=1.0)
            total = loss.total / loss.ntp_count
            if not bool(total.isfinite()):
                raise WrongError("training: a loss that is no number")
            optimizer.zero_grad()
            total.backward()  # type: ignore[no-untyped-call]
        torch.nn.utils.clip_grad_norm_(sbd.model.parameters(), 1.0)
        optimizer.step()
    if all(torch.equal(before[name], weight) for name, weight in sbd.model.named_parameters()):
        raise WrongError("training: three steps change nothing")


def check_int8(folder: Path, prompts: Sequence[list[int]], new: int) -> None:
    """Exact and plain decoding of the quantised model are its own uncached decoding."""
    sbd = load(folder, quantization="int8")
    assert sbd.facts is not None
    wanted = expected(sbd.model, prompts[:2], new, banned={0, sbd.facts.mask_token_id})
    same_tokens(sbd, prompts[:2], wanted, settings("exact", new, 4))


def check_prepacked(folder: Path, prompts: Sequence[list[int]], wanted: list[list[Tensor]], new: int) -> None:
    """With weights laid out for the processor."""
    sbd = load(folder)
    sbd.prepack()
    same_tokens(sbd, prompts[:2], wanted[:2], settings("exact", new, 4))


def check_compiled(folder: Path, prompts: Sequence[list[int]], wanted: list[list[Tensor]], new: int) -> None:
    """By `torch.compile`, without the code that it would make of it: that takes a minute."""
    torch.compiler.reset()
    sbd = load(folder)
    sbd.compile(backend="eager")
    same_answer(decoded(sbd, [prompts[-1]], settings("exact", new, 4))[0], wanted[-1], "compiled")


def check_adapter(folder: Path, prompts: Sequence[list[int]], new: int) -> None:
    """An adapter on the future block alone leaves next-token decoding what it is."""
    sbd = load(folder)
    sbd.prepare_for_training(block_sizes=[4], logit_shift=False)
    wanted = decoded(sbd, prompts[:2], settings("ntp", new))
    add_adapter(sbd, AdapterSection(only_noisy=True))
    with torch.no_grad():
        for name, weight in sbd.model.named_parameters():
            if "lora_B" in name:
                weight.normal_(std=0.5)
    gated = SBDModel(sbd.model, sbd.tokenizer, facts=sbd.facts)
    for method in ("ntp", "exact"):
        if decoded(gated, prompts[:2], settings(method, new, 4)) != wanted:
            raise WrongError(f"adapter: {method} is not what it is without")


def refusable(outcome: Outcome, path: str, check: Callable[[], None]) -> None:
    """A way of running a model may be refused, with a reason."""
    try:
        check()
    except SetBlockError as error:
        outcome.refused_paths[path] = str(error).splitlines()[0]
    except Exception as error:
        error.add_note(path)
        raise


@contextmanager
def quiet() -> Iterator[None]:
    """Without what Transformers says of configs that are tiny."""
    level = logging.get_verbosity()
    logging.set_verbosity_error()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            yield
        finally:
            logging.set_verbosity(level)


# What came of it


def write_results(outcomes: Sequence[Outcome]) -> None:
    """Put outcomes in the place of earlier ones of the same cases."""
    found = (
        {each["name"]: each for each in map(json.loads, RESULTS.read_text().splitlines())} if RESULTS.exists() else {}
    )
    found |= {each.name: each.to_json() for each in outcomes}
    lines = [json.dumps(found[name]) + "\n" for name in cases() if name in found]
    RESULTS.write_text("".join(lines))


def summary(outcomes: Sequence[dict[str, Any]]) -> str:
    """The table of models in `docs/versions.md`."""
    of = {
        status: [each for each in outcomes if each["status"] == status]
        for status in ("right", "refused", "not covered")
    }
    version = metadata.version("transformers")
    engineless = [each["name"] for each in of["right"] if "engine" in each.get("refused_paths", {})]
    limited = [each["name"] for each in of["right"] if "limits" in each]
    reasons: dict[str, list[str]] = defaultdict(list)
    for each in of["refused"]:
        reasons[next(told for part, told in REASONS.items() if part in each["reason"])].append(each["name"])
    rows = [
        ("right", len(of["right"]), ", ".join(each["name"] for each in of["right"])),
        ("right up to a length", len(limited), ", ".join(limited)),
        ("right, but not in the engine", len(engineless), ", ".join(engineless)),
        *((f"refused: {told}", len(names), ", ".join(names)) for told, names in sorted(reasons.items())),
        (
            "not covered: no tiny model can be made",
            len(of["not covered"]),
            ", ".join(e["name"] for e in of["not covered"]),
        ),
    ]
    table = "\n".join(f"| {what} | {count} | {names} |" for what, count, names in rows if count)
    return f"| Transformers {version} | | |\n|---|---|---|\n{table}\n"


REASONS = {
    "is an encoder-decoder": "encoder-decoder",
    "recurrent state": "recurrent state",
    "ALiBi": "ALiBi",
    "layer type": "layers that are neither full nor sliding-window attention",
    "change with the tokens that follow": "a token's logits change with what follows it",
    "other logits": "other logits under the masks, positions or cache of blocks",
    "ignores a mask": "a mask of its own",
    "no 4D mask": "takes no mask, positions or cache of ours",
    "no small copy": "can't be tried on a small copy",
    "mask token": "no room for a mask token",
    "no causal language model": "no causal language model",
    "": "other reasons",
}
"""What refusals have in common, by a part of their messages."""


def main() -> None:
    """Write the table of `docs/versions.md` anew, which ends it."""
    text = PAGE.read_text()
    table = summary([json.loads(line) for line in RESULTS.read_text().splitlines()])
    PAGE.write_text(text[: text.rindex("\n| Transformers ") + 1] + table)


if __name__ == "__main__":
    main()
