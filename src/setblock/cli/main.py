"""The entry point of the `setblock` command. It imports the commands itself, so that Ctrl-C ends their import, too."""

import os
import signal
import sys


def main() -> None:
    """Run the command line."""
    try:
        from setblock.cli.app import app

        app(prog_name="setblock")
    except KeyboardInterrupt:
        print("setblock: interrupted", file=sys.stderr, flush=True)
        # If an import was interrupted inside of `exec`, Python would end by the signal itself, whatever exit code is set here.
        os._exit(128 + signal.SIGINT)  # the shell's convention
