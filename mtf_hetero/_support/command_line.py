"""What the package's programs have in common: a mistake of the user's is one line, and exit code 2."""

import argparse
import contextlib
import importlib
import importlib.util
import os
import pathlib
import sys
import tempfile
import warnings
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NoReturn

WRONG_USAGE = 2
_PACKAGE = pathlib.Path(__file__).parents[1]


class Parser(argparse.ArgumentParser):
    """Reports a mistake in one line, where argparse would print its usage first."""

    def error(self, message: str) -> NoReturn:
        self.exit(WRONG_USAGE, f"error: {' '.join(message.split())}; see {self.prog} --help\n")


def say(error: object) -> None:
    """Prints an error on one line."""
    sys.stderr.write(f"error: {' '.join(str(error).split())}\n")


def open_standard_streams() -> None:
    """Opens those of the three standard streams that are closed, as by `2>&-`, on nothing. Call it first.

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
    open_standard_streams()
    sys.exit(main(argv, program))


def print_result(work: Callable[[], str]) -> int:
    """Prints what a function returns, or the one line of its error; returns the exit code.

    The working directory is searched for modules too, as by `python -m`: mtf-hetero is a script, whose own directory
    Python searches instead.
    """
    if not {"", os.getcwd()} & set(sys.path):
        sys.path.insert(0, os.getcwd())
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


def check_function(flag: str, text: str) -> None:
    """Raises ValueError unless "module:function" is well written and its top-level module is there to be imported."""
    module, colon, name = text.partition(":")
    if not (module and colon and name):
        raise ValueError(f"--{flag} is {text!r}; write module:function")
    top = module.partition(".")[0]
    if top not in sys.modules and (not top or importlib.util.find_spec(top) is None):
        raise ValueError(f"--{flag} is {text!r}, which cannot be imported: No module named {top!r}")


def function_of(flag: str, text: str) -> Callable[..., Any]:
    """The function that "module:function" names.

    Raises:
      ValueError: it cannot be imported.
    """
    module, _, name = text.partition(":")
    try:
        return getattr(importlib.import_module(module), name)
    except (ImportError, AttributeError) as error:
        raise ValueError(f"--{flag} is {text!r}, which cannot be imported: {error}") from error


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
