"""A command's process: the run is restored, the work is done, and a mistake is one line and exit code 2."""

import argparse
import contextlib
import dataclasses
import os
import sys
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from mtf_hetero._support import command_line
from mtf_hetero.cluster import isolation
from mtf_hetero.models.after.flags import Asked, asked
from mtf_hetero.models.train import leaving

if TYPE_CHECKING:
    from mtf_hetero.models.train.run import Run

FAILED = 1


@dataclasses.dataclass(frozen=True, eq=False)
class Restored:
    """A run whose checkpoint is to be used.

    Args:
      run: laid out on the devices that were asked for.
      checkpoint: path of the checkpoint, which is whole.
      step: the global step at which it was saved.
    """

    run: "Run"
    checkpoint: str
    step: int


Work = Callable[[Restored, argparse.Namespace], str]


def main(
    arguments: argparse.Namespace,
    check: Callable[[argparse.Namespace], Any],
    work: Work,
    *,
    placed: bool = True,
    reads_data: bool = True,
) -> int:
    """Restores what the flags name, does the work, and prints what it returns; returns the exit code.

    Args:
      arguments: the flags.
      check: raises ValueError where something is wrong that can be seen without TensorFlow.
      work: from the run to what is printed.
      placed: whether layout and devices matter to it.
      reads_data: whether it reads the data set.
    """
    try:
        with leaving.StopOnSignal(), contextlib.ExitStack() as stack:
            try:
                check(arguments)
                wanted = asked(arguments, placed=placed)
                if wanted.config.local_cluster is not None:
                    isolation.enter()
                with command_line.stderr_held_back():
                    restored = _restore(wanted, stack, reads_data=reads_data)
                said = work(restored, arguments)
            except (ValueError, NotImplementedError) as error:
                command_line.say(error)
                return command_line.WRONG_USAGE
            except OSError as error:
                command_line.say(error)
                return FAILED
            sys.stdout.write(said)
            sys.stdout.flush()
            return 0
    except KeyboardInterrupt:
        code = 130
    except SystemExit as end:
        if end.code not in leaving.EXIT_CODES:
            raise
        code = int(end.code)
    leaving.say("stopped: nothing was written")
    return code


def _restore(wanted: Asked, stack: contextlib.ExitStack, *, reads_data: bool) -> Restored:
    from mtf_hetero import data, tf
    from mtf_hetero import saver as saver_lib
    from mtf_hetero.models.train.prepare import restore

    stack.enter_context(data.unreadable_as_value_error())
    path = wanted.checkpoint
    if path is None:
        found = saver_lib.find(wanted.model_dir)
        if found.path is None:
            raise ValueError(
                f"--model_dir is {wanted.model_dir!r}, which holds no checkpoint; train there first, or name another "
                "directory"
            )
        path = found.path
    elif damage := saver_lib.find_damage(path):
        raise ValueError(f"--checkpoint is {path!r}, which is damaged: {damage}; name another one")
    config = wanted.config
    gpus = tf.config.list_physical_devices("GPU")  # CUDA says now what it has to say where there is none
    if wanted.is_plain:
        config = dataclasses.replace(config, devices=("gpu:0" if gpus else "cpu:0",), layout="batch")
    run = restore(config, stack, path, reads_data=reads_data)
    return Restored(run, path, int(tf.train.load_variable(path, tf.GraphKeys.GLOBAL_STEP)))


def run(main_of: Callable[[Sequence[str], str], int], argv: Sequence[str] | None, program: str) -> None:
    """The whole process: ends it with the exit code, past the threads that TensorFlow leaves behind."""
    command_line.begin_process()
    try:
        code = main_of(sys.argv[1:] if argv is None else argv, program)
    except SystemExit as end:  # of the parser
        code = end.code if isinstance(end.code, int) else FAILED
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        code = 141
    leaving.leave(code)
