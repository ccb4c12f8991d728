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
checkpoint is. Ctrl-C saves and ends. The same command with the same
--model_dir goes on, on any other layout too.
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
from mtf_hetero.models.train import help as help_lib

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
_CONFIG = flags.DEFINE_string("config", None, help_lib.CONFIG_HELP)


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
                    from mtf_hetero.models.train.prepare import place, prepare

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
    """Return what the program does, and its flags; `full`: those of the libraries too."""
    description = (__doc__ or "").replace(_NAME, program)
    if not full:
        return help_lib.text(description, program)
    app.define_help_flags()
    return f"{description}\nflags:\n{flags.FLAGS.get_help()}"


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
