"""The one exception that means "the user can mend this"."""


class SetBlockError(ValueError):
    """A user's mistake. Its message is one line that names the value and what would be valid; the command line prints it
    without a traceback."""
