"""Measure whole decoding: over batches and lengths, and next to others."""

import argparse
import itertools
from functools import partial
from typing import Any

import torch

import growth
import side_by_side
from measuring.subjects import SIZES, random_model
from stages.piece import Pieces, once


def growth_pieces(options: argparse.Namespace) -> Pieces:
    """Yield whole decoding over batches and lengths."""
    numbers = ["--tokens", "16", "--rounds", "1"] if options.quick else ["--tokens", "48", "--rounds", "3"]
    sizes = ["--size", options.size, "--dtype", options.dtype, "--gib", "90"]
    nfe = ["--nfe", *(["4"] if options.quick else ["2", "4", "8"])]
    its = growth.parse_options([*sizes, *numbers, *nfe])
    its.quick = options.quick
    shared = once(lambda: random_model(SIZES[options.size], dtype=getattr(torch, options.dtype)))
    for kv_length, batch in itertools.product(options.kv_lengths, options.batches):

        def piece(kv_length: int = kv_length, batch: int = batch) -> dict[str, Any]:
            return growth.cell(shared(), batch, kv_length, its)

        yield f"batch {batch}, {kv_length} cached", piece


def side_by_side_pieces(options: argparse.Namespace) -> Pieces:
    """Yield one request, all ways."""
    subjects = ("tiny-float32",) if options.quick else ("135m-bfloat16", "8b-bfloat16", "1b-bfloat16", "trained")
    for subject, suffix in itertools.product(subjects, ("", ", compiled")):
        if subject == "trained" and suffix:
            continue
        numbers = ["--tokens", "128", "--rounds", "5"]
        if options.quick:
            numbers = ["--tokens", "16", "--rounds", "1", "--prompt", "8", "--repeats", "1", "--nfe", "4"]
            numbers += ["--backend", "eager"]
        arguments = ["--subjects", subject, *numbers, "--llama-builds", *(["--compile"] if suffix else [])]
        its = side_by_side.parse_options(arguments)
        run = side_by_side.trained if subject == "trained" else side_by_side.random
        yield f"{subject}{suffix}", partial(run, subject, its)
