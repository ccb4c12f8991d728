r"""Trains a CNN on devices of unequal speed.

A first network, in 20 seconds, on 5,000 images that come with the install:

    mtf-hetero train --model=lenet --layout=batch --local_cluster=1.0,0.5 \
        --list_speed=2,1

The first paper's MNIST network, its filters split over three logical devices
of one CPU, in two to four minutes on two cores:

    mtf-hetero train --devices=cpu:0,cpu:1,cpu:2 --list_speed=40,40,20

The same paper's CIFAR-10 network on two GPUs and a CPU:

    mtf-hetero data prepare cifar10 --from=cifar-10-python.tar.gz
    mtf-hetero train --model=paper_cifar --dataset=cifar10 --batch_size=200 \
        --train_epochs=30 --learning_rate_schedule=constant \
        --devices=gpu:0,gpu:1,cpu:0 --list_speed=70,25,5

A 3D CNN on volumes whose depth is split. Each device reads its own slab:

    mtf-hetero data simulate universes --train=600 --test=100
    mtf-hetero train --model=cosmoflow_small --dataset=universes \
        --batch_size=8 --layout=spatial --mesh_shape=depth:2 \
        --devices=cpu:0,cpu:1

It prints how each dimension is split, trains, tests, and says where the
checkpoint is. Ctrl-C saves and ends. --model_dir=DIR alone resumes, with the
flags of that run. Flags that are given win, such as another layout.
"""

import contextlib
import dataclasses
import sys
from collections.abc import Sequence

from absl import flags

from mtf_hetero._support import command_line
from mtf_hetero.cli.train import config as config_lib
from mtf_hetero.cli.train import config_file, leaving
from mtf_hetero.cli.train import help as help_lib
from mtf_hetero.cluster.emulation import isolation

PROGRAM = "mtf-hetero train"
_NAME = "mtf-hetero train"  # in the module's docstring
_HELP = {"-h", "--help", "--helpshort", "-help", "-helpshort"}
_FULL_HELP = {"--helpfull", "-helpfull"}
_DEFINE = {
    bool: flags.DEFINE_bool,
    float: flags.DEFINE_float,
    int: flags.DEFINE_integer,
    str: flags.DEFINE_string,
    tuple: flags.DEFINE_list,
}


def _define(field: dataclasses.Field) -> flags.FlagHolder:
    """Define the flag of a configuration's field."""
    default = list(field.default) if isinstance(field.default, tuple) else field.default
    return _DEFINE[config_lib.value_type(field)](field.name, default, field.metadata["help"])


_FLAGS = {name: _define(field) for name, field in config_lib.FIELDS.items()}
_CONFIG = flags.DEFINE_string("config", None, help_lib.CONFIG_HELP)


def read_config(*, announces: bool = True) -> config_lib.Config:
    """Return the configuration of the flags, and the file that they name or that the resumed run left.

    Raises:
      ValueError: a value is out of range, or a file is invalid.
    """
    given = {name: flag.value for name, flag in _FLAGS.items() if flag.present}
    if _CONFIG.value:
        values = config_file.load(_CONFIG.value)
    else:
        directory = given.get("model_dir") or ""
        config_file.check_resumed(directory, given)
        values = config_file.load_resumed(directory, given)
        if announces and not given.get("quiet", values.get("quiet")):
            sys.stdout.write(config_file.describe_resumed(directory, values))
    return config_lib.Config(**values | given)


def check(arguments: Sequence[str]) -> None:
    """Find mistakes in a command line, without training.

    Raises:
      ValueError: in one line, what is wrong.
    """
    if not set(arguments) & (_HELP | _FULL_HELP):
        _read(arguments, announces=False)


def _read(arguments: Sequence[str], *, announces: bool = True) -> config_lib.Config:
    """Return the configuration of a command line, which has nothing but flags."""
    if rest := command_line.read_flags([PROGRAM, *arguments])[1:]:
        raise ValueError(f"{rest[0]!r} is not a flag; write --name=value")
    return read_config(announces=announces)


def main(argv: Sequence[str] | None = None, program: str = PROGRAM) -> int:
    """Train by the command line, and return the exit code."""
    arguments = sys.argv[1:] if argv is None else list(argv)
    if asked := set(arguments) & (_HELP | _FULL_HELP):
        print(_help(program, full=bool(asked & _FULL_HELP)), flush=True)
        return 0
    return _train(arguments)


def _train(arguments: Sequence[str]) -> int:
    """Train by a command line, and return the exit code."""
    training = None
    try:
        with leaving.StopOnSignal() as stop, contextlib.ExitStack() as stack:
            try:
                config = _read(arguments)
                if config.local_cluster is not None:
                    isolation.enter()
                # TensorFlow is loaded after the flags are checked; its start-up messages are not for the user
                with command_line.capture_stderr():
                    from mtf_hetero.cli.train import training as training_lib
                    from mtf_hetero.cli.train.prepare import place, prepare

                    draft = prepare(config, stack)
                stop.check()
                training = place(draft)
                stop.check()
                if config.dry_run:
                    print(training.describe_dry_run())
                    return 0
            except (ValueError, NotImplementedError) as error:
                command_line.say(error)
                return command_line.WRONG_USAGE
            return training_lib.train(training)
    except KeyboardInterrupt:
        code = 130
    except BrokenPipeError:
        code = command_line.close_output()
    except SystemExit as end:  # after SIGHUP or SIGTERM; the Estimator has saved
        if end.code not in leaving.EXIT_CODES:
            raise
        code = int(end.code)
    leaving.say(f"stopped: {'nothing was trained' if training is None else training.how_to_resume()}")
    return code


def _help(program: str, *, full: bool) -> str:
    """Return the help of the program and its flags; `full`: with the flags of libraries."""
    description = (__doc__ or "").replace(_NAME, program)
    if not full:
        return help_lib.text(description, program)
    return f"{description}\nflags:\n{flags.FLAGS.get_help()}"


if __name__ == "__main__":
    command_line.run(main, None, f"python -m {__spec__.parent}" if __spec__ else PROGRAM)
