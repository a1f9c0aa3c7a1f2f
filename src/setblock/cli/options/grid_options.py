"""Define the options that say what is swept."""

from pathlib import Path
from typing import TYPE_CHECKING

from setblock.cli.options.decoding_options import with_own_sampler
from setblock.cli.options.groups import option, option_group
from setblock.decoding.samplers.named import SAMPLERS
from setblock.decoding.settings.table import POINT
from setblock.errors import ParameterError

if TYPE_CHECKING:
    from setblock.evaluation.sweeps.grid import Grid


@option_group("Grid")
class GridOptions:
    """Hold the operating points of a sweep."""

    methods: list[str] | None = option(
        None, "sbd or exact. Can be repeated. Default: both. ntp always runs once.", "--method"
    )
    samplers: list[str] | None = option(
        None,
        f"A sampler to sweep in method sbd: {', '.join(SAMPLERS)}. Can be repeated. Default: entropy-prefix.",
        "--sampler",
        metavar="NAME",
    )
    grid: list[str] | None = option(
        None,
        "Values of a sampler's parameter (factor=0.5,1), of one sampler if several have the parameter "
        f"(factor.factor=0.5,1), or of {' or '.join(name for name in POINT if name != 'sampler')}. Can be repeated. All "
        "combinations are decoded. Default: several values of each sampler's main parameter.",
        metavar="KEY=V,V,...",
    )
    grid_file: Path | None = option(
        None,
        "A YAML file with a list of grids, such as `- {sampler: factor, factor: [0.5, 1], block_size: [4, 16]}`. "
        "Replaces the other options of this group.",
    )

    def grids(self) -> "list[Grid]":
        """Return the grids.

        Raises:
            SetBlockError: an option is malformed, or names what there is not.
        """
        from setblock.evaluation.sweeps.grid import DEFAULT_SAMPLER, METHODS, grids_of, read_grids

        if self.grid_file is not None:
            if self.methods or self.samplers or self.grid:
                raise ParameterError("--grid-file takes the place of --method, --sampler and --grid")
            grids = read_grids(self.grid_file)
            for name in (each for grid in grids for each in grid.get("sampler", ())):
                with_own_sampler(name)
            return grids
        for name in self.samplers or ():
            with_own_sampler(name)
        values: dict[str, list[str]] = {}
        for text in self.grid or ():
            key, equals, listed = text.partition("=")
            if not equals or not all(listed.split(",")):
                raise ParameterError(f"--grid must be KEY=VALUE,VALUE,..., such as factor=0.5,1, not {text!r}")
            key = key.strip().replace("-", "_") if "." not in key else _scoped(key.strip())
            if key in values:
                raise ParameterError(f"--grid {key} is given more than once")
            values[key] = [each.strip() for each in listed.split(",")]
        return grids_of(self.methods or METHODS, self.samplers or [DEFAULT_SAMPLER], values)


def _scoped(key: str) -> str:
    """Return a name as it is typed: names of samplers have dashes, their parameters underscores."""
    name, _, parameter = key.rpartition(".")
    return f"{name}.{parameter.replace('-', '_')}"
