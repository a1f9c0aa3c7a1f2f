"""Write the result of a calibration to the SBD facts of the model's checkpoint, or of a copy.

Knows folders. Knows nothing of how a setting was found.
"""

from dataclasses import dataclass, replace
from pathlib import Path

from setblock.errors import ParameterError, SetBlockError
from setblock.evaluation.calibration.learn_then_test import Calibration
from setblock.model.loading.bundled import BUNDLED_MODEL
from setblock.model.loading.checkpoint_facts import copy_checkpoint, write_facts
from setblock.model.sbd_model import SBDModel


@dataclass(frozen=True)
class CheckpointToWrite:
    """Hold where a model is, and where its calibrations go; made by `checkpoint_to_write`.

    Attributes:
        source: the model's folder; None where it is on a hub.
        folder: that is written to.
    """

    source: Path | None
    folder: Path

    def write(self, model: SBDModel, calibration: Calibration, *, domain: str, fingerprint: str) -> Path:
        """Write what was found: the fastest setting that passed, and exact mode; other domains keep theirs.

        Returns:
            The `config.json` that holds it.

        Raises:
            SetBlockError: the folder can't be written.
        """
        assert model.facts is not None
        if self.source is None:
            model.save(self.folder)
        elif self.source != self.folder:
            copy_checkpoint(self.source, self.folder)
        others = [each for each in model.facts.calibrations if each.domain != domain]
        found = calibration.records(domain=domain, fingerprint=fingerprint)
        write_facts(self.folder, replace(model.facts, calibrations=(*others, *found)))
        return self.folder / "config.json"


def checkpoint_to_write(model: str | None, *, copy: Path | None, as_loaded: bool) -> CheckpointToWrite:
    """Decide where to write, before hours of decoding.

    Args:
        model: folder or hub id; None for the bundled model.
        copy: a new folder for a copy; None to change the checkpoint itself.
        as_loaded: whether the loaded weights can be saved: prepacked or quantised ones can't.

    Raises:
        SetBlockError: it can't be written to.
    """
    source = Path(model or BUNDLED_MODEL)
    if copy is not None:
        if copy.exists() and (not copy.is_dir() or any(copy.iterdir())):
            raise SetBlockError(f"{copy} exists already: --output must be a new folder")
        if not source.is_dir() and not as_loaded:
            raise ParameterError(
                f"{model} is on a hub, and --prepack and --quantization leave nothing to save: download it first"
            )
        return CheckpointToWrite(source if source.is_dir() else None, copy)
    if source.resolve() == BUNDLED_MODEL.resolve():
        raise ParameterError("the bundled model is read-only: give --output FOLDER for a copy, or --dry-run")
    if not source.is_dir():
        raise ParameterError(f"{model} is on a hub: give --output FOLDER for a copy, or --dry-run")
    return CheckpointToWrite(source, source)
