"""What the absl binaries have in common: a mistake of the user's is one line, and exit code 2."""

import sys
from collections.abc import Sequence

from absl import flags

from mtf_hetero._support.command_line import WRONG_USAGE, begin_process, say, stderr_held_back

__all__ = ["WRONG_USAGE", "begin_process", "parse_flags", "say", "stderr_held_back"]


def parse_flags(argv: Sequence[str]) -> list[str]:
    """Parses the command line; a mistake ends the program with one line, where absl would print its usage."""
    try:
        return flags.FLAGS(list(argv))
    except flags.Error as error:
        say(error)
        sys.exit(WRONG_USAGE)
