"""Find the reference model that comes with the package: the default of every command."""

from pathlib import Path

BUNDLED_MODEL = Path(__file__).parent.parent / "assets" / "word-problems"
"""Folder of the bundled SBD model, fine-tuned by `recipes/word-problems-sbd.yaml`."""
