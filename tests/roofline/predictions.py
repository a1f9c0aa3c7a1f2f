"""Predictions that several tests make."""

from setblock.roofline.hardware import HARDWARE
from setblock.roofline.prediction import Precision, Prediction
from setblock.roofline.shape import PRESETS


def predicted(model="llama-3.1-8b", hardware="paper-h100", dtype="float8"):
    return Prediction(shape=PRESETS[model], hardware=HARDWARE[hardware], precision=Precision.of(dtype))
