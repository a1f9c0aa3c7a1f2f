"""Merge a base model and an adapter into one checkpoint.

Knows runs, their checkpoints and PEFT's folders. Knows nothing of training loops.
"""

from pathlib import Path

from setblock.errors import SetBlockError, one_line
from setblock.model.adapter.adapter import ADAPTER_FOLDER
from setblock.training.run.checkpoints import recorded_recipe
from setblock.training.run.result import merge
from setblock.training.run.train import prepared_model


def merge_adapter(adapter: Path, output: Path, *, base: str | None = None) -> Path:
    """Save the model that an adapter makes of its base, as the run that trained it would at its end.

    Args:
        adapter: a folder that PEFT wrote: a checkpoint of a run in the middle (`RUN/checkpoint-500`), what `keep_adapter` left
            (`RUN/sbd_adapter`), or a run's folder, whose kept adapter is meant.
        output: where to save; holds no checkpoint yet.
        base: the model that the adapter was trained on, where it is no longer where the recipe has it.

    Raises:
        SetBlockError: there is no such adapter, the record of its run is missing, it acts on the future block alone, or the
            output is taken.
    """
    folder = adapter if (adapter / "adapter_config.json").is_file() else adapter / ADAPTER_FOLDER
    if not (folder / "adapter_config.json").is_file():
        raise SetBlockError(f"{adapter} holds no adapter: no adapter_config.json in it or in its {ADAPTER_FOLDER}/")
    if (output / "config.json").exists():
        raise SetBlockError(f"{output} holds a model already: give another --output")
    parents = (folder.resolve(), *folder.resolve().parents[:2])
    run = next((parent for parent in parents if (parent / "recipe.json").is_file()), None)
    recorded = None if run is None else recorded_recipe(run)
    if recorded is None:
        raise SetBlockError(f"{adapter} is not in the folder of a run, whose recipe.json says what it was trained for")
    recipe, args = recorded
    if recipe.adapter is None:
        raise SetBlockError(
            f"{run} is the folder of a run that trained no adapter, so there is nothing to merge: use it as it is"
        )
    if recipe.adapter.only_noisy:
        raise SetBlockError(
            f"{adapter} acts on the future block alone, and merged it would change plain decoding, too: use {run} as it is"
        )
    if base is not None:
        recipe = recipe.model_copy(update={"model": recipe.model.model_copy(update={"path": base})})
    sbd = prepared_model(recipe, args, device="cpu", quantized=False)
    try:
        merge(sbd, folder)
    except (OSError, ValueError, RuntimeError) as error:  # of PEFT, over files that are broken or of another model
        raise SetBlockError(f"can't merge {adapter}: {one_line(error)[:300]}") from error
    sbd.save(output)
    return output
