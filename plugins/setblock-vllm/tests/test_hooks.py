"""What the plugin uses of vLLM is looked for in its source files: of a made-up vLLM, and of the wheel that VLLM_WHEEL names.

`pip download --no-deps --only-binary :all: --platform manylinux_2_28_x86_64 --python-version 3.12 vllm==0.33.0` gets it.
"""

import os
import zipfile
from collections import defaultdict

import pytest

from setblock_vllm import vllm_api
from setblock_vllm.hooks import LINES, METHODS, PASSED, mismatches, problem

WHEEL = os.environ.get("VLLM_WHEEL")


def made_up() -> dict[str, str]:
    """The source of modules that have what is used, and nothing else."""
    sources = defaultdict[str, list[str]](list)
    classes: dict[str, list[str]] = {where: [] for where in (*vllm_api.HOMES.values(), *PASSED, *METHODS)}
    for where, attributes in PASSED.items():
        classes[where] += [f"    {each}: object" for each in attributes.split()]
    for where, methods in METHODS.items():
        classes[where] += [f"    def {name}(self, {', '.join(args.split())}): ..." for name, args in methods.items()]
    for where, lines in classes.items():
        module, name = where.split(":")
        sources[module] += [f"class {name}:", *(lines or ["    ..."])]
    for module, texts in LINES.items():
        sources[module] += [f"# {each}" for each in texts]
    return {module: "\n".join(lines) for module, lines in sources.items()}


def test_a_vllm_that_has_all_fits() -> None:
    assert list(mismatches(made_up().get)) == []


@pytest.mark.parametrize(
    ("module", "before", "after", "message"),
    [
        (
            "vllm.v1.worker.gpu.attn_utils",
            "build_attn_metadata",
            "build_metadata",
            "attn_utils has no build_attn_metadata",
        ),
        ("vllm.v1.worker.gpu.attn_utils", "causal: object", "is_causal: object", "build_attn_metadata has no causal"),
        ("vllm.v1.worker.gpu.input_batch", "cu_num_logits: object", "", "InputBatch has no cu_num_logits"),
        (
            "vllm.v1.worker.gpu.model_states.default",
            "prepare_inputs(self, input_batch",
            "prepare_inputs(self, batch",
            "DefaultModelState.prepare_inputs has other arguments than input_batch, req_states",
        ),
        (
            "vllm.v1.worker.gpu.model_runner",
            "custom_sampler(self.sampler)",
            "",
            "has no `self.model_state.custom_sampler",
        ),
    ],
)
def test_what_has_changed_is_named(
    module: str, before: str, after: str, message: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    sources = made_up()
    assert before in sources[module]
    sources[module] = sources[module].replace(before, after)
    assert message in next(mismatches(sources.get))
    monkeypatch.setattr(vllm_api, "installed_version", lambda: "0.99")
    assert message in (problem(sources.get) or "")


def test_where_there_is_no_vllm_it_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(vllm_api, "installed_version", lambda: None)
    assert "there is none" in (problem() or "")


def test_each_module_that_is_gone_is_found() -> None:
    for module in made_up():
        sources = made_up()
        del sources[module]
        assert list(mismatches(sources.get)), module


@pytest.mark.skipif(WHEEL is None, reason="VLLM_WHEEL names no wheel: see above")
def test_a_wheel_fits() -> None:
    assert WHEEL is not None
    with zipfile.ZipFile(WHEEL) as files:
        names = set(files.namelist())

        def read(module: str) -> str | None:
            path = module.replace(".", "/")
            found = [each for each in (f"{path}.py", f"{path}/__init__.py") if each in names]
            return files.read(found[0]).decode() if found else None

        assert list(mismatches(read)) == []
