"""The programs of mtf_hetero under one name: `mtf-hetero COMMAND`, or `python -m mtf_hetero COMMAND`.

A command is imported when it is asked for; each reads its flags before TensorFlow is loaded.
"""

import argparse
import importlib
import sys
from collections.abc import Sequence

import mtf_hetero
from mtf_hetero._support import command_line

_COMMANDS = {  # command -> the module whose `main` it is, and what the help says of it
    "devices": ("mtf_hetero.cli.devices", "list the devices of this machine, or of workers"),
    "train": ("mtf_hetero.cli.train.__main__", "train a CNN on devices of unequal speed"),
    "report": ("mtf_hetero.cli.report", "draw the shares, the step time and the changes of a run"),
    "evaluate": ("mtf_hetero.cli.after.evaluate", "test what was trained, and write the metrics as JSON"),
    "predict": ("mtf_hetero.cli.after.predict", "write what a trained network predicts to a file"),
    "export": ("mtf_hetero.cli.after.export", "make a SavedModel, which plain TensorFlow serves"),
    "profile": ("mtf_hetero.cli.profile", "measure how fast each device and link is on a graph"),
    "plan": ("mtf_hetero.cli.plan", "find the best layout of a graph for some devices, and show it"),
    "launch": ("mtf_hetero.cli.launch", "start workers on several hosts over ssh, and train on them"),
    "worker": ("mtf_hetero.cluster.worker", "offer the devices of this machine to training runs elsewhere"),
    "data": ("mtf_hetero.cli.data", "prepare, convert, simulate or list data sets"),
}
_FIRST_STEPS = """\
first steps:
  {program} devices                what this machine has
  {program} train --model=lenet    a network, in 20 seconds
  {program} COMMAND --help         the flags of a command
"""


def _parser(program: str) -> command_line.Parser:
    parser = command_line.Parser(
        prog=program,
        description="Mesh-TensorFlow with uneven mesh layouts: train on devices of unequal speed.",
        epilog=_FIRST_STEPS.format(program=program),
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--version", action="version", version=mtf_hetero.__version__)
    commands = parser.add_subparsers(dest="command", required=True, metavar="COMMAND", title="commands")
    for name, (_, help_text) in _COMMANDS.items():
        commands.add_parser(name, help=help_text)
    return parser


def main(argv: Sequence[str] | None = None, program: str = "mtf-hetero") -> None:
    """Becomes the program that the command line names."""
    command_line.begin_process()
    arguments = sys.argv[1:] if argv is None else list(argv)
    if not arguments:
        _parser(program).print_help()
        return
    if arguments[0] not in _COMMANDS:
        _parser(program).parse_args(arguments)  # says what is wrong, or --help, and exits
    command = arguments.pop(0)
    module = importlib.import_module(_COMMANDS[command][0])
    if command == "worker":  # it ends in a way of its own
        module.run(arguments, f"{program} {command}")
    command_line.run(module.main, arguments, f"{program} {command}")


if __name__ == "__main__":
    main(program="python -m mtf_hetero")
