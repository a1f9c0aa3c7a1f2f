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
    # Exactly 0 and 1 at the ends, where rounding would miss them by a hair.
    low = 0.0 if successes == 0 else (centre - spread) / scale
    high = 1.0 if successes == trials else (centre + spread) / scale
    return low, high
