"""What the package's programs have in common: a mistake of the user's is one line, and exit code 2."""

import argparse
import contextlib
import os
import pathlib
import sys
import tempfile
import warnings
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NoReturn

from mtf_hetero._support import files

WRONG_USAGE = 2
MOST_CHARACTERS = 2000  # of an error
_PACKAGE = pathlib.Path(__file__).parents[1]


class Parser(argparse.ArgumentParser):
    """Reports a mistake in one line, where argparse would print its usage first."""

    def error(self, message: str) -> NoReturn:
        self.exit(WRONG_USAGE, f"error: {_one_line(message)}; see {self.prog} --help\n")


def say(error: object) -> None:
    """Prints an error on one line, which is cut if it is long."""
    sys.stderr.write(f"error: {_one_line(error)}\n")


def _one_line(error: object) -> str:
    line = " ".join(str(error)[: 2 * MOST_CHARACTERS].split())
    return line if len(line) <= MOST_CHARACTERS else line[:MOST_CHARACTERS] + "..."


def begin_process() -> None:
    """Prepares the process of a program: its standard streams, and where it looks for modules. Call it first."""
    _open_standard_streams()
    if not sys.flags.safe_path and sys.path and sys.path[0] in ("", _working_directory()):
        del sys.path[0]  # as of `python -m`: a module there would shadow another one of its name
    search_working_directory()


def search_working_directory() -> None:
    """Has Python look for modules in the working directory too, after all other places: none there shadows another."""
    if not {"", _working_directory()} & set(sys.path):
        sys.path.append(_working_directory())


def _working_directory() -> str:
    """Its path; "" where it was deleted."""
    try:
        return os.getcwd()
    except OSError:
        return ""


def _open_standard_streams() -> None:
    """Opens those of the three standard streams that are closed, as by `2>&-`, on nothing.

    Python has None in their places, and the next file that is opened gets their numbers.
    """
    for number, name in enumerate(("stdin", "stdout", "stderr")):
        try:
            os.fstat(number)
        except OSError:
            os.open(os.devnull, os.O_RDWR)  # gets the lowest number that is free: this one
        if getattr(sys, name) is None:
            setattr(sys, name, open(number, "r" if number == 0 else "w", closefd=False))  # noqa: SIM115 - for good


def run(main: Callable[[Sequence[str] | None, str], int], argv: Sequence[str] | None, program: str) -> NoReturn:
    """The whole process of a program: ends it with the exit code of its `main`."""
    begin_process()
    sys.exit(main(argv, program))


def print_result(work: Callable[[], str]) -> int:
    """Prints what a function returns, or the one line of its error; returns the exit code."""
    search_working_directory()
    try:
        result = work()
    except (ValueError, NotImplementedError) as error:
        say(error)
        return WRONG_USAGE
    except KeyboardInterrupt:
        sys.stderr.write("stopped: nothing was kept\n")
        return 130
    sys.stdout.write(result)
    return 0


def check_output(flag: str, path: str) -> None:
    """Raises ValueError where no file can be written at a path, before time is spent on what is to be in the file."""
    try:
        files.check_place(path)
    except OSError as error:
        raise ValueError(f"--{flag} is {path!r}: {error.strerror}; name another file") from error
    parent = os.path.dirname(os.path.abspath(path))
    while not os.path.lexists(parent):
        parent = os.path.dirname(parent)
    if not os.path.isdir(parent) or not os.access(parent, os.W_OK):
        raise ValueError(f"--{flag} is {path!r}, but {parent} cannot be written to; name another place")


@contextlib.contextmanager
def stderr_held_back() -> Iterator[None]:
    """Sends file descriptor 2 to a temporary file; after an error that is none of the user's, shows what came.

    TensorFlow's native code, which no Python setting reaches, writes several lines about the CPU and about missing GPU
    drivers while it is imported, whatever TF_CPP_MIN_LOG_LEVEL says; later that holds back what is no error.
    ValueError, NotImplementedError, KeyboardInterrupt and SystemExit are the caller's to report. What the package
    itself warns of is shown at the end, a line each.
    """
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")
    sys.stderr.flush()
    with tempfile.TemporaryFile() as held_back:
        stderr = os.dup(2)
        os.dup2(held_back.fileno(), 2)
        show, show_warning, own_warnings = False, warnings.showwarning, []

        def sort(message: Warning | str, category: type[Warning], filename: str, *rest: Any) -> None:
            if pathlib.Path(filename).is_relative_to(_PACKAGE):
                own_warnings.append(message)
            else:
                show_warning(message, category, filename, *rest)

        warnings.showwarning = sort
        try:
            yield
        except (ValueError, NotImplementedError, KeyboardInterrupt, SystemExit):
            raise
        except BaseException:
            show = True
            raise
        finally:
            warnings.showwarning = show_warning
            sys.stderr.flush()
            os.dup2(stderr, 2)
            os.close(stderr)
            if show:
                held_back.seek(0)
                sys.stderr.write(held_back.read().decode(errors="replace"))
            for message in own_warnings:
                sys.stderr.write(f"warning: {message}\n")
