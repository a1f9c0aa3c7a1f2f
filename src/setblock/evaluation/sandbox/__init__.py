"""Run a program that nobody has read, and learn how it ended. Linux only; for any user, root too.

    outside.py   starts a process, waits for it, ends it, and reports what became of the program
    inside.py    what runs in that process: it confines itself, for good, and only then compiles and runs the program
    landlock.py  which files it may open, by Linux's Landlock
    seccomp.py   which system calls it may make, by a seccomp filter

The program is one process of one thread, without network and without other programs. It can read Python's own files and its own
folder, write only its output, and use no more than its limits. docs/sandbox.md has the table of what is refused.
"""

from typing import TYPE_CHECKING

from setblock.lazy import lazily

if TYPE_CHECKING:
    from setblock.evaluation.sandbox.outside import LEVELS, Level, Limits, Outcome, SandboxError, check, run, run_all

__all__ = ["LEVELS", "Level", "Limits", "Outcome", "SandboxError", "check", "run", "run_all"]

# On first use, since every program waits for `inside` to be imported, which needs none of it.
__getattr__, __dir__ = lazily(__name__, {"outside": " ".join(__all__)})
