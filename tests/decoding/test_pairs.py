"""Every two features together: the text of method exact is plain decoding's under the same two, or one line refuses them.

`REFUSED` names the pairs that can't meet, with what is said of them. All others run, on tiny random models. Pairs with
llama.cpp need it installed.
"""

import copy
import itertools
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor
from transformers import PreTrainedTokenizerBase

pytest.importorskip("llguidance", reason="the extra `structured` is not installed")
pytest.importorskip("peft", reason="the extra `peft` is not installed")
pytest.importorskip("torchao", reason="the extra `quantize` is not installed")

from answers import assert_same
from conftest import TEXTS
from families import tiny_sbd
from running import Log
from setblock import DecodingSettings, EntropyBounded, Generation, generate_batch, load, stream
from setblock.cli.options.model import RuntimeOptions
from setblock.decoding.constraints.constraint import TokenConstraint
from setblock.decoding.settings.table import RequestParams
from setblock.engine.engine import Engine
from setblock.engine.limits import EngineLimits
from setblock.engine.request import Request
from setblock.export.gguf_file import write_gguf
from setblock.integrations.llama_cpp.library import is_installed
from setblock.integrations.llama_cpp.model import load as load_in_llama_cpp
from setblock.integrations.llama_cpp.options import LlamaOptions
from setblock.model.protocol.draft_text import indexed
from setblock.model.protocol.runtime import LanguageModel
from setblock.model.sbd_model import SBDModel
from setblock.server.api.protocol import ChatBody
from setblock.server.api.settings import settings_of
from setblock.server.http.errors import ApiError
from setblock.structure import Regex
from setblock.structure.call_form import call_form
from setblock.structure.call_grammar import Calls
from setblock.structure.compiled import grammars_of
from setblock.training.adapter import AdapterSection, add_adapter
from structure.templates import HERMES

pytestmark = pytest.mark.usefixtures("longest_drafts")

CITY = {"type": "string", "maxLength": 9}
TOOL = {"type": "object", "properties": {"city": CITY}, "required": ["city"], "additionalProperties": False}


class Parity(TokenConstraint):
    """Allow no digit at odd places, so that what may come depends on what was taken back. No form forces a digit."""

    constrains = True

    def __init__(self, digits: list[int]) -> None:
        self.place, self.digits = 0, digits

    def reveal(self, token_ids: Any) -> None:
        self.place += len(token_ids)

    def retract(self, count: int) -> None:
        self.place -= count

    def fill(self, allowed: Tensor) -> None:
        if self.place % 2:
            allowed[self.digits] = False


class Stopper(TokenConstraint):
    """End the answer after a number of tokens."""

    def __init__(self, after: int) -> None:
        self.after, self.seen = after, 0

    def read(self, token_ids: Any, *, final: bool = False) -> None:
        self.seen += len(token_ids)
        if self.seen >= self.after:
            self.stop_length = self.after


@dataclass(frozen=True)
class Maker:
    """Make constraints by a function."""

    make: Callable[[], TokenConstraint]

    def constraint(self, params: RequestParams, *, vocab_size: int) -> TokenConstraint:
        return self.make()


OF_MODEL = ("compiled", "prepacked", "adapter", "int8", "llama.cpp")
OF_REQUEST = ("structure", "tools", "constraints", "copies", "stop strings", "penalties", "seeds")
FEATURES = (*OF_MODEL, *OF_REQUEST, "draft text", "streams", "engine")

REFUSED = {
    ("compiled", "llama.cpp"): "--compile needs --runtime transformers",
    ("prepacked", "int8"): "int8 weights can't be prepacked",
    ("prepacked", "llama.cpp"): "--prepack needs --runtime transformers",
    ("adapter", "int8"): "has an adapter on its future block, and can't be quantised",
    ("adapter", "llama.cpp"): "adapter",
    ("int8", "llama.cpp"): "--quantization needs --runtime transformers",
    ("structure", "tools"): "response_format can't go together with tools that may be called",
}
PAIRS = [pair for pair in itertools.combinations(FEATURES, 2) if pair not in REFUSED]


class Models:
    """The models of the pairs, each made once: of the same weights but for an adapter and int8."""

    def __init__(self, folder: Path, tokenizer: PreTrainedTokenizerBase) -> None:
        self.folder, self.tokenizer = folder, tokenizer
        self.made: dict[frozenset[str], LanguageModel] = {}
        self.plain: dict[frozenset[str], list[Generation]] = {}
        sbd = tiny_sbd(
            "llama", copy.deepcopy(tokenizer), mode="shifted", num_hidden_layers=1, max_position_embeddings=256
        )
        with torch.no_grad():  # a few tokens are most of the text, so some drafts are right
            sbd.model.get_output_embeddings().weight[tokenizer("aeton 12").input_ids] *= 4
        sbd.save(folder / "plain")
        write_gguf(sbd, folder / "plain.gguf", weights="f32")
        sbd.prepare_for_training(block_sizes=[4, 8], logit_shift=True, noisy_adapter=True)
        state = {name: weight.clone() for name, weight in sbd.model.state_dict().items()}
        wrapped = add_adapter(sbd, AdapterSection(r=4, only_noisy=True))
        wrapped.save_pretrained(folder / "trained")
        sbd.save(folder / "adapter", state=state, adapter=folder / "trained")

    def of(self, features: frozenset[str]) -> LanguageModel:
        wanted = features & {*OF_MODEL}
        if wanted not in self.made:
            self.made[wanted] = self._make(wanted)
        return self.made[wanted]

    def plainly(self, features: frozenset[str], rows: list[tuple[list[int], DecodingSettings]]) -> list[Generation]:
        """The answers of plain decoding in a batch, whose rows are those of the features, made once for each of these."""
        if features not in self.plain:
            as_plain = [(prompt, replace(each, method="ntp", sampler=None)) for prompt, each in rows]
            self.plain[features] = written(self.of(features), frozenset(), as_plain)
        return self.plain[features]

    def _make(self, wanted: frozenset[str]) -> LanguageModel:
        if "llama.cpp" in wanted:
            return load_in_llama_cpp(self.folder / "plain.gguf", LlamaOptions(n_threads=1, type_k="f32", type_v="f32"))
        folder = self.folder / ("adapter" if "adapter" in wanted else "plain")
        sbd = load(folder, quantization="int8" if "int8" in wanted else None)
        if "prepacked" in wanted:
            sbd.prepack()
        if "compiled" in wanted:
            sbd.compile(backend="eager")  # traces as any backend does, and generates no code
        return sbd


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory, trained_tokenizer: PreTrainedTokenizerBase) -> Models:
    return Models(tmp_path_factory.mktemp("models"), trained_tokenizer)


def requested(features: frozenset[str], tokenizer: PreTrainedTokenizerBase) -> DecodingSettings:
    settings = DecodingSettings(block_size=8, max_new_tokens=26, sampler=EntropyBounded(4.0), prompt_lookup=0)
    if "structure" in features:
        settings = replace(settings, structure=TOOL)
    if "tools" in features:
        calling = copy.deepcopy(tokenizer)
        calling.chat_template = HERMES
        calls = Calls(
            call_form(calling, grammars_of(calling).special), {"weather": TOOL}, required=True, parallel=False
        )
        settings = replace(settings, structure=calls.grammar())
    if "constraints" in features:
        digits = tokenizer.convert_tokens_to_ids([*"0123456789"])
        settings = replace(settings, constraints=(Maker(partial(Parity, digits)), Maker(partial(Stopper, 21))))
    if "copies" in features:
        settings = replace(settings, prompt_lookup=1)
    elif "draft text" in features:
        settings = replace(settings, prompt_lookup=2)
    if "stop strings" in features:
        settings = replace(settings, stop=("ne", "11"))
    if "penalties" in features:
        settings = replace(settings, repetition_penalty=1.4, logit_bias={40: 3.0}, banned_tokens=(45, 50))
    if "seeds" in features:
        settings = replace(settings, temperature=1.3, top_p=0.95, seed=7)
    return settings


def written(
    model: LanguageModel, features: frozenset[str], rows: list[tuple[list[int], DecodingSettings]]
) -> list[Generation]:
    """The answers by `generate_batch`, by `stream` or by the engine; by both of these, pieces of the engine."""
    if "engine" in features:
        engine, log = Engine(model, EngineLimits(kv_tokens=256, page_tokens=8, max_num_batched_tokens=24)), Log()
        for number, (prompt, settings) in enumerate(rows):
            engine.submit(Request(str(number), prompt, settings))
            log.add(engine.step())
        log.run(engine)
        found = [log[str(number)].generation for number in range(len(rows))]
        assert [log[str(number)].text for number in range(len(rows))] == [each and each.text for each in found]
        return [each for each in found if each is not None]
    if "streams" in features:
        answers = []
        for prompt, settings in rows:
            *chunks, last = stream(model, prompt, settings=settings)
            assert last.generation is not None
            assert "".join(chunk.text for chunk in [*chunks, last]) == last.generation.text
            answers.append(last.generation)
        return answers
    return generate_batch(model, [prompt for prompt, _ in rows], settings=[settings for _, settings in rows])


@contextmanager
def with_draft_text(model: LanguageModel, features: frozenset[str]) -> Iterator[Any]:
    if "draft text" in features:
        model.draft_text = indexed([model.tokenizer(text).input_ids for text in TEXTS])
    yield model
    model.draft_text = None


def marked(pair: tuple[str, str]) -> Any:
    """A pair; nightly, those of what is compiled with what a model or a request asks for, which take seconds each. Compiled
    adapters are in `model/adapter/test_adapted.py`, too."""
    slow = pair[0] == "compiled" and pair[1] != "structure"
    return pytest.param(pair, id=" + ".join(pair), marks=pytest.mark.nightly if slow else [])


@pytest.mark.parametrize("pair", [marked(each) for each in PAIRS])
def test_exact_is_plain_decoding(
    pair: tuple[str, str], models: Models, prompts: list[list[int]], trained_tokenizer: PreTrainedTokenizerBase
) -> None:
    """In a batch with a row that has neither. Plain decoding is that of the weights alone, a batch at a time."""
    features = frozenset(pair)
    if "llama.cpp" in features and not is_installed():
        pytest.skip("llama.cpp is not installed")
    exact = requested(features, trained_tokenizer)
    rows = [(prompts[0], exact), (prompts[1], exact), (prompts[2], DecodingSettings(max_new_tokens=16, block_size=8))]
    plain = models.plainly(features - {"compiled", "prepacked", "streams", "engine"}, rows)
    if "streams" in features and "engine" not in features:  # one after the other: the row beside them says nothing more
        rows, plain = rows[:2], plain[:2]
    with with_draft_text(models.of(features), features) as model:
        found = written(model, features, rows)
    for ours, theirs in zip(found, plain, strict=True):
        assert theirs.finish_reason in ("stop", "length")
        assert_same(ours, theirs)


@pytest.mark.parametrize("pair", REFUSED, ids=" + ".join)
def test_a_pair_that_cannot_meet_is_refused_in_one_line(pair: tuple[str, str], models: Models, tmp_path: Path) -> None:
    def attempt() -> Any:
        match pair:
            case ("prepacked", "int8"):
                return load(models.folder / "plain", quantization="int8").prepack()
            case ("adapter", "int8"):
                return load(models.folder / "adapter", quantization="int8")
            case ("adapter", "llama.cpp"):
                adapted = models.of(frozenset({"adapter"}))
                assert isinstance(adapted, SBDModel)
                return write_gguf(adapted, tmp_path / "adapter.gguf", weights="f32")
            case ("structure", "tools"):
                schema = {"type": "json_schema", "json_schema": {"name": "a", "schema": TOOL}}
                body = ChatBody(model="a", messages=[{"role": "user", "content": "?"}], response_format=schema)  # type: ignore[list-item]
                return settings_of(body, default=DecodingSettings(), grammar=Regex("a"))
            case (option, _):
                of_torch: dict[str, Any] = {
                    "compiled": {"compile": True},
                    "prepacked": {"prepack": True},
                    "int8": {"quantization": "int8"},
                }[option]
                return RuntimeOptions(path="model.gguf", runtime="llama-cpp", **of_torch).takes_llama_cpp

    with pytest.raises((ValueError, ApiError), match=REFUSED[pair]) as error:
        attempt()
    assert "\n" not in str(error.value)


def test_every_pair_runs_or_is_refused() -> None:
    runs, refused = len(PAIRS), len(REFUSED)
    print(f"{runs} pairs run, {refused} are refused, of {len(FEATURES)} features")
    assert (runs, refused, runs + refused) == (98, 7, len(FEATURES) * (len(FEATURES) - 1) // 2)


@pytest.fixture(scope="module")
def without(models: Models, prompts: list[list[int]], trained_tokenizer: PreTrainedTokenizerBase) -> list[Generation]:
    """The answers to requests that have none of the features."""
    return generate_batch(models.of(frozenset()), prompts, settings=requested(frozenset(), trained_tokenizer))


@pytest.mark.parametrize("feature", OF_REQUEST)
def test_each_feature_of_a_request_changes_something(
    feature: str,
    models: Models,
    without: list[Generation],
    prompts: list[list[int]],
    trained_tokenizer: PreTrainedTokenizerBase,
) -> None:
    """Or a pair with it would show nothing."""
    settings = requested(frozenset({feature}), trained_tokenizer)
    found = generate_batch(models.of(frozenset()), prompts, settings=settings)
    if feature == "copies":
        assert [each.passes for each in found] != [each.passes for each in without]
    else:
        assert [each.token_ids for each in found] != [each.token_ids for each in without]
