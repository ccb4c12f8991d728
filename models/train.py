"""Run `mtf-hetero train` as `python -m models.train`, for a checkout."""

from mtf_hetero._support import command_line
from mtf_hetero.cli.train.__main__ import main

if __name__ == "__main__":
    command_line.run(main, None, "python -m models.train")
