"""Predict what blocks can gain on a machine, from two figures of it (`setblock roofline`)."""

from pathlib import Path
from typing import Any, get_args

from rich import box
from rich.table import Table
from rich.text import Text

from setblock.cli.messages import print_json, silence_libraries, stdout_console
from setblock.cli.options.groups import JSON, option, optional
from setblock.errors import prefixed, warn
from setblock.roofline.hardware import GB, HARDWARE, TFLOPS, hardware_named
from setblock.roofline.prediction import BLOCK_SIZE, KV_LENGTH, NumberType, Precision, Prediction, prediction_json
from setblock.roofline.shape import PAPER_MODEL, PRESETS, ModelShape, shape_of

_MODEL, _HARDWARE, _LOAD = "Model", "Hardware", "Load"  # panels


def roofline(
    *,
    model: str | None = optional(
        f"Folder, hub id or name (only its config is read), or one of {', '.join(PRESETS)}. "
        f"Default: {PAPER_MODEL} on the paper's H100.",
        panel=_MODEL,
    ),
    dtype: NumberType | None = optional(
        "Type of the activations, and of weights and cache unless they are given. Default: the type in the config, or "
        "bfloat16. Without --model: float8, as in the paper.",
        panel=_MODEL,
    ),
    weights: NumberType | None = optional("Type of the weights.", panel=_MODEL),
    kv: NumberType | None = optional("Type of the cached keys and values.", panel=_MODEL),
    hardware: str | None = optional(f"One of {', '.join(HARDWARE)}. Default: h100.", panel=_HARDWARE, metavar="NAME"),
    bandwidth: float | None = optional(
        "Memory bandwidth, instead of that of --hardware.", panel=_HARDWARE, metavar="GB/s"
    ),
    peak: float | None = optional(
        "Peak of dense arithmetic in the type that is used, instead of that of --hardware.",
        panel=_HARDWARE,
        metavar="TFLOPS",
    ),
    kv_length: int = option(KV_LENGTH, "Number of cached tokens.", panel=_LOAD, min=1),
    block_size: int = option(BLOCK_SIZE, "Block size k of the speed-ups.", panel=_LOAD, min=2),
    as_json: bool = JSON,
) -> None:
    """Predict the gain of blocks: the slowdown of block passes, the speed-up in seconds, and the batch size where it ends.

    The time of each operation is the larger of two times: that of its arithmetic at the machine's peak, and that of its bytes
    at the memory bandwidth. Nothing is measured, and no weights are read.
    """
    shape, default_dtype = _read_shape(model or PAPER_MODEL)
    machine = hardware_named(hardware or ("paper-h100" if model is None else "h100"))
    if bandwidth is not None or peak is not None:
        machine = machine.with_figures(bandwidth=bandwidth and bandwidth * GB, peak=peak and peak * TFLOPS)
    precision = Precision.of(dtype or ("float8" if model is None else default_dtype), weights=weights, kv=kv)
    prediction = Prediction(shape=shape, hardware=machine, precision=precision)
    found = prediction_json(prediction, kv_length=kv_length, block_size=block_size)
    if as_json:
        print_json(found)
    else:
        _show(prediction, found)


def _read_shape(source: str) -> tuple[ModelShape, str]:
    """Return the shape and the type of a preset or of a checkpoint, of which only the config is read. Raise `SetBlockError` if
    there is no such config, or such a model can't decode blocks."""
    if source in PRESETS:
        return PRESETS[source], "bfloat16"
    from transformers import AutoConfig

    from setblock.model.loading.gguf import pretrained_arguments
    from setblock.model.loading.loading import refuse_unsupported
    from setblock.model.loading.named import resolved
    from setblock.model.loading.source import check_source

    silence_libraries()
    if not Path(source).is_dir():  # in a folder, the config is enough
        check_source(source)
    with prefixed(f"can't read the config of model {source}", Exception):  # Transformers raises anything over one
        config = AutoConfig.from_pretrained(**pretrained_arguments(resolved(source)))
    with prefixed(f"model {source}"):
        refuse_unsupported(config)
        shape = shape_of(config, name=source)
    _check_shape(shape, config)
    dtype = str(config.get_text_config().dtype).removeprefix("torch.")
    return shape, dtype if dtype in get_args(NumberType) else "bfloat16"


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
        warn(
            f"{shape.name} has {real / 1e6:,.1f} million weights in its matrices, and {shape.parameters / 1e6:,.1f} million "
            "are in the prediction: parts of its architecture are not modelled"
        )


def _show(prediction: Prediction, found: dict[str, Any]) -> None:
    """Print the prediction and its inputs, both tables of the paper, and where blocks stop paying; `found` is its JSON."""
    console = stdout_console()
    shape, hardware, precision = prediction.shape, prediction.hardware, prediction.precision
    linear, attention = (hardware.peak(bits) / TFLOPS for bits in (precision.linear_bits, precision.attention_bits))
    subject = (
        f"{shape.name}: {_millions(shape.parameters)} weights, {_millions(shape.active_parameters)} active\n"
        f"types: {precision.activations} activations, {precision.weights} weights, {precision.kv} keys and values\n"
        f"{hardware.name}: {hardware.bandwidth / GB:,.0f} GB/s, {linear:,.4g} TFLOPS in linear layers, "
        f"{attention:,.4g} in attention"
    )
    console.print(Text(subject), soft_wrap=True)
    block_size, cached = found["block_size"], f"{found['kv_length']:,} cached positions"
    for title, name, table in (
        (f"slowdown of a block pass over a one-token pass, {cached}", "k={}", found["slowdown"]),
        (f"speed-up in seconds at k={block_size}, {cached}", "NFE {}x", found["speedup"]),
    ):
        grid = Table(title=title, title_justify="left", title_style="bold", box=box.SIMPLE_HEAD)
        for column in ("batch", *map(name.format, next(iter(table.values())))):
            grid.add_column(column, justify="right")
        for batch, row in table.items():
            grid.add_row(str(batch), *(f"{value:.3f}" for value in row.values()))
        console.print(grid)
    last = {nfe: "no end" if batch is None else batch or "none" for nfe, batch in found["last_paying_batch"].items()}
    ends = "; ".join(f"NFE {nfe}x: {batch}" for nfe, batch in last.items())
    gains = f"largest batch that gains at k={block_size}, {cached}: {ends} (in memory: {found['batch_in_memory']})"
    console.print(Text(gains), soft_wrap=True)
    left_out = "; ".join(found["left_out"])
    console.print(Text(f"Predictions of a roofline, not measurements. Left out: {left_out}.", style="dim"))


def _millions(count: int) -> str:
    return f"{count / 1e9:.2f} billion" if count >= 1e9 else f"{count / 1e6:.1f} million"
