"""The same weights in llama.cpp: a GGUF file of a Llama-shaped model, and a process that decodes token ids greedily.

Knows llama.cpp's names. Needs `pip install gguf xllamacpp`, the latter a wheel of llama.cpp, built for AVX2.
"""

import importlib.util
import multiprocessing
import os
import re
import signal
import weakref
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

MISSING = [name for name in ("gguf", "xllamacpp") if importlib.util.find_spec(name) is None]

_LAYER = {
    "input_layernorm": "attn_norm",
    "self_attn.q_proj": "attn_q",
    "self_attn.k_proj": "attn_k",
    "self_attn.v_proj": "attn_v",
    "self_attn.o_proj": "attn_output",
    "post_attention_layernorm": "ffn_norm",
    "mlp.gate_proj": "ffn_gate",
    "mlp.up_proj": "ffn_up",
    "mlp.down_proj": "ffn_down",
}


def write_gguf(model: Any, path: Path) -> None:
    """Write a Llama of Transformers as GGUF, its matrices in the model's own type. The vocabulary is `<0>`, `<1>`, ...,
    since only token ids go in and come out.

    Raises:
        ValueError: the model is no plain Llama.
    """
    import gguf

    config = model.config
    if config.model_type != "llama" or config.rope_parameters["rope_type"] != "default":
        raise ValueError(f"only plain Llamas are written, not {config.model_type}")
    kinds = {torch.float32: gguf.GGMLQuantizationType.F32, torch.bfloat16: gguf.GGMLQuantizationType.BF16}
    kind = kinds[model.dtype]
    head_dim = config.head_dim or config.hidden_size // config.num_attention_heads
    writer = gguf.GGUFWriter(path, "llama")
    writer.add_context_length(config.max_position_embeddings)
    writer.add_embedding_length(config.hidden_size)
    writer.add_block_count(config.num_hidden_layers)
    writer.add_feed_forward_length(config.intermediate_size)
    writer.add_head_count(config.num_attention_heads)
    writer.add_head_count_kv(config.num_key_value_heads)
    writer.add_layer_norm_rms_eps(config.rms_norm_eps)
    writer.add_rope_dimension_count(head_dim)
    writer.add_rope_freq_base(config.rope_parameters["rope_theta"])
    writer.add_vocab_size(config.vocab_size)
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("default")
    writer.add_token_list([f"<{i}>" for i in range(config.vocab_size)])
    writer.add_token_types([gguf.TokenType.USER_DEFINED] * config.vocab_size)
    writer.add_token_merges(["< 0"])  # it wants one, and has no text to apply it to
    writer.add_add_bos_token(False)
    end = config.eos_token_id
    writer.add_eos_token_id(end[0] if isinstance(end, list) else config.vocab_size - 1 if end is None else end)
    for name, weight in model.state_dict().items():
        if name == "lm_head.weight" and config.tie_word_embeddings:
            continue
        values = _paired(weight, head_dim) if name.endswith(("q_proj.weight", "k_proj.weight")) else weight
        values = values.detach().cpu().contiguous()
        if values.dim() == 1 or model.dtype == torch.float32:
            writer.add_tensor(_name_of(name), values.float().numpy())
        else:
            writer.add_tensor(_name_of(name), values.view(torch.int16).numpy().view("uint8"), raw_dtype=kind)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def _paired(weight: Tensor, head_dim: int) -> Tensor:
    """llama.cpp rotates neighbouring dimensions of a head, Transformers those half a head apart."""
    heads = weight.shape[0] // head_dim
    return weight.view(heads, 2, head_dim // 2, -1).transpose(1, 2).reshape(weight.shape)


def _name_of(name: str) -> str:
    known = {
        "model.embed_tokens.weight": "token_embd.weight",
        "model.norm.weight": "output_norm.weight",
        "lm_head.weight": "output.weight",
    }
    if name in known:
        return known[name]
    _, _, layer, rest = name.split(".", 3)
    return f"blk.{layer}.{_LAYER[rest.removesuffix('.weight')]}.weight"


class LlamaCpp:
    """A model in llama.cpp, decoding one request at a time, greedily and with nothing kept between requests.

    It lives in a process of its own, which is stopped while it has nothing to do: its threads, waiting for work, would take
    time from whoever is measured next.

    Args:
        path: a GGUF file.
        threads: of its matrix products.
        context: positions to allocate.
        draft: a GGUF file of a draft model for speculative decoding.
        draft_tokens: how many it drafts at a time.
    """

    def __init__(
        self, path: Path, *, threads: int, context: int, draft: Path | None = None, draft_tokens: int = 8
    ) -> None:
        spawn = multiprocessing.get_context("spawn")
        self._pipe, theirs = spawn.Pipe()
        options = {"threads": threads, "context": context, "draft": draft, "draft_tokens": draft_tokens}
        process = spawn.Process(target=_serve, args=(theirs, path, options), daemon=True)
        process.start()
        theirs.close()  # so that its end is seen here
        # Killed, since a stopped process heeds nothing else.
        self.close = weakref.finalize(self, process.kill)
        self._pid: int = process.pid  # type: ignore[assignment]
        self._receive()
        os.kill(self._pid, signal.SIGSTOP)

    def decode(self, prompt: list[int], *, max_new_tokens: int, never_ends: bool) -> list[int]:
        """Token ids of the answer, its end-of-text included."""
        os.kill(self._pid, signal.SIGCONT)
        self._pipe.send((prompt, max_new_tokens, never_ends))
        answer = self._receive()
        os.kill(self._pid, signal.SIGSTOP)
        return answer

    def _receive(self) -> list[int]:
        try:
            found: list[int] = self._pipe.recv()
        except EOFError:
            raise RuntimeError("llama.cpp's process ended; what it said is above") from None
        return found


def _serve(pipe: Connection, path: Path, options: dict[str, Any]) -> None:
    """What the process does: load the model, say so, and answer requests until it is killed."""
    server = _server(path, **options)
    pipe.send([])
    while True:
        prompt, max_new_tokens, never_ends = pipe.recv()
        answer = server.handle_completions(
            {
                "prompt": prompt,
                "max_tokens": max_new_tokens,
                "temperature": 0,
                "repeat_penalty": 1.0,
                "ignore_eos": never_ends,
                "cache_prompt": False,
            }
        )
        pipe.send([int(token) for token in re.findall(r"<(\d+)>", answer["choices"][0]["text"])])


def _server(path: Path, *, threads: int, context: int, draft: Path | None, draft_tokens: int) -> Any:
    import xllamacpp

    params = xllamacpp.CommonParams()
    params.model.path = str(path)
    params.n_ctx = context
    params.n_parallel = 1
    params.cpuparams.n_threads = params.cpuparams_batch.n_threads = threads
    params.n_gpu_layers = 999 if torch.cuda.is_available() else 0
    params.verbosity = -1
    params.fit_params = False
    params.cache_ram_mib = 0
    if draft is not None:
        params.speculative.draft.mparams.path = str(draft)
        params.speculative.draft.n_max = draft_tokens
        params.speculative.types = [xllamacpp.common_speculative_type.COMMON_SPECULATIVE_TYPE_DRAFT_SIMPLE]
    return xllamacpp.Server(params)
