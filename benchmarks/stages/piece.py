"""Define a piece of a stage: what is run and saved separately, and what several stages need.

Knows devices and models. Knows nothing of what is measured.
"""

import argparse
from collections.abc import Callable, Iterator
from typing import Any

import torch

from measuring.hardware import roofline_hardware
from setblock.model.sbd_model import SBDModel
from setblock.roofline.precision import Precision
from setblock.roofline.prediction import Prediction
from setblock.roofline.shape import shape_of

Piece = Callable[[], dict[str, Any]]
Pieces = Iterator[tuple[str, Piece]]
DEVICE = torch.device("cuda" if torch.cuda.is_available() else "cpu")


def once(make: Callable[[], SBDModel]) -> Callable[[], SBDModel]:
    """Return a model that is made when it is first asked for, and not at all where all of its pieces are there."""
    made: list[SBDModel] = []

    def get() -> SBDModel:
        if not made:
            made.append(make())
        return made[0]

    return get


def prediction_of(sbd: SBDModel, options: argparse.Namespace) -> Prediction:
    """Return what the roofline says of a model on this device."""
    return Prediction(
        shape=shape_of(sbd.model.config),
        hardware=roofline_hardware(getattr(torch, options.dtype), device=DEVICE, quick=options.quick),
        precision=Precision.of(options.dtype),
    )
