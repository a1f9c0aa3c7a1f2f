"""One prompt, decoded one token a pass and in blocks: what differs is counted and timed."""

from dataclasses import dataclass, replace
from itertools import islice

from setblock.decoding.generate import Generation, generate, stream
from setblock.decoding.settings import DecodingSettings
from setblock.decoding.text import Prompt
from setblock.model.sbd_model import SBDModel

_WARM_UP_PASSES = 8


@dataclass(frozen=True)
class Comparison:
    """The same request by both methods.

    Attributes:
        ntp: the answer one token a pass.
        sbd: the answer in blocks.
    """

    ntp: Generation
    sbd: Generation

    @property
    def identical(self) -> bool:
        """Whether both wrote the same tokens."""
        return self.ntp.token_ids == self.sbd.token_ids

    @property
    def nfe_speedup(self) -> float | None:
        """See `nfe_speedup`."""
        return nfe_speedup(ntp_passes=self.ntp.passes.decoding, passes=self.sbd.passes.decoding)

    @property
    def wall_clock_speedup(self) -> float:
        """Seconds of NTP over seconds of SBD, the prefill included on both sides."""
        return self.ntp.seconds / self.sbd.seconds


def nfe_speedup(*, ntp_passes: int, passes: int) -> float | None:
    """Passes that NTP took for each pass that was taken, prefills excluded and commits included on both sides.

    None where there was nothing to decode after the prefill.
    """
    return ntp_passes / passes if passes else None


def compare(
    model: SBDModel,
    prompt: Prompt,
    *,
    settings: DecodingSettings | None = None,
    raw: bool = False,
) -> Comparison:
    """Decode a prompt by both methods, after a few untimed passes of each.

    Args:
        settings: for both methods; its `method` does not matter. Other arguments and errors as in `setblock.stream`.
    """
    settings = settings or DecodingSettings()
    ntp, sbd = replace(settings, method="ntp"), replace(settings, method="sbd")
    for each in (sbd, ntp):  # SBD first: whatever it refuses is told at once
        for _ in islice(stream(model, prompt, settings=each, raw=raw), _WARM_UP_PASSES):
            pass
    return Comparison(
        ntp=generate(model, prompt, settings=ntp, raw=raw),
        sbd=generate(model, prompt, settings=sbd, raw=raw),
    )
