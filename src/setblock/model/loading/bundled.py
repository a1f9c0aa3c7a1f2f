"""Find what comes with the package: the reference model, the default of every command, and what named models add."""

from pathlib import Path

ASSETS = Path(__file__).parents[2] / "assets"
"""Folder of all of it."""

BUNDLED_MODEL = ASSETS / "word-problems"
"""Folder of the bundled SBD model, fine-tuned by `recipes/word-problems-sbd.yaml`."""
