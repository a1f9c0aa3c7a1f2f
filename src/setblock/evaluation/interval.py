"""How sure a measured share is."""

import math


def wilson_interval(successes: int, trials: int) -> tuple[float, float]:
    """The 95% Wilson score interval of a share, within 0..1; it is honest at 0 and 1 and for few trials too."""
    assert 0 <= successes <= trials > 0
    z = 1.959963984540054  # the normal distribution's 97.5% quantile
    share = successes / trials
    centre = share + z * z / (2 * trials)
    spread = z * math.sqrt(share * (1 - share) / trials + z * z / (4 * trials * trials))
    scale = 1 + z * z / trials
    return max(0.0, (centre - spread) / scale), min(1.0, (centre + spread) / scale)
