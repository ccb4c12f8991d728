r"""Trains a CNN on devices of unequal speed.

    mtf-hetero train --devices=cpu:0,cpu:1,cpu:2 --list_speed=40,40,20

trains the paper's MNIST network on the 5,000 MNIST images that come with mtf_hetero[train]: 97 to 98 % of the test
images in two to four minutes on two cores. The paper's CIFAR-10 run, once tensorflow-datasets has prepared the data:

    mtf-hetero train --model=paper_cifar --dataset=cifar10 --batch_size=200 --train_epochs=30 \
        --learning_rate_schedule=constant --list_speed=70,25,5 --devices=gpu:0,gpu:1,cpu:0

A 3D CNN on volumes whose depth is divided, so that each device reads and holds its own slab of each:

    mtf-hetero data simulate universes --train=600 --test=100
    mtf-hetero train --model=cosmoflow_small --dataset=universes --batch_size=8 --train_epochs=20 --augment \
        --optimizer=adam --learning_rate_schedule=cosine --layout=spatial --mesh_shape=depth:2 --list_speed=2,1 \
        --devices=cpu:0,cpu:1

Before training it prints how each split dimension is divided; after it, how good the network is on the test set, the
images or volumes per second and where the checkpoint is. Ctrl-C, SIGTERM and SIGHUP (a closed terminal) end the step
and save; the same command with the same --model_dir resumes, on any other layout too.

Exit codes: 0, or 2 for a wrong flag or value, a damaged data set, a worker that belongs to another training, or a
directory in which another run is training or no checkpoint is whole (one line says which), 1 for a loss that is not a
number or a full disk, 129 after SIGHUP, 130 after Ctrl-C, 141 where the standard output is a pipe that nobody reads any
more, and 143 after SIGTERM.
"""

import contextlib
import dataclasses
import os
import sys
from collections.abc import Sequence
from typing import Any

from absl import app, flags

from mtf_hetero.cluster import isolation
from mtf_hetero.models.train import config as config_lib
from mtf_hetero.models.train import config_file, leaving
from mtf_hetero.models.train import console as command_line

PROGRAM = "mtf-hetero train"
_NAME = "mtf-hetero train"  # in the text above
_HELP = {"-h", "--help", "--helpshort", "-help", "-helpshort"}
_FULL_HELP = {"--helpfull", "-helpfull"}
_DEFINE = {
    bool: flags.DEFINE_bool,
    float: flags.DEFINE_float,
    int: flags.DEFINE_integer,
    str: flags.DEFINE_string,
    tuple: flags.DEFINE_list,
}


def _define(field: dataclasses.Field[Any]) -> flags.FlagHolder[Any]:
    """Defines the flag of a configuration's field."""
    default = list(field.default) if isinstance(field.default, tuple) else field.default
    return _DEFINE[config_lib.kind_of(field)](field.name, default, field.metadata["help"])


_FLAGS = {field: _define(field) for field in dataclasses.fields(config_lib.Config)}
_CONFIG = flags.DEFINE_string(
    "config",
    None,
    "A YAML file of flags, one a line, as in batch_size: 25, such as MODEL_DIR/config.yaml, which each run leaves. "
    "Flags on the command line win.",
)


def read_config() -> config_lib.Config:
    """The configuration that the flags ask for, and the file that they name.

    Raises:
      ValueError: a value that is out of range, or a file that is not as it should be.
    """
    values = config_file.load(_CONFIG.value) if _CONFIG.value else {}
    for field, flag in _FLAGS.items():
        if field.name in values and not flag.present:
            continue
        parse = field.metadata["parse"]
        values[field.name] = flag.value if parse is None or flag.value is None else parse(flag.value)
    return config_lib.Config(**values)


def main(argv: Sequence[str]) -> int:
    """Trains as the flags say; returns the exit code."""
    training = None
    try:
        with leaving.StopOnSignal() as stop, contextlib.ExitStack() as stack:
            try:
                if len(argv) > 1:
                    raise ValueError(f"{argv[1]!r} is not a flag; write --name=value")
                config = read_config()
                if config.local_cluster is not None:
                    isolation.enter()
                # TensorFlow is loaded once the flags are known to be right; its start-up messages are not for the user
                with command_line.stderr_held_back():
                    from mtf_hetero.models.train.prepare import measure, prepare

                    training = prepare(config, stack)
                stop.check()
                if config.is_measured:
                    training = measure(training)
                stop.check()
                if config.dry_run:
                    print(training.describe_dry_run())
                    return 0
            except (ValueError, NotImplementedError) as error:
                command_line.say(error)
                return command_line.WRONG_USAGE
            return training.train()
    except KeyboardInterrupt:
        code = 130
    except BrokenPipeError:
        code = _output_unread()
    except SystemExit as end:  # after SIGHUP or SIGTERM; mtf_hetero.Estimator has saved
        if end.code not in leaving.EXIT_CODES:
            raise
        code = int(end.code)
    leaving.say(f"stopped: {'nothing was trained' if training is None else training.how_to_resume()}")
    return code


def _output_unread() -> int:
    """The exit code where nobody reads the standard output any more; what is left to write goes nowhere."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    return 141


def _help(program: str, *, full: bool) -> str:
    """What the program does, and its flags; `full`: those of the libraries too."""
    app.define_help_flags()
    module = sys.argv[0] if __name__ == "__main__" else __name__  # where absl has the flags that _define defined
    listed = flags.FLAGS.get_help() if full else flags.FLAGS.module_help(module).partition(":\n")[2]
    more = "" if full else "\n\nTry --helpfull to get a list of all flags."
    return f"{(__doc__ or '').replace(_NAME, program)}\nflags:\n{listed}{more}"


def run(argv: Sequence[str] | None = None, program: str = PROGRAM) -> None:
    """The whole process: ends it with the exit code of `main`."""
    command_line.begin_process()
    arguments = sys.argv[1:] if argv is None else list(argv)
    try:
        if asked := set(arguments) & (_HELP | _FULL_HELP):
            print(_help(program, full=bool(asked & _FULL_HELP)), flush=True)
            sys.exit(0)
        app.run(main, argv=[program, *arguments], flags_parser=command_line.parse_flags)
    except SystemExit as end:
        leaving.leave(end.code if isinstance(end.code, int) else 1)
    except BrokenPipeError:  # of --help
        leaving.leave(_output_unread())


if __name__ == "__main__":
    run(program=f"python -m {__spec__.parent}" if __spec__ else PROGRAM)
