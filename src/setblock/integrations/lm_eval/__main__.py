"""The harness's own command line, `lm_eval`, with `setblock` among its models.

    python -m setblock.integrations.lm_eval --model setblock --model_args method=exact --tasks gsm8k

It is for releases of the harness that don't find models of other packages automatically.
"""

import sys

from lm_eval.__main__ import cli_evaluate

from setblock.errors import ParameterError, SetBlockError
from setblock.integrations.lm_eval import model  # noqa: F401  importing it puts it among the harness's models


def main() -> None:
    """Run the harness; a user's mistake that we report is one line, as in `setblock`."""
    try:
        cli_evaluate()
    except SetBlockError as error:
        print(f"setblock: error: {error}", file=sys.stderr)
        sys.exit(2 if isinstance(error, ParameterError) else 1)


if __name__ == "__main__":
    main()
