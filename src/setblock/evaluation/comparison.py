"""Compare plain and block decoding of one prompt: count the differences, and time both."""

from dataclasses import dataclass, replace
from itertools import islice

from setblock.decoding.answer.generation import Generation
from setblock.decoding.answer.text import Prompt
from setblock.decoding.generate import generate, stream
from setblock.decoding.settings.operating_point import with_calibration
from setblock.decoding.settings.table import DecodingSettings
from setblock.errors import ParameterError
from setblock.evaluation.result import nfe_speedup
from setblock.model.protocol.runtime import LanguageModel

_WARM_UP_PASSES = 8


@dataclass(frozen=True)
class Comparison:
    """Hold the same request, decoded by two methods."""

    ntp: Generation  # one token a pass
    blocks: Generation  # in blocks, by method `sbd` or `exact`

    @property
    def identical(self) -> bool:
        """Return whether both wrote the same tokens."""
        return self.ntp.token_ids == self.blocks.token_ids

    @property
    def nfe_speedup(self) -> float | None:
        """See `setblock.evaluation.result.nfe_speedup`."""
        return nfe_speedup(ntp_passes=self.ntp.passes.decoding, passes=self.blocks.passes.decoding)

    @property
    def wall_clock_speedup(self) -> float:
        """Return the seconds of NTP divided by the seconds in blocks, including the prefill on both sides."""
        return self.ntp.seconds / self.blocks.seconds


def compare(
    model: LanguageModel, prompt: Prompt, *, settings: DecodingSettings | None = None, raw: bool = False
) -> Comparison:
    """Decode a prompt by NTP and by the method of `settings`, after a few untimed passes of each. The other settings hold for
    both. Other arguments are those of `setblock.stream`. Raise `SetBlockError` as it does, or if the method is `ntp`."""
    blocks = with_calibration(model, settings)
    if blocks.method == "ntp":
        raise ParameterError(f"method must be sbd or exact, to be compared with ntp, not {blocks.method}")
    ntp = replace(blocks, method="ntp")
    for each in (blocks, ntp):  # blocks first: whatever they refuse is reported at once
        for _ in islice(stream(model, prompt, settings=each, raw=raw), _WARM_UP_PASSES):
            pass
    return Comparison(
        ntp=generate(model, prompt, settings=ntp, raw=raw), blocks=generate(model, prompt, settings=blocks, raw=raw)
    )
