"""Define the stages of `benchmarks/gpu.py`, the most valuable first. Each yields its pieces: names, and what to run."""

import argparse
from collections.abc import Callable

from stages.graphs import graph_pieces
from stages.machine import check_pieces, machine_pieces
from stages.passes import growth_pieces, pass_pieces
from stages.piece import Pieces
from stages.training import recipe_pieces, training_pieces

STAGES: dict[str, Callable[[argparse.Namespace], Pieces]] = {
    "graphs": graph_pieces,
    "machine": machine_pieces,
    "checks": check_pieces,
    "passes": pass_pieces,
    "growth": growth_pieces,
    "training": training_pieces,
    "recipe": recipe_pieces,
}
