"""Find functions of the user, "module:function" on a command line, and report their errors in one line.

The working directory is searched too. If a module there has the name of one of Python or of an installed package, it
is loaded under another name, so that it shadows nothing.
"""

import functools
import importlib
import importlib.machinery
import importlib.util
import pathlib
import sys
import traceback
import types
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from mtf_hetero._support.command_line import search_working_directory
from mtf_hetero._support.schema import shorten

if TYPE_CHECKING:
    from mtf_hetero._compat import mtf

_OWN = "mtf_hetero_user_"  # before the name of a module that would shadow another one
_PACKAGE = pathlib.Path(__file__).parents[1]


def check_function(flag: str, text: str) -> None:
    """Raise ValueError unless "module:function" is well written and its top-level module exists."""
    module, colon, name = text.partition(":")
    if not (module and colon and name):
        raise ValueError(f"--{flag} is {text!r}; write module:function")
    top = module.partition(".")[0]
    if top not in sys.modules and (not top or (_file_here(top) or importlib.util.find_spec(top)) is None):
        raise ValueError(f"--{flag} is {text!r}, which cannot be imported: No module named {top!r}")


def load_function(flag: str, text: str) -> Callable[..., Any]:
    """Return the function that "module:function" names, wrapped so that its errors become ValueErrors.

    A ValueError or NotImplementedError that mtf_hetero raises inside of it stays as it is.

    Raises:
      ValueError: the function cannot be imported.
    """
    module, _, name = text.partition(":")
    try:
        function = getattr(import_module(module), name)
        if not callable(function):
            raise TypeError(f"{name} is not a function")
    except (Exception, SystemExit) as error:
        raise ValueError(f"--{flag} is {text!r}, which cannot be imported: {describe_error(error)}") from error

    @functools.wraps(function)
    def called(*args: object, **kwargs: object) -> Any:
        try:
            return function(*args, **kwargs)
        except (Exception, SystemExit) as error:
            if isinstance(error, (ValueError, NotImplementedError)) and _is_of_package(error):
                raise
            raise ValueError(f"--{flag} is {text!r}, which failed: {describe_error(error)}") from error

    return called


def graph_function(flag: str, text: str) -> Callable[[], "mtf.Graph"]:
    """Return the function that "module:function" names, wrapped so that any result but an mtf.Graph is refused.

    Raises:
      ValueError: the function cannot be imported.
    """
    build = load_function(flag, text)

    def checked() -> "mtf.Graph":
        from mtf_hetero._compat import mtf  # here, so that programs can check their flags before it is loaded

        graph = build()
        if not isinstance(graph, mtf.Graph):
            raise ValueError(f"--{flag} is {text!r}, which returned {shorten(graph)}; return an mtf.Graph")
        return graph

    return checked


def _file_here(top: str) -> pathlib.Path | None:
    """Return the file of a module or a package in the working directory."""
    for file in (pathlib.Path(f"{top}.py"), pathlib.Path(top, "__init__.py")):
        if file.is_file():
            return file.resolve()
    return None


def import_module(module: str) -> types.ModuleType:
    """Import a module of the user, from the working directory too, and pass its errors on unchanged."""
    search_working_directory()
    importlib.invalidate_caches()
    top, dot, rest = module.partition(".")
    file = _file_here(top)
    if file is None or _is_found(top, file):
        return importlib.import_module(module)
    return importlib.import_module(_load(_OWN + top, file) + dot + rest)


def _is_found(top: str, file: pathlib.Path) -> bool:
    """Return whether Python finds this very file under a name."""
    if top in sys.modules:
        found = getattr(sys.modules[top], "__file__", None)
    else:
        spec = importlib.util.find_spec(top)
        found = None if spec is None else spec.origin
    return found is not None and pathlib.Path(found).resolve() == file


def _load(name: str, file: pathlib.Path) -> str:
    """Load a file as a module of the given name, and return the name."""
    places = [str(file.parent)] if file.name == "__init__.py" else None
    spec = importlib.util.spec_from_file_location(name, file, submodule_search_locations=places)
    assert spec is not None and spec.loader is not None
    sys.modules[name] = module = importlib.util.module_from_spec(spec)
    try:
        spec.loader.exec_module(module)
    except BaseException:
        del sys.modules[name]
        raise
    return name


def _is_of_package(error: BaseException) -> bool:
    *_, (frame, _) = traceback.walk_tb(error.__traceback__)
    return frame.f_globals.get("__name__", "").partition(".")[0] == _PACKAGE.name


def describe_error(error: BaseException) -> str:
    """Return an error's message with the line of the user's file."""
    if isinstance(error, SystemExit):
        text = f"it called sys.exit({'' if error.code is None else repr(error.code)})"
    elif isinstance(error, (ImportError, AttributeError)) and str(error):
        text = str(error)
    else:
        text = ": ".join(filter(None, (type(error).__name__, str(error))))
    frames = [frame for frame in traceback.extract_tb(error.__traceback__) if _is_users(frame.filename)]
    return f"{text} ({frames[-1].filename}, line {frames[-1].lineno})" if frames else text


def is_of_library(path: pathlib.Path) -> bool:
    """Return whether a file belongs to Python, to an installed package or to this one."""
    return any(path.is_relative_to(library) for library in (_PACKAGE, sys.prefix, sys.base_prefix))


def _is_users(filename: str) -> bool:
    path = pathlib.Path(filename).resolve()
    return path.is_file() and not is_of_library(path)
