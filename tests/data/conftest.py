"""What the tests of data share: files of records, chat templates, and a cache of their own."""

import copy
import json
from collections.abc import Callable, Iterable
from functools import cache
from pathlib import Path
from typing import Any, Literal

import datasets
import huggingface_hub
import pytest
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import PreTrainedTokenizerBase, PreTrainedTokenizerFast

_START = "<|reserved_special_token_1|>"
_TURN = f"{{{{ '{_START}' + message['role'] + '\n' + message['content'] + eos_token + '\n' }}}}"
_PROMPT = f"{{% if add_generation_prompt %}}{{{{ '{_START}assistant\n' }}}}{{% endif %}}"
CHATML = f"{{% for message in messages %}}{_TURN}{{% endfor %}}{_PROMPT}"
MARKED = (
    "{% for message in messages %}{% if message['role'] == 'assistant' %}"
    f"{{{{ '{_START}assistant\n' }}}}"
    "{% generation %}{{ message['content'] + eos_token + '\n' }}{% endgeneration %}"
    f"{{% else %}}{_TURN}{{% endif %}}{{% endfor %}}{_PROMPT}"
)
"""The same texts as `CHATML` writes, with marks around what the assistant says."""

Write = Callable[[str, Iterable[Any]], Path]


@pytest.fixture(autouse=True)
def _cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing is left in a user's cache, or taken from it; and there is no hub."""
    monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", tmp_path / "cache")
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_OFFLINE", True)
    datasets.disable_progress_bars()


@pytest.fixture
def write(tmp_path: Path) -> Write:
    """Writes a file of records, a line each."""

    def write(name: str, records: Iterable[Any]) -> Path:
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("".join(json.dumps(record) + "\n" for record in records))
        return path

    return write


def chat(*contents: str, system: str | None = None) -> list[dict[str, str]]:
    """Messages of a user and an assistant in turn."""
    turns = [{"role": ("user", "assistant")[i % 2], "content": content} for i, content in enumerate(contents)]
    return [{"role": "system", "content": system}, *turns] if system is not None else turns


@cache
def _spaced(scheme: Literal["first", "always"]) -> PreTrainedTokenizerBase:
    made = Tokenizer(models.BPE())
    made.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme=scheme)
    made.decoder = decoders.Metaspace(prepend_scheme=scheme)
    texts = ["def f(x): return x", "Tom has 12 apples and\n pears", "".join(map(chr, range(33, 127)))]
    trainer = trainers.BpeTrainer(vocab_size=200, special_tokens=["<unk>", "<s>", "</s>"], show_progress=False)
    made.train_from_iterator(texts, trainer)
    return PreTrainedTokenizerFast(tokenizer_object=made, bos_token="<s>", eos_token="</s>", unk_token="<unk>")


def spaced_tokenizer(scheme: Literal["first", "always"]) -> PreTrainedTokenizerBase:
    """A tokenizer that puts a space before any text, as SentencePiece does."""
    return copy.deepcopy(_spaced(scheme))
