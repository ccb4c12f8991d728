"""Tools of all programs of the package: a user mistake gives one line and exit code 2."""

import argparse
import atexit
import contextlib
import itertools
import os
import pathlib
import sys
import warnings
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NoReturn

from mtf_hetero._support import files, start_up, threads
from mtf_hetero._support.schema import near_text

WRONG_USAGE = 2  # as argparse and shells have it
OUTPUT_UNREAD = 141  # 128 + SIGPIPE, as of a program that this signal ends
MOST_CHARACTERS = 2000  # of an error
_PACKAGE = pathlib.Path(__file__).parents[1]


class Parser(argparse.ArgumentParser):
    """Reports a mistake in one line, without the usage that argparse prints first. Flags have no short forms."""

    def __init__(self, **options: Any) -> None:
        super().__init__(allow_abbrev=False, **options)

    def error(self, message: str) -> NoReturn:
        self.exit(WRONG_USAGE, f"error: {_one_line(message)}; see {self.prog} --help\n")

    def parse_known_args(self, args: Sequence[str] | None = None, namespace: argparse.Namespace | None = None):
        """Refuse an unknown flag first: argparse would miss the required flag that it is a misspelling of."""
        args = sys.argv[1:] if args is None else args
        for argument in itertools.takewhile("--".__ne__, args):
            if self._subparsers and not argument.startswith("-"):
                break  # the flags after a command are that command's
            name = argument.partition("=")[0]
            # argparse reads a text with a space, "--threads=2 --gpus=none", as the value of the flag before
            is_flag = name.startswith("--") and " " not in argument
            if is_flag and name not in self._option_string_actions:
                self.error(f"{name} is unknown{near_text(name, self._option_string_actions)}")
        return super().parse_known_args(args, namespace)

    def _get_values(self, action: argparse.Action, arg_strings: list[str]) -> object:
        """Refuse the value of --flag=--, which argparse makes an empty list."""
        if action.option_strings and arg_strings == ["--"]:
            raise argparse.ArgumentError(action, "'--' is no value")
        return super()._get_values(action, arg_strings)


def say(error: object) -> None:
    """Print an error on one line, which is cut if it is long."""
    sys.stderr.write(f"error: {_one_line(error)}\n")


def _one_line(error: object) -> str:
    line = " ".join(str(error)[: 2 * MOST_CHARACTERS].split())
    return line if len(line) <= MOST_CHARACTERS else line[:MOST_CHARACTERS] + "..."


def begin_process() -> None:
    """Prepare the process of a program: its standard streams, and where it looks for modules. Call it first."""
    _open_standard_streams()
    if not sys.flags.safe_path and sys.path and sys.path[0] in ("", _working_directory()):
        del sys.path[0]  # set by `python -m`: a module there would shadow an installed one
    search_working_directory()


def search_working_directory() -> None:
    """Let Python find modules in the working directory too. It is the last place, so that they shadow nothing."""
    if not {"", _working_directory()} & set(sys.path):
        sys.path.append(_working_directory())


def _working_directory() -> str:
    """Return its path; "" if the directory was deleted."""
    try:
        return os.getcwd()
    except OSError:
        return ""


def _open_standard_streams() -> None:
    """Open each closed standard stream, as after `2>&-`, on /dev/null.

    Otherwise the next file that is opened gets the number of a closed stream.
    """
    for number, name in enumerate(("stdin", "stdout", "stderr")):
        try:
            os.fstat(number)
        except OSError:
            os.open(os.devnull, os.O_RDWR)  # gets the lowest free number: this one
        if getattr(sys, name) is None:
            setattr(sys, name, open(number, "r" if number == 0 else "w", closefd=False))  # noqa: SIM115 - for good


def read_flags(argv: Sequence[str]) -> list[str]:
    """Parse the flags of absl, and return the other arguments.

    Raises:
      ValueError: in one line, which flag is wrong.
    """
    from absl import flags  # here, because most programs have none

    try:
        return flags.FLAGS(list(argv))
    except flags.Error as error:  # absl raises ValueError for --noflag=value
        raise ValueError(str(error)) from error


def parse_flags(argv: Sequence[str]) -> list[str]:
    """Return what `read_flags` returns. A mistake ends the program with one line."""
    try:
        return read_flags(argv)
    except ValueError as error:
        say(error)
        sys.exit(WRONG_USAGE)


def run(main: Callable[[Sequence[str] | None, str], int], argv: Sequence[str] | None, program: str) -> NoReturn:
    """Run the process of a program, and end it with the exit code of its `main`."""
    begin_process()
    try:
        code = main(argv, program)
    except SystemExit as end:  # raised by a parser
        code = end.code if isinstance(end.code, int) else 1
    except BrokenPipeError:
        leave(close_output())
    except OSError:
        if not _end_output(b"\n"):  # the error was about another file
            raise
        leave(WRONG_USAGE)
    leave(_end_output() or code)


def _end_output(more: bytes = b"") -> int:
    """Write the rest of the standard output. If that fails, say so, and return an exit code other than 0.

    Args:
      more: is written after it, to see whether that is possible: an unbuffered stream keeps nothing.
    """
    try:
        sys.stdout.flush()
        if more:
            os.write(sys.stdout.fileno(), more)
    except BrokenPipeError:
        return close_output()
    except OSError as error:  # of a full disk, for instance
        say(f"the standard output cannot be written: {error.strerror}; send it to another file")
        return WRONG_USAGE
    except ValueError:  # it is closed
        pass
    return 0


def leave(code: int) -> NoReturn:
    """End the process.

    A TensorFlow call that waited for a lost worker may return while Python exits, and that aborts the process. So this
    function does the work of Python's exit, and then ends the process directly.
    """
    atexit.unregister(threads.end_all)  # the end of the process needs no end of its threads
    atexit._run_exitfuncs()
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(OSError, ValueError):
            stream.flush()
    os._exit(code)


def close_output() -> int:
    """Return the exit code for a standard output that nobody reads, and send the rest of it to /dev/null."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    return OUTPUT_UNREAD


def print_result(work: Callable[[], str], *, stopped: str = "nothing was kept") -> int:
    """Print what a function returns, or the one line of its error, or `stopped` after Ctrl-C; return the exit code."""
    search_working_directory()
    try:
        result = work()
    except (ValueError, NotImplementedError) as error:
        say(error)
        return WRONG_USAGE
    except KeyboardInterrupt:
        sys.stderr.write(f"stopped: {stopped}\n")
        return 130
    sys.stdout.write(result)
    return 0


def check_output(flag: str, path: str) -> None:
    """Raise ValueError if no file can be written at a path, before the program computes the content."""
    try:
        files.check_place(path)
    except OSError as error:
        raise ValueError(f"--{flag} is {path!r}: {error.strerror}; name another file") from error
    parent = os.path.dirname(os.path.abspath(path))
    while not os.path.lexists(parent):
        parent = os.path.dirname(parent)
    if not os.path.isdir(parent) or not os.access(parent, os.W_OK):
        raise ValueError(f"--{flag} is {path!r}, but {parent} cannot be written to; name another place")


def write_output(flag: str, path: str, data: bytes) -> None:
    """Write a file that a flag names, or raise ValueError if that is impossible."""
    try:
        files.write_bytes(path, data)
    except OSError as error:
        raise ValueError(f"--{flag} is {path!r}: {error.strerror}; name another file") from error


@contextlib.contextmanager
def capture_stderr() -> Iterator[None]:
    """Send file descriptor 2 to a temporary file, and show the file after an error that is no user mistake.

    TensorFlow's native code writes several lines about the CPU and missing GPU drivers while it is imported. No Python
    setting stops these lines, and TF_CPP_MIN_LOG_LEVEL works only later. The caller reports ValueError,
    NotImplementedError, KeyboardInterrupt and SystemExit. The package's own warnings are shown at the end.
    """
    os.environ.setdefault(start_up.LEVEL, "2")
    is_shown, show_warning, own_warnings = False, warnings.showwarning, []

    def sort(message: Warning | str, category: type[Warning], filename: str, *rest: Any) -> None:
        if pathlib.Path(filename).is_relative_to(_PACKAGE):
            own_warnings.append(message)
        else:
            show_warning(message, category, filename, *rest)

    warnings.showwarning = sort
    try:
        with start_up.hold_back(lambda text: text if is_shown else ""):
            try:
                yield
            except (ValueError, NotImplementedError, KeyboardInterrupt, SystemExit):
                raise
            except BaseException:
                is_shown = True
                raise
    finally:
        warnings.showwarning = show_warning
        for message in own_warnings:
            sys.stderr.write(f"warning: {message}\n")
