"""`SBDModel`: a Hugging Face causal LM with its tokenizer and SBD config, which can be decoded, trained and saved."""

import json
import os
import shutil
import tempfile
import warnings
from collections.abc import Callable, Hashable, Sequence
from contextlib import ExitStack
from dataclasses import KW_ONLY, dataclass, field
from pathlib import Path
from statistics import mode
from typing import Any, Literal

import torch
from safetensors import SafetensorError
from torch import Tensor
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from setblock.chat.template import closing_ids
from setblock.errors import SetBlockError, SetBlockWarning, prefixed
from setblock.files import ASSETS, FACTS_FILE, writing
from setblock.locks import lock_of
from setblock.model.adapter.adapted import join_adapted
from setblock.model.adapter.adapter import ADAPTER_FOLDER, gate_of
from setblock.model.attention.attention import plan_of, planned
from setblock.model.checkpoint import (
    WEIGHTS_INDEX,
    refuse_adapter,
    refuse_loss,
    stored_sums,
    sums_of,
    weight_files,
)
from setblock.model.compiled import compiled_for_sizes
from setblock.model.loading.mask_token import add_mask_token
from setblock.model.probe.probe import check_stored, plan_attention
from setblock.model.protocol.draft_text import DRAFT_TEXT_FILE, DraftText, draft_text_of, read_texts
from setblock.model.protocol.runtime import Runner
from setblock.model.protocol.sbd_config import SBDModelConfig
from setblock.model.runners.forward import PaddedRunner
from setblock.model.runners.packed_runner import PackedRunner
from setblock.model.runners.state_runner import StateRunner
from setblock.model.runners.static_passes import StaticPasses, state_of
from setblock.model.weights import PrepackedLinear, Quantization, prepack


@dataclass(eq=False, repr=False)
class SBDModel:
    """A model that decodes in blocks: a `LanguageModel` of `setblock.model.protocol` that can be trained and saved.

    Attributes:
        model: the causal LM, unchanged.
        tokenizer: its tokenizer.
        sbd_config: its SBD config, or None if it was never prepared for SBD.
        quantization: how its weights are stored, if they are quantised. The model then cannot be trained or saved.
        end_of_text_ids: ids that end an answer.
        draft_text: texts that method `exact` copies drafts from, besides each request's own (`draft_text_of`); None at first.
        num_parameters: the number of weights; tied weights count once.
        compiled: runs the compiled model, after a call of `compile`.
        cuda_graphs: whether passes are captured as CUDA graphs, after a call of `capture`.
        gate: the gate of an adapter that acts on the future block only.

    Raises:
        SetBlockError: its SBD config names such an adapter, but it was loaded without one.
    """

    model: PreTrainedModel
    tokenizer: PreTrainedTokenizerBase
    _: KW_ONLY
    sbd_config: SBDModelConfig | None = None
    quantization: Quantization | None = None
    draft_text: DraftText | None = field(default=None, init=False)
    compiled: Callable[..., Any] | None = field(default=None, init=False)
    cuda_graphs: bool = field(default=False, init=False)

    def __post_init__(self) -> None:
        config, generation = self.model.config.get_text_config(), getattr(self.model, "generation_config", None)
        self.end_of_text_ids = end_of_text_ids_of(generation, config, self.tokenizer)
        self.num_parameters = self.model.num_parameters()
        self.gate = gate_of(self.model)
        if self.gate is None and self.sbd_config is not None and self.sbd_config.noisy_adapter:
            raise SetBlockError("the model was loaded without its adapter: load it with setblock.load")

    @property
    def device(self) -> torch.device:
        """Return the device of the model."""
        device: torch.device = self.model.device
        return device

    @property
    def vocab_size(self) -> int:
        """Return V, the number of rows of its output embeddings, and so the number of logits of a position."""
        return int(self.model.get_output_embeddings().weight.shape[0])

    @property
    def context_length(self) -> int | None:
        """Return the most positions for which the model is right; None where its config and attention plan have no limit."""
        config, plan = self.model.config.get_text_config(), planned(self.model)
        own = getattr(config, "max_position_embeddings", None) or getattr(config, "n_positions", None)
        return min([int(each) for each in (own, plan and plan.context) if each], default=None)

    @property
    def prepacked(self) -> bool:
        """Whether the weights are prepacked for a CPU. The model then cannot be trained or saved."""
        return any(isinstance(module, PrepackedLinear) for module in self.model.modules())

    def compile(self, *, backend: str = "inductor") -> None:
        """Compile the model with `torch.compile`, for passes of few sizes: powers of two of rows, tokens and cached positions.

        The first pass of each size compiles it. Prompts, and requests that no pass of fixed size can serve, run as before. The
        output is the same up to floating-point rounding.

        Args:
            backend: the backend of `torch.compile`.

        Raises:
            SetBlockError: the model keeps a recurrent state, or the engine can't pack its requests.
        """
        self._refuse_fixed_sizes("compiled", "--compile")
        self.compiled = compiled_for_sizes(self.model, backend=backend)

    def capture(self) -> None:
        """Capture passes of few sizes as CUDA graphs, and launch each with one call. The first pass of each size captures it.
        Which passes these are: see `compile`. Both may be combined. The logits of all passes are read by one kernel, if Triton
        is installed, which changes the rounding of draws and entropies.

        This was tried on a CPU only, with a recorder in place of the graphs.

        Raises:
            SetBlockError: the model is not on a CUDA device, keeps a recurrent state, or the engine can't pack its requests.
        """
        self._refuse_fixed_sizes("captured", "--cuda-graphs")
        if self.device.type != "cuda":
            raise SetBlockError(f"--cuda-graphs needs a model on a CUDA device: this one is on {self.device}")
        self.cuda_graphs = True

    @property
    def needs_whole_rows(self) -> bool:
        """Whether each request needs one page for all its positions: its attention can't be computed for packed requests."""
        with lock_of(self.model):  # a pass in another thread changes the config that is read
            return not plan_of(self.model).keeps_state and plan_attention(self.model).unpackable is not None

    @property
    def static_kind(self) -> Literal["compiled", "captured"] | None:
        """See `setblock.model.protocol.runtime.LanguageModel`."""
        return "captured" if self.cuda_graphs else None if self.compiled is None else "compiled"

    @property
    def static_state(self) -> Hashable:
        """See `setblock.model.protocol.runtime.LanguageModel`."""
        return self.static_kind, self.compiled, self.sbd_config, state_of(self.model)

    def _refuse_fixed_sizes(self, done: str, option: str) -> None:
        reason = plan_attention(self.model).unpackable
        if plan_of(self.model).keeps_state:
            reason = "it keeps a recurrent state, and its passes have all sizes"
        if reason is not None:
            raise SetBlockError(f"{self.model.config.model_type} can't be {done}: {reason}; leave out {option}")

    def prepack(self) -> None:
        """Rearrange the weights of linear layers (`nn.Linear`) for this CPU's matrix kernels. This cannot be undone.

        The output is the same up to floating-point rounding.

        Raises:
            SetBlockError: the model is not on a CPU, is quantised, was compiled, or has weights that cannot be prepacked here.
        """
        if self.quantization is not None:
            raise SetBlockError(f"{self.quantization} weights can't be prepacked: leave out one of the two")
        if self.compiled is not None:
            raise SetBlockError("a compiled model can't be prepacked: prepack it first, then compile it")
        if not self.prepacked:
            if self.model.device.type == "cpu":  # other devices are refused
                with warnings.catch_warnings():
                    warnings.simplefilter("ignore", SetBlockWarning)  # warnings about the small copy
                    check_stored(self.model, prepack, "prepacked")
            join_adapted(self.model)
            prepack(self.model)

    def runner(
        self, *, pages: int, page_tokens: int, rows: int, whole_rows: bool = False
    ) -> PaddedRunner | PackedRunner | StateRunner:
        """See `setblock.model.protocol.runtime.LanguageModel`."""
        with lock_of(self.model):  # a pass in another thread changes the config that a runner reads
            if plan_of(self.model).keeps_state:
                together = plan_of(self.model).together
                return StateRunner(self.model, pages=pages, page_tokens=page_tokens, rows=rows, together=together)
            if whole_rows:
                return PaddedRunner(self.model, rows=pages, capacity=page_tokens)
            return PackedRunner(self.model, pages=pages, page_tokens=page_tokens)

    def static_passes(self, runner: Runner, *, rows: int, positions: int) -> StaticPasses:
        """See `setblock.model.protocol.runtime.LanguageModel`."""
        if not isinstance(runner, PackedRunner):
            raise SetBlockError(f"passes of a {type(runner).__name__} have no fixed sizes")
        return StaticPasses(runner, rows=rows, positions=positions, compiled=self.compiled)

    def prepare_for_training(
        self,
        *,
        block_sizes: Sequence[int],
        logit_shift: bool,
        first_token_from_causal: bool = False,
        noise: Literal["mask", "uniform"] = "mask",
        causal_block: bool = False,
        noisy_adapter: bool = False,
    ) -> SBDModelConfig:
        """Record the training settings in the SBD config, and add a mask token if the noise is `mask` and there is none.

        Args:
            noise: `mask`, or `uniform` for random token ids.
            causal_block: no token of a block sees a later one.
            noisy_adapter: the training updates an adapter that acts on the future block only.

        Raises:
            SetBlockError: its weights are prepacked or quantised in a way that excludes training, it has an adapter, or its
                architecture cannot be trained.
        """
        if plan_of(self.model).keeps_state and not causal_block:
            raise SetBlockError(
                f"{self.model.config.model_type} keeps a recurrent state, so that its blocks are causal: set block_attention: "
                "causal"
            )
        if reason := plan_of(self.model).untrainable:
            raise SetBlockError(f"{self.model.config.model_type} can be decoded in blocks, but not trained: {reason}")
        self._refuse_changed("trained", allowed="nf4")
        mask_token_id = None if self.sbd_config is None or noise == "uniform" else self.sbd_config.mask_token_id
        if mask_token_id is None and noise == "mask":
            mask_token_id = add_mask_token(self.model, self.tokenizer)
        self.sbd_config = SBDModelConfig(  # without the calibrations, which belong to other weights
            mask_token_id=mask_token_id,
            noise_vocab_size=self.model.config.get_text_config().vocab_size if mask_token_id is None else None,
            causal_block=causal_block,
            block_sizes=tuple(sorted(set(block_sizes))),
            logit_shift=logit_shift,
            first_token_from_causal=first_token_from_causal or logit_shift,
            noisy_adapter=noisy_adapter,
        )
        self.sbd_config.write_to(self.model.config)
        return self.sbd_config

    def end_answers_as_trained(self) -> tuple[int, ...]:
        """Add the tokens that close an answer in training to those that end one, here and in saved checkpoints. Return the
        added ids."""
        before, self.end_of_text_ids = self.end_of_text_ids, with_closing_ids(self.end_of_text_ids, self.tokenizer)
        new = self.end_of_text_ids[len(before) :]
        if new:
            self.write_end_of_text_ids()
        return new

    def write_end_of_text_ids(self) -> None:
        """Write the ids that end an answer into the model's configs, which are saved with it."""
        ids: list[int] | int = list(self.end_of_text_ids) if len(self.end_of_text_ids) > 1 else self.end_of_text_ids[0]
        for config in (self.model.config.get_text_config(), getattr(self.model, "generation_config", None)):
            if config is not None:
                config.eos_token_id = ids

    def save(
        self,
        folder: str | Path,
        *,
        dtype: torch.dtype | None = None,
        state: dict[str, Tensor] | None = None,
        adapter: Path | None = None,
        draft_text: Path | None = None,
    ) -> None:
        """Save a checkpoint that plain Transformers can load too: safetensors, config (with the SBD config), tokenizer, and a
        short file with which Transformers' `generate` decodes in blocks.

        Each file is first written under another name, and `config.json` is renamed last. An interrupted save therefore never
        leaves an incomplete checkpoint that looks complete. If the folder holds an older checkpoint, the weights that its index
        names are deleted. Other files stay.

        Args:
            folder: the destination, which is created if necessary.
            dtype: the type that the stored weights are rounded to. The config still names the type to run in.
            state: the weights, if the model itself does not hold all of them, or if the config is to name their type.
            adapter: a folder written by PEFT, to include in the checkpoint.
            draft_text: a file of texts to copy drafts from, in a format that `read_texts` reads, to include in the checkpoint.
                Without it, an older draft text in the folder is deleted.

        Raises:
            SetBlockError: the weights are quantised or prepacked, the model has an adapter, the draft text can't be used, the
                folder is an adapter's or can't be written, or a tensor is missing from what was written. The folder is then
                unchanged.
        """
        self._refuse_changed("saved")
        texts = [] if draft_text is None else list(read_texts(draft_text))
        if draft_text is not None:
            draft_text_of(texts, self)  # raises if the texts could not be loaded later
        folder = Path(folder)
        refuse_adapter(folder)
        with writing(folder), ExitStack() as opened:
            folder.mkdir(parents=True, exist_ok=True)
            whole = Path(opened.enter_context(tempfile.TemporaryDirectory(prefix=".saving-", dir=folder)))
            state = self.model.state_dict() if state is None else state
            runs_in = mode(weight.dtype for weight in state.values() if weight.is_floating_point())  # the commonest
            if dtype is not None:
                state = {name: w.to(dtype) if w.is_floating_point() else w for name, w in state.items()}
            tied: dict[str, str] = getattr(self.model, "all_tied_weights_keys", None) or {}
            state = {name: weight for name, weight in state.items() if name not in tied}  # made again on loading
            state = _with_own_tensors(state)
            expected = sums_of(state.items())
            with prefixed(f"can't write {folder}", SafetensorError):
                self.model.save_pretrained(whole, state_dict=state)
            refuse_loss(expected, stored_sums(whole), folder)
            self.tokenizer.save_pretrained(whole)
            config = json.loads((whole / "config.json").read_text()) | {"dtype": str(runs_in).removeprefix("torch.")}
            (whole / "config.json").write_text(json.dumps(config, indent=2, sort_keys=True) + "\n")
            if self.sbd_config is not None:  # every checkpoint gets the bundled model's program
                program = Path("custom_generate", "generate.py")
                (whole / program).parent.mkdir()
                shutil.copyfile(ASSETS / "word-problems" / program, whole / program)
            if adapter is not None:
                shutil.copytree(adapter, whole / ADAPTER_FOLDER)
                if self.sbd_config is not None and self.sbd_config.noisy_adapter:
                    (whole / ADAPTER_FOLDER / FACTS_FILE).write_text(json.dumps(self.sbd_config.to_json()) + "\n")
            if texts:
                lines = "".join(f"{json.dumps(text)}\n" for text in texts)
                (whole / DRAFT_TEXT_FILE).write_text(lines, encoding="utf-8")
            files = (path for path in whole.rglob("*") if path.is_file())
            # The index comes first: if this save is interrupted, a later one can delete the shards that it names.
            written = sorted(files, key=lambda path: (path.name == "config.json", path.name != WEIGHTS_INDEX))
            # An older checkpoint loses its `config.json` before any of its other files changes. Unrelated files stay.
            (folder / "config.json").unlink(missing_ok=True)
            for stale in {*weight_files(folder), folder / DRAFT_TEXT_FILE} - {folder / path.name for path in written}:
                stale.unlink(missing_ok=True)
            readable = (whole / "config.json").stat().st_mode
            for path in written:
                path.chmod(readable)  # safetensors makes files that only their owner can read
                target = folder / path.relative_to(whole)
                target.parent.mkdir(exist_ok=True)
                os.replace(path, target)

    def _refuse_changed(self, what: str, *, allowed: str | None = None) -> None:
        stored = "prepacked" if self.prepacked else self.quantization
        if stored not in (None, allowed):
            raise SetBlockError(f"a model whose weights are {stored} can't be {what}: load it without")
        if self.gate is not None:
            raise SetBlockError(
                f"a model with an adapter on its future block can't be {what} again: take its base model"
            )


def _with_own_tensors(state: dict[str, Tensor]) -> dict[str, Tensor]:
    """Return the state with a copy of each tensor that has several names: Transformers would save it under one of them."""
    seen: set[int] = set()
    own = {}
    for name, weight in state.items():
        is_shared = weight.device.type != "meta" and weight.data_ptr() in seen
        own[name] = weight.clone() if is_shared else weight
        seen.add(weight.data_ptr())
    return own


def end_of_text_ids_of(generation: Any, config: Any, tokenizer: PreTrainedTokenizerBase) -> tuple[int, ...]:
    """Return the ids that end an answer: from the generation config, the config or the tokenizer, the first that has any."""
    for each in (generation, config, tokenizer):
        if (ids := getattr(each, "eos_token_id", None)) is not None:
            return tuple(ids) if isinstance(ids, list) else (ids,)
    return ()


def with_closing_ids(ends: Sequence[int], tokenizer: PreTrainedTokenizerBase) -> tuple[int, ...]:
    """Return the ids `ends`, which end an answer, plus any with which training closes one: the tokens that close the
    assistant's turn in the chat template, and the tokenizer's end-of-text token."""
    closing = [*closing_ids(tokenizer), *([] if tokenizer.eos_token_id is None else [int(tokenizer.eos_token_id)])]
    return tuple(dict.fromkeys([*ends, *closing]))
