"""What the package's programs have in common: a mistake of the user's is one line, and exit code 2."""

import argparse
import sys
from typing import NoReturn

WRONG_USAGE = 2


class Parser(argparse.ArgumentParser):
    """Reports a mistake in one line, where argparse would print its usage first."""

    def error(self, message: str) -> NoReturn:
        self.exit(WRONG_USAGE, f"error: {' '.join(message.split())}; see {self.prog} --help\n")


def say(error: object) -> None:
    """Prints an error on one line."""
    sys.stderr.write(f"error: {' '.join(str(error).split())}\n")
