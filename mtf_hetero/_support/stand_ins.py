"""Modules that are no longer there, for a package that imports them: seen by its own modules, and by nobody else."""

import contextlib
import functools
import importlib.abc
import importlib.machinery
import importlib.util
import sys
import types
from collections.abc import Callable, Iterator, Mapping
from typing import Any


def is_there(name: str) -> bool:
    """Whether a module can be imported."""
    try:
        return name in sys.modules or importlib.util.find_spec(name) is not None
    except ModuleNotFoundError:  # what it would be in
        return False


class StandIns(importlib.abc.MetaPathFinder):
    """Has the modules of a package find others that are missing. Goes to sys.meta_path, before what finds the package.

    Args:
      package: its name.
      modules: {name: what is taken for it}. A module that is there is left as it is.
    """

    def __init__(self, package: str, modules: Mapping[str, types.ModuleType]) -> None:
        self._prefix = f"{package}."
        self._modules = modules

    @functools.cached_property
    def _missing(self) -> dict[str, types.ModuleType]:
        return {name: module for name, module in self._modules.items() if not is_there(name)}

    def find_spec(self, fullname: str, path: Any = None, target: Any = None) -> importlib.machinery.ModuleSpec | None:
        if not fullname.startswith(self._prefix):
            return None
        spec = importlib.machinery.PathFinder.find_spec(fullname, path, target)
        if spec is not None and spec.loader is not None:
            spec.loader = _Loader(spec.loader, self._present)
        return spec

    @contextlib.contextmanager
    def _present(self) -> Iterator[None]:
        """The stand-ins are there while a module is imported, which keeps those that it takes."""
        added = {name: module for name, module in self._missing.items() if name not in sys.modules}
        sys.modules.update(added)
        try:
            yield
        finally:
            for name in added:
                del sys.modules[name]


class _Loader(importlib.abc.Loader):
    """Another loader, within a context.

    Args:
      loader: the other.
      context: makes the context.
    """

    def __init__(self, loader: Any, context: Callable[[], Any]) -> None:
        self._loader = loader
        self._context = context

    def __getattr__(self, name: str) -> Any:  # get_source, get_filename and others
        return getattr(self._loader, name)

    def create_module(self, spec: importlib.machinery.ModuleSpec) -> Any:
        return self._loader.create_module(spec)

    def exec_module(self, module: types.ModuleType) -> None:
        with self._context():
            self._loader.exec_module(module)


def module(name: str, attribute: Callable[[str], Any] | None = None, **attributes: Any) -> types.ModuleType:
    """A module that is made here.

    Args:
      name: its full name.
      attribute: from the name of any other attribute to what it is; raises AttributeError where there is none.
      **attributes: what it has.
    """
    made = types.ModuleType(name)
    vars(made).update(attributes)
    if attribute is not None:
        vars(made)["__getattr__"] = attribute
    return made
