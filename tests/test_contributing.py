"""CONTRIBUTING.md says which files an extension touches: they exist, and one of each can be added in them alone.

A sampler, a task, a setting and a noising trick are each added in a copy of the package, in the files of the page alone, and
work wherever they should. Runtimes and constraints are added without any file: `decoding/test_runtimes.py` and
`decoding/constraints/test_constraint.py` do it.
"""

import os
import re
import shutil
import sys
import warnings
from pathlib import Path

import pytest

import setblock
from training.processes import in_processes

ROOT = Path(__file__).parent.parent
PACKAGE = Path(setblock.__file__).parent
PAGE = (ROOT / "CONTRIBUTING.md").read_text()
SECTIONS = dict(re.findall(r"^## (Add [^\n]+)\n(.*?)(?=^## )", PAGE, flags=re.DOTALL | re.MULTILINE))
# Where a file may be that the page names without its folder
FOLDERS = ("", "src/setblock/decoding", "src/setblock", "tests/decoding/samplers")


@pytest.mark.parametrize("title", SECTIONS)
def test_the_files_that_a_list_names_are_there(title: str) -> None:
    named = re.findall(r"`([\w./-]+(?:\.py|\.md|/))`", SECTIONS[title]) + re.findall(r"\]\(([\w./-]+)", SECTIONS[title])
    assert named
    missing = [name for name in named if not any((ROOT / folder / name).exists() for folder in FOLDERS)]
    assert missing == []


# One of each, added in a copy of the package. Of a file that is there already: what is replaced, and by what.

SAMPLER = '''"""Every second candidate, the first one included."""

from dataclasses import dataclass
from typing import ClassVar

from setblock.decoding.samplers import BlockView, Selection


@dataclass(frozen=True)
class EveryOther:
    """Reveal every `step`-th candidate."""

    name: ClassVar[str] = "every-other"
    step: int = 2

    def select(self, block: BlockView) -> Selection:
        """Choose."""
        number = block.candidates.cumsum(dim=1) - 1
        return Selection(block.candidates & (number % self.step == 0))
'''
TASK = (ROOT / "docs" / "tasks.md").read_text().split("```python\n")[1].split("```")[0]
NEW = {"decoding/samplers/every_other.py": SAMPLER, "data/tasks/doubles.py": TASK}
CHANGED = {
    "decoding/settings/table.py": {
        "    seed: int = sampling(\n": """    without_token: int | None = point(
        None, "A token id that is never written.", Range(0), metavar="ID"
    )
    seed: int = sampling(
"""
    },
    "decoding/step/logits.py": {
        "each.logit_bias or each.banned_tokens for": (
            "each.logit_bias or each.banned_tokens or each.without_token is not None for"
        ),
        "            bias[row, list(each.banned_tokens)] = -torch.inf\n": """\
            bias[row, list(each.banned_tokens)] = -torch.inf
            if each.without_token is not None:
                bias[row, each.without_token] = -torch.inf
""",
    },
    "training/inputs/noising.py": {
        "    mask_rate_per: MaskRatePer": "    keep_first: bool = False\n    mask_rate_per: MaskRatePer",
        "        mask_rate_per: the unit": (
            "        keep_first: leave the first token of each block.\n        mask_rate_per: the unit"
        ),
        "            tokens = np.concatenate(": """            if noising.keep_first:
                is_masked = is_masked & (np.diff(block_of, prepend=-1) == 0)
            tokens = np.concatenate(""",
    },
}

CHECKED = r"""
import json
import runpy
import sys
from dataclasses import replace
from types import SimpleNamespace

import numpy as np
from typer.testing import CliRunner

import setblock
from setblock.cli.app import app
from setblock.decoding.settings.resolve import with_calibration
from setblock.decoding.settings.resolve import point_from_json
from setblock.evaluation.operating_point import label_of, point_to_json
from setblock.decoding.settings.table import DecodingSettings
from setblock.evaluation.sweeps.grid import grids_of, points_of
from setblock.integrations.transformers import OPTIONS
from setblock.integrations.lm_eval.arguments import request_settings, settings_from
from setblock_vllm.parameters import settings_of as of_vllm
from setblock.server.api.protocol import ChatBody
from setblock.server.api.settings import settings_of as of_the_server
from setblock.model.protocol.sbd_config import CalibratedSetting
from setblock.training.inputs.noising import Noising, noise_row
from setblock.training.recipe import load_recipe

package, recipe, keys = sys.argv[1:]
assert setblock.__file__.startswith(package)
PROMPT = "Maya has 12 apples. Maya finds 7 more. How many apples does Maya have now?"


def said(*arguments):
    result = CliRunner().invoke(app, [*arguments, "--json"])
    assert result.exit_code == 0, result.output
    return json.loads(result.stdout)


def body(**extra):
    return ChatBody.model_validate({"model": "m", "messages": [{"role": "user", "content": "a"}], **extra})


# The sampler and the task
blocks = ("--method", "sbd", "--sampler", "every-other", "--sampler-option", "step=3", "--max-new-tokens", "6")
assert said("generate", PROMPT, "--trace", *blocks)["sampler_options"] == {"step": 3}
found = said("evaluate", "--task", "doubles", "--limit", "2", *blocks)
assert (found["task"], found["sampler"], found["scores"].keys()) == ("doubles", "every-other", {"digits"})
assert grids_of(["sbd"], ["every-other"], {"step": [2, 3]})[0]["step"] == [2, 3]
every_other = [
    settings_from({"sampler": "every-other"}),
    of_vllm(SimpleNamespace(extra_args={"sampler": "every-other"}, top_k=0, top_p=1.0, repetition_penalty=1.0, logprobs=None)),
    of_the_server(body(sampler="every-other"), default=DecodingSettings(method="sbd")),
]
assert {type(each.sampler).__name__ for each in every_other} == {"EveryOther"}

# The setting
set_by_each = [
    of_the_server(body(without_token=5), default=DecodingSettings(method="sbd")),
    settings_from({"without_token": 5}),
    request_settings(DecodingSettings(), {"without_token": 5}, default_max_gen_toks=256),
    of_vllm(SimpleNamespace(extra_args={"without_token": 5}, top_k=0, top_p=1.0, repetition_penalty=1.0, logprobs=None)),
    DecodingSettings(without_token=5),
]
assert {each.without_token for each in set_by_each} == {5}
assert "without_token" in OPTIONS  # of Transformers' generate
plain = said("generate", PROMPT, "--max-new-tokens", "6")["text"]
model = setblock.load()
# It trades accuracy for passes, so calibrated points keep it, and sweeps turn it
grids = grids_of(["sbd", "exact"], ["factor"], {"without_token": ["5", "6"], "factor": ["1"]})
swept = points_of(model, grids)
assert [each.without_token for each in swept] == [5, 6, 5, 6]
assert len({label_of(each) for each in swept}) == 4
kept = point_from_json(json.loads(json.dumps(point_to_json(swept[0]))))
assert (kept, kept.without_token) == (swept[0], 5)
calibrated = CalibratedSetting("some", point_to_json(kept), "5%", True, 2.0, 9, "")
model.sbd_config = replace(model.sbd_config, calibrations=(calibrated,))
assert with_calibration(model, DecodingSettings(method="sbd")).without_token == 5
assert with_calibration(model, DecodingSettings(method="sbd", without_token=7)).without_token == 7
model = setblock.load()
first = model.tokenizer(plain, add_special_tokens=False).input_ids[0]
assert said("generate", PROMPT, "--max-new-tokens", "6", "--without-token", str(first))["text"] != plain

# The noising trick
_, arguments = load_recipe(recipe, overrides={"training.keep_first": True, "training.use_cpu": True})
ids = np.arange(40)
half = noise_row(
    input_ids=ids,
    labels=ids,
    position_ids=ids,
    document_ids=0 * ids,
    block_size=4,
    noising=arguments,
    noise_ids=range(99, 100),
    end_of_text_id=0,
    context_length=64,
    rng=np.random.default_rng(1),
)
is_first = half.position_ids == half.block_starts
assert half.is_masked.any() and not half.is_masked[is_first].any()
assert "`keep_first`" in runpy.run_path(keys)["page"]()
"""


def test_one_of_each_is_added_in_the_files_of_its_list(tmp_path: Path) -> None:
    package = tmp_path / "src" / "setblock"
    shutil.copytree(PACKAGE, package, ignore=shutil.ignore_patterns("__pycache__"))
    for name, text in NEW.items():
        assert not (package / name).exists()
        (package / name).write_text(text)
    for name, changes in CHANGED.items():
        text = (package / name).read_text()
        for before, after in changes.items():
            assert text.count(before) == 1, f"{name}: {before}"
            text = text.replace(before, after)
        (package / name).write_text(text)
    files = [str(package), str(ROOT / "examples" / "tiny.yaml"), str(ROOT / "docs" / "_site" / "recipe_keys.py")]
    (tmp_path / "process").mkdir()
    in_processes(1, lambda: run_in_copy(package, files), tmp_path / "process")


def run_in_copy(package: Path, arguments: list[str]) -> None:
    """Run `CHECKED` in a process that has imported nothing of the package yet, and then imports the copy. The libraries that it
    needs are there already: a new process would take seconds for them."""
    if "setblock.model.weights" in sys.modules:
        sys.modules["setblock.model.weights"]._OPERATORS._destroy()  # PyTorch takes each name of an operator once
    for name in [name for name in sys.modules if name.partition(".")[0] in ("setblock", "setblock_vllm")]:
        del sys.modules[name]
    sys.path.insert(0, str(package.parent))
    sys.argv[1:] = arguments
    os.chdir(package.parent)
    warnings.simplefilter("default")  # as in any process
    exec(compile(CHECKED, "CHECKED", "exec"), {"__name__": "__main__"})
