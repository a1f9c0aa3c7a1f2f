"""The check, when vLLM starts, that it has what the plugin uses, by the names and arguments in its source files.

The files are read, and not imported: vLLM loads plugins in each of its processes, before it has decided what these need. So a
version that came after this one is used as long as it fits, and one that doesn't is left alone.
"""

import ast
from collections.abc import Callable, Iterator
from functools import cache
from importlib.util import find_spec
from pathlib import Path

from setblock_vllm import vllm_api

ReadModule = Callable[[str], str | None]  # the source of a module by its name; None if there is none

# Of functions, the arguments that are passed; of classes, the attributes that are read
PASSED = {
    "vllm.config.diffusion:DiffusionConfig": "canvas_length",
    "vllm.v1.worker.gpu.attn_utils:build_attn_metadata": "attn_groups num_reqs num_tokens query_start_loc_gpu "
    "query_start_loc_cpu max_query_len seq_lens max_seq_len block_tables slot_mappings kv_cache_config "
    "seq_lens_cpu_upper_bound positions is_prefilling causal for_cudagraph_capture",
    "vllm.v1.outputs:LogprobsTensors": "logprob_token_ids logprobs selected_token_ranks cu_num_generated_tokens",
    "vllm.v1.worker.gpu.sample.output:SamplerOutput": "sampled_token_ids logprobs_tensors num_nans num_sampled num_rejected",
    "vllm.v1.worker.gpu.input_batch:InputBatch": "req_ids num_reqs num_reqs_after_padding idx_mapping num_scheduled_tokens "
    "num_tokens num_tokens_after_padding num_draft_tokens_per_req query_start_loc query_start_loc_np seq_lens "
    "seq_lens_cpu_upper_bound is_prefilling_np positions logits_indices cu_num_logits input_ids max_query_len",
    "vllm.v1.core.sched.output:NewRequestData": "req_id sampling_params num_computed_tokens prefill_token_ids prompt_len",
    "vllm.v1.core.sched.scheduler:Scheduler": "schedule",
    "vllm.model_executor.models.registry:_ModelRegistry": "register_model",
    "vllm.sampling_params:SamplingParams": "temperature min_p seed min_tokens logit_bias bad_words allowed_token_ids "
    "structured_outputs ignore_eos stop_token_ids extra_args clone",
    "vllm.sampling_params:StructuredOutputsParams": "json json_object regex choice grammar structural_tag whitespace_pattern "
    "disable_additional_properties",
    "vllm.v1.attention.backends.registry:AttentionBackendEnum": "TRITON_ATTN FLASH_ATTN CPU_ATTN",
}
# Methods that are overridden or called by vLLM, with all their arguments
METHODS = {
    "vllm.v1.worker.gpu.model_states.default:DefaultModelState": {
        "__init__": "vllm_config model encoder_cache device",
        "add_request": "req_index new_req_data",
        "remove_request": "req_id",
        "prepare_inputs": "input_batch req_states",
        "prepare_attn": "input_batch cudagraph_mode block_tables slot_mappings attn_groups kv_cache_config for_capture "
        "ubatch_idx model_specific_attn_metadata",
    },
    "vllm.v1.worker.gpu.model_states.interface:ModelState": {"custom_sampler": "sampler"},
    "vllm.v1.worker.gpu.sample.logits_processor.interface:LogitsProcessor": {
        "validate_params": "sampling_params",
        "add_request": "req_idx sampling_params",
        "apply": "logits ctx",
    },
    "vllm.model_executor.layers.linear:LinearMethodBase": {"apply": "layer x bias"},
}
# What the model runner, the scheduler and others do with it
LINES = {
    "vllm.v1.engine.input_processor": (
        "def process_inputs(",
        "        request_id: str,",
        "params.verify(",
        "self.renderer",
    ),
    "vllm.v1.engine.llm_engine": ("self.input_processor.process_inputs(",),
    "vllm.v1.engine.async_llm": ("async def add_request(", "self.input_processor.process_inputs("),
    "vllm.model_executor.layers.linear": (
        "self.quant_method.apply(self, input_, bias)",
        "self.quant_method.apply(self, input_parallel, bias_)",
        "self.output_partition_sizes",
        "self.num_kv_head_replicas",
    ),
    "vllm.v1.worker.gpu.model_runner": (
        "self.model_state.custom_sampler(self.sampler)",
        "self.model_state.num_new_sampled_tokens_per_step",
        "hidden_states[input_batch.logits_indices]",
        "**self.model_state.prepare_inputs(input_batch, self.req_states)",
    ),
    "vllm.v1.core.sched.diffusion_scheduler": ("diffusion_canvas_length", "request.spec_token_ids"),
}


def problem(read: ReadModule | None = None) -> str | None:
    """Return why the plugin can't be used with this vLLM, or None. `read`: its modules, by default those installed."""
    found = vllm_api.installed_version()
    if found is None:
        return f"needs vLLM {vllm_api.SUPPORTED}, and there is none"
    missing = next(mismatches(_installed if read is None else read), None)
    return None if missing is None else f"needs vLLM {vllm_api.SUPPORTED}, and {found} has changed: {missing}"


def mismatches(read: ReadModule) -> Iterator[str]:
    """Yield what vLLM's modules lack of what the plugin uses."""
    read = cache(read)
    for where in vllm_api.HOMES.values():
        module, name = where.split(":")
        if (source := read(module)) is None or not _binds(source, name):
            yield f"{module} has no {name}"
    for where, attributes in PASSED.items():
        module, name = where.split(":")
        if lacking := [each for each in attributes.split() if each not in _names_of(read(module) or "", name)]:
            yield f"{module}.{name} has no {', '.join(lacking)}"
    for where, methods in METHODS.items():
        module, name = where.split(":")
        for method, arguments in methods.items():
            if _arguments(read(module) or "", name, method) != arguments.split():
                yield f"{module}.{name}.{method} has other arguments than {arguments.replace(' ', ', ')}"
    for module, lines in LINES.items():
        text = read(module) or ""
        yield from (f"{module} has no `{line}`" for line in lines if line not in text)


def _installed(module: str) -> str | None:
    spec = find_spec("vllm")
    folder = Path(spec.origin).parents[1] if spec is not None and spec.origin is not None else None
    if folder is None:
        return None
    path = folder.joinpath(*module.split("."))
    files = [each for each in (path.with_suffix(".py"), path / "__init__.py") if each.is_file()]
    return files[0].read_text(encoding="utf-8") if files else None


@cache
def _parsed(source: str) -> list[ast.AST]:
    return list(ast.walk(ast.parse(source)))


def _binds(source: str, name: str) -> bool:
    """Return whether a module defines, assigns or imports a name; vLLM may import some only when they are used."""
    if any(_is_called(each, name) for each in _parsed(source)):
        return True
    stored = (each.id for each in _parsed(source) if isinstance(each, ast.Name) and isinstance(each.ctx, ast.Store))
    return name in stored or f'"{name}"' in source


def _is_called(node: ast.AST, name: str) -> bool:
    if isinstance(node, ast.alias):
        return (node.asname or node.name) == name
    return isinstance(node, ast.ClassDef | ast.FunctionDef) and node.name == name


def _names_of(source: str, name: str) -> set[str]:
    """Return the arguments of a function, or the fields and methods of a class."""
    for node in _parsed(source):
        if isinstance(node, ast.FunctionDef) and node.name == name:
            return {each.arg for each in (*node.args.args, *node.args.kwonlyargs)}
        if isinstance(node, ast.ClassDef) and node.name == name:
            fields = {
                each.target.id
                for each in node.body
                if isinstance(each, ast.AnnAssign) and isinstance(each.target, ast.Name)
            }
            targets = [target for each in node.body if isinstance(each, ast.Assign) for target in each.targets]
            methods = {each.name for each in node.body if isinstance(each, ast.FunctionDef)}
            return fields | methods | {each.id for each in targets if isinstance(each, ast.Name)}
    return set()


def _arguments(source: str, name: str, method: str) -> list[str] | None:
    for node in _parsed(source):
        if isinstance(node, ast.ClassDef) and node.name == name:
            for each in node.body:
                if isinstance(each, ast.FunctionDef) and each.name == method:
                    return [argument.arg for argument in each.args.args[1:]]
    return None
