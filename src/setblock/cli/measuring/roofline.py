"""Predict what blocks can gain on a machine, from two figures of it (`setblock roofline`)."""

import warnings
from typing import Any

from setblock.cli.messages import print_json, silence_libraries, stdout_console
from setblock.cli.options.groups import JsonOption, option, option_group
from setblock.cli.views.roofline_view import print_prediction, roofline_json
from setblock.errors import SetBlockError, SetBlockWarning, one_line
from setblock.roofline.cost import BITS, NumberType, Precision
from setblock.roofline.hardware import GB, HARDWARE, TFLOPS, Hardware, hardware_named
from setblock.roofline.machine import THIS_MACHINE
from setblock.roofline.prediction import BLOCK_SIZE, KV_LENGTH, Prediction
from setblock.roofline.shape import PAPER_MODEL, PRESETS, ModelShape, shape_of

_HARDWARE, _LOAD = "Hardware", "Load"  # panels


@option_group("Model")
class SubjectOptions:
    """Hold which model, in which types, on which machine."""

    model: str | None = option(
        None,
        f"Folder or hub id (only its config is read), or one of {', '.join(PRESETS)}. "
        f"Default: {PAPER_MODEL} on the paper's H100.",
    )
    dtype: NumberType | None = option(
        None,
        "Type of the activations, and of weights and cache unless they are given. Default: the type in the config, or "
        "bfloat16. Without --model: float8, as in the paper.",
    )
    weights: NumberType | None = option(None, "Type of the weights.")
    kv: NumberType | None = option(None, "Type of the cached keys and values.")
    hardware: str | None = option(
        None,
        f"One of {', '.join(HARDWARE)}, or {THIS_MACHINE}, which is measured. Default: h100.",
        panel=_HARDWARE,
        metavar="NAME",
    )
    bandwidth: float | None = option(
        None, "Memory bandwidth, instead of that of --hardware.", panel=_HARDWARE, metavar="GB/s"
    )
    peak: float | None = option(
        None,
        "Peak of dense arithmetic in the type that is used, instead of that of --hardware.",
        panel=_HARDWARE,
        metavar="TFLOPS",
    )


def roofline(
    *,
    subject: SubjectOptions,
    kv_length: int = option(KV_LENGTH, "Number of cached tokens.", panel=_LOAD, min=1),
    block_size: int = option(BLOCK_SIZE, "Block size k of the speed-ups.", panel=_LOAD, min=2),
    as_json: JsonOption = False,
) -> None:
    """Predict the gain of blocks: the slowdown of block passes, the speed-up in seconds, and the batch size where it ends.

    The time of each operation is the larger of two times: that of its arithmetic at the machine's peak, and that of its bytes
    at the memory bandwidth. Only --hardware this-machine measures anything. No weights are read.
    """
    prediction = prediction_for(subject)
    if as_json:
        print_json(roofline_json(prediction, kv_length=kv_length, block_size=block_size))
    else:
        print_prediction(stdout_console(), prediction, kv_length=kv_length, block_size=block_size)


def prediction_for(options: SubjectOptions) -> Prediction:
    """Return the prediction of what was asked for.

    Raises:
        SetBlockError: the model, the machine or a type can't be used.
    """
    shape, default_dtype = read_shape(options.model or PAPER_MODEL)
    dtype = options.dtype or ("float8" if options.model is None else default_dtype)
    precision = Precision.of(dtype, weights=options.weights, kv=options.kv)
    return Prediction(shape=shape, hardware=_hardware(options, dtype), precision=precision)


def read_shape(source: str) -> tuple[ModelShape, str]:
    """Return the shape and the type of a preset, or of a checkpoint, of which only the config is read.

    Raises:
        SetBlockError: there is no such config, or blocks can't be decoded with such a model.
    """
    if source in PRESETS:
        return PRESETS[source], "bfloat16"
    from transformers import AutoConfig

    from setblock.model.loading.loading import refuse_unsupported

    silence_libraries()
    try:
        config = AutoConfig.from_pretrained(source)
    except Exception as error:  # Transformers raises anything over a broken or missing config
        reason = one_line(error)
        raise SetBlockError(f"can't read the config of model {source}: {reason}") from error
    try:
        refuse_unsupported(config)
        shape = shape_of(config, name=source)
    except SetBlockError as error:
        raise SetBlockError(f"model {source}: {error}") from error
    _check_shape(shape, config)
    dtype = str(config.get_text_config().dtype).removeprefix("torch.")
    return shape, dtype if dtype in BITS else "bfloat16"


def _check_shape(shape: ModelShape, config: Any) -> None:
    """Warn of an architecture whose matrices are not those that were read from its config."""
    import torch
    from transformers import AutoModelForCausalLM

    try:
        with torch.device("meta"):  # shapes without memory
            model = AutoModelForCausalLM.from_config(config)
    except Exception:  # a model that can't be made here can still be predicted
        return
    real = sum(weight.numel() for weight in model.parameters() if weight.ndim > 1)
    if abs(real - shape.parameters) > 0.01 * real:
        warnings.warn(
            f"{shape.name} has {real / 1e6:,.1f} million weights in its matrices, and {shape.parameters / 1e6:,.1f} million "
            "are in the prediction: parts of its architecture are not modelled",
            SetBlockWarning,
            stacklevel=2,
        )


def _hardware(options: SubjectOptions, dtype: str) -> Hardware:
    name = options.hardware or ("paper-h100" if options.model is None else "h100")
    hardware = _this_machine(dtype) if name == THIS_MACHINE else hardware_named(name)
    if options.bandwidth is None and options.peak is None:
        return hardware
    return hardware.with_figures(
        bandwidth=None if options.bandwidth is None else options.bandwidth * GB,
        peak=None if options.peak is None else options.peak * TFLOPS,
    )


def _this_machine(dtype: str) -> Hardware:
    """Measure this machine; types of fewer than 16 bits are taken for bfloat16."""
    import torch

    from setblock.roofline.machine import measured_hardware

    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    return measured_hardware(getattr(torch, dtype if BITS[dtype] >= 16 else "bfloat16"), device=device)
