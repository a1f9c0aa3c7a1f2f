"""vLLM's own fields of a request, for models in blocks: `temperature`, `min_p`, `seed`, `min_tokens`, `logit_bias`,
`response_format`, `structured_outputs`, and the forms that tools give.

vLLM refuses these for all diffusion models, in `SamplingParams.verify`, before a hook of a plugin sees the request.
`InputProcessor.process_inputs` is where every request enters, offline and in the server. A step before it hands vLLM a copy of
the parameters whose fields have moved to `extra_args`, where block decoding has its settings. Requests of other models pass
through as they are.
"""

import asyncio
import json
import os
import secrets
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from functools import wraps
from typing import Any

from setblock.decoding.settings.table import DecodingSettings
from setblock.errors import ParameterError, SetBlockError
from setblock.structure.compiled import grammars_of
from setblock.structure.kinds import WORDS, close
from setblock_vllm import vllm_api
from setblock_vllm.parameters import settings_of
from setblock_vllm.plugin import PREFIX

_forms = ThreadPoolExecutor(1, thread_name_prefix="setblock-forms")  # a sandbox tries one form at a time


def install() -> None:
    """Wrap `InputProcessor.process_inputs` and `AsyncLLM.add_request`, once in a process. Unless the operator says otherwise,
    let vLLM hold a call of a tool to the tool's schema, and not to a structural tag, which our grammars lack."""
    os.environ.setdefault("VLLM_ENFORCE_STRICT_TOOL_CALLING", "0")
    processor, engine = vllm_api.InputProcessor, vllm_api.AsyncLLM
    if not hasattr(processor.process_inputs, "takes_fields"):
        processor.process_inputs = _with_fields(processor.process_inputs)
        engine.add_request = _with_form_tried(engine.add_request)


def _with_fields(process_inputs: Callable[..., Any]) -> Callable[..., Any]:
    @wraps(process_inputs)
    def process(self: Any, request_id: str, prompt: Any, params: Any, *args: Any, **named: Any) -> Any:
        if not _is_in_blocks(self, params):
            return process_inputs(self, request_id, prompt, params, *args, **named)
        with _mistakes_sent_back():
            moved = fields_moved(params)
            settings = settings_of(moved)
            check_token_ids(settings, vocab_size=self.model_config.get_vocab_size())
            try_form(settings, moved, self)
        request = process_inputs(self, request_id, prompt, moved, *args, **named)
        # vLLM does not look for stop texts before
        request.sampling_params.min_tokens = settings.min_new_tokens
        return request

    process.takes_fields = True  # type: ignore[attr-defined]
    return process


def _with_form_tried(add_request: Callable[..., Any]) -> Callable[..., Any]:
    """Let the server go on while a form is tried: `process_inputs` runs in its event loop, and finds it compiled."""

    @wraps(add_request)
    async def add(self: Any, request_id: str, prompt: Any, params: Any, *args: Any, **named: Any) -> Any:
        processor = self.input_processor
        if _is_in_blocks(processor, params):
            with _mistakes_sent_back():
                moved = fields_moved(params)
                settings = settings_of(moved)
                if settings.structure is not None:
                    loop = asyncio.get_running_loop()
                    await loop.run_in_executor(_forms, try_form, settings, moved, processor)
        return await add_request(self, request_id, prompt, params, *args, **named)

    return add


def _is_in_blocks(processor: Any, params: Any) -> bool:
    names = getattr(processor.model_config.hf_config, "architectures", None) or ()
    return isinstance(params, vllm_api.SamplingParams) and any(name.startswith(PREFIX) for name in names)


@contextmanager
def _mistakes_sent_back() -> Iterator[None]:
    """Turn a client's mistake into vLLM's error for a request that is not valid, status 400."""
    try:
        yield
    except SetBlockError as error:
        raise vllm_api.VLLMValidationError(str(error)) from error


def fields_moved(params: Any) -> Any:
    """Return a copy of vLLM's `SamplingParams` whose fields have moved to `extra_args`, and have vLLM's neutral values. What is
    in `extra_args` already stays as it is. Raise `ParameterError` for a field that block decoding has not."""
    for name, instead in (("bad_words", "banned_tokens"), ("allowed_token_ids", "structured_outputs")):
        if getattr(params, name):
            raise ParameterError(f"{name} must be left out: block decoding has {instead}")
    extra = dict(params.extra_args or {})
    extra.setdefault("temperature", params.temperature)
    if params.min_p:
        extra.setdefault("min_p", params.min_p)
    if params.min_tokens:
        extra.setdefault("min_new_tokens", params.min_tokens)
    if params.logit_bias:
        extra.setdefault("logit_bias", json.dumps(params.logit_bias))
    if params.structured_outputs is not None:
        if "structure" in extra:
            raise ParameterError("structure and structured_outputs exclude each other: give one")
        extra["structure"] = json.dumps(structure_in(params.structured_outputs))
    if params.seed is not None:
        extra.setdefault("seed", params.seed)
    elif extra["temperature"] != 0:  # each answer is another one, as with other models
        extra.setdefault("seed", secrets.randbits(63))
    moved = params.clone()
    moved.extra_args, moved.temperature, moved.min_p, moved.seed = extra, 1.0, 0.0, None
    moved.min_tokens, moved.logit_bias, moved.structured_outputs = 0, None, None
    return moved


def structure_in(outputs: Any) -> dict[str, Any]:
    """Return vLLM's `StructuredOutputsParams` as an object of one key of `WORDS`. Raise `ParameterError` for what only vLLM's
    own grammars have."""
    for name, instead in (
        ("structural_tag", "block decoding has json, json_object, regex, choice and grammar"),
        ("whitespace_pattern", "a JSON text has a space behind commas and colons, and no other"),
    ):
        if getattr(outputs, name) is not None:
            raise ParameterError(f"{name} must be left out: {instead}")
    words = {word: getattr(outputs, word) for word in WORDS if getattr(outputs, word) is not None}
    if len(words) != 1:
        raise ParameterError(
            f"structured_outputs must have one of {', '.join(WORDS)}, not {', '.join(words) or 'none'}"
        )
    if outputs.disable_additional_properties and "json" in words:
        schema = words["json"]
        words["json"] = json.loads(schema) if isinstance(schema, str) else schema
        close(words["json"])
    return words


def check_token_ids(settings: DecodingSettings, *, vocab_size: int) -> None:
    """Raise `ParameterError` if a request names a token id that the model does not have."""
    for name in ("logit_bias", "banned_tokens"):
        for token_id in getattr(settings, name):
            if not 0 <= token_id < vocab_size:
                raise ParameterError(f"token ids of {name} must be between 0 and {vocab_size - 1}, not {token_id}")


def try_form(settings: DecodingSettings, params: Any, processor: Any) -> None:
    """Compile a request's form within the bounds of the sandbox, if it has one. Raise `ParameterError` if it is not valid or
    too complex, or nothing ends the answer."""
    if settings.structure is None:
        return
    if processor.tokenizer is None:
        raise ParameterError("structure needs a tokenizer: serve without --skip-tokenizer-init")
    ends = not params.ignore_eos and processor.renderer.get_eos_token_id() is not None
    if not ends and not params.stop_token_ids:
        raise ParameterError("structure needs a token that ends the text: leave out ignore_eos, or give stop_token_ids")
    grammars_of(processor.tokenizer).compiled(settings.structure)
