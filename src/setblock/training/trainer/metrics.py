"""Write all that a run logs, a line of JSON each, to its output folder.

Knows the Trainer's logs and a file. Knows nothing of models. The Trainer's own record is in its checkpoints, of which
the older ones are deleted; this one outlives them.
"""

import json
from contextlib import suppress
from pathlib import Path
from typing import Any

from transformers import TrainerCallback, TrainerControl, TrainerState, TrainingArguments

from setblock.files import write_whole

METRICS_FILE = "metrics.jsonl"


class MetricsFile(TrainerCallback):
    """Append each log to `metrics.jsonl`. A run that resumes from a checkpoint first drops what came after it."""

    def on_train_begin(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        """Drop what will be logged again."""
        folder, step = Path(args.output_dir), state.global_step
        if state.is_world_process_zero and (folder / METRICS_FILE).is_file():
            kept = [entry for entry in read_metrics(folder) if entry["step"] <= step and step]
            write_whole(folder / METRICS_FILE, "".join(json.dumps(entry) + "\n" for entry in kept))

    def on_log(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any) -> None:
        """Append one entry."""
        if state.is_world_process_zero and kwargs["logs"]:
            with (Path(args.output_dir) / METRICS_FILE).open("a") as file:
                file.write(json.dumps({"step": state.global_step, **kwargs["logs"]}) + "\n")


def read_metrics(folder: Path) -> list[dict[str, Any]]:
    """Return the entries of a run's folder, oldest first; none where it has logged nothing. A line cut short is left
    out."""
    path = folder / METRICS_FILE
    entries = []
    for line in path.read_text().splitlines() if path.is_file() else []:
        with suppress(ValueError):  # the process was killed in the middle of it
            entries.append(json.loads(line))
    return entries
