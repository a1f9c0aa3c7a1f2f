"""A run of one case: its model is made, saved, loaded by `setblock.load`, and held to "right, or refused with a reason"."""

import tempfile
import traceback
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from transformers import AutoConfig
from transformers.utils import logging

from family_sweep.answers import NEW, PROMPTS, expected, same_tokens, settings
from family_sweep.cases import CONTEXT, UNSHRINKABLE, VARIANTS, cases
from family_sweep.decoding_checks import check_blocks, check_engine, check_generate, check_refusal
from family_sweep.outcome import Outcome, WrongError, refusable
from family_sweep.tiny import own_model, prompts_of, save_tiny
from family_sweep.training_checks import check_adapter, check_training
from family_sweep.weight_checks import check_compiled, check_int8, check_prepacked
from setblock.errors import SetBlockError
from setblock.model.loading.loading import load, refuse_unsupported


def run_case(name: str, *, every_path: bool = True) -> Outcome:
    """Make a case's model and hold it to "right, or refused with a reason".

    Args:
        every_path: also eight-bit, prepacked, compiled and with an adapter.
    """
    family, fields = cases()[name]
    outcome = Outcome(name, family, "not covered")
    with tempfile.TemporaryDirectory() as temporary, without_output():
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
    wanted = expected(theirs, prompts, new, banned={0, sbd.sbd_config.mask_token_id})
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


@contextmanager
def without_output() -> Iterator[None]:
    """Without what Transformers says of configs that are tiny."""
    level = logging.get_verbosity()
    logging.set_verbosity_error()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            yield
        finally:
            logging.set_verbosity(level)
