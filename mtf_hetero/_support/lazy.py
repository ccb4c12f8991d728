"""Import the names of a package at their first use (PEP 562), and a package before another one."""

import importlib
import importlib.abc
import importlib.machinery
import importlib.util
import pkgutil
import sys
import types
import warnings
from collections.abc import Callable, Mapping, Sequence
from typing import Any


def attach(
    package: str, module_of: Mapping[str, str], *, renamed: Mapping[str, str] | None = None
) -> tuple[Callable[[str], Any], Callable[[], list[str]]]:
    """Return the `__getattr__` and `__dir__` of a package. Each of its modules is an attribute of it too.

    Args:
      package: its `__name__`.
      module_of: {public name: the module of the package that has it}.
      renamed: {former public name: new name}, for one release. A former name gives a DeprecationWarning.
    """

    def __getattr__(name: str) -> Any:  # noqa: N807 - Python looks for this name
        if renamed and name in renamed:
            message = f"{package}.{name} is now called {renamed[name]}; the former name will be removed"
            warnings.warn(message, DeprecationWarning, stacklevel=2)
            return getattr(sys.modules[package], renamed[name])
        if name in module_of:
            value = getattr(importlib.import_module(f"{package}.{module_of[name]}"), name)
            setattr(sys.modules[package], name, value)
            return value
        if importlib.util.find_spec(f"{package}.{name}") is None:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        return importlib.import_module(f"{package}.{name}")

    def __dir__() -> list[str]:  # noqa: N807
        module = sys.modules[package]
        modules = (info.name for info in pkgutil.iter_modules(module.__path__))
        return sorted({*vars(module), *module_of, *(name for name in modules if not name.startswith("_"))})

    return __getattr__, __dir__


class ImportedBy(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    """Finder for sys.meta_path that lets a module import a package, because the package cannot be imported without it.

    Args:
      package: its name.
      by: the module that imports it.
      unless: a package that asks for the first one while it is imported, after which that can be imported as usual.
    """

    def __init__(self, package: str, by: str, unless: str | None = None) -> None:
        self._package, self._by, self._unless = package, by, unless
        self._spec: importlib.machinery.ModuleSpec | None = None

    def find_spec(
        self, fullname: str, path: Sequence[str] | None = None, target: types.ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        if fullname != self._package or not sys.modules.keys().isdisjoint((self._by, self._unless)):
            return None  # the package is imported, or is about to be, or can be as usual
        importlib.import_module(self._by)
        module = sys.modules[fullname]
        self._spec = module.__spec__
        del module.__spec__  # otherwise the running import would load it again
        return importlib.machinery.ModuleSpec(fullname, self, is_package=True)

    def create_module(self, spec: importlib.machinery.ModuleSpec) -> types.ModuleType:
        return sys.modules[self._package]

    def exec_module(self, module: types.ModuleType) -> None:
        module.__spec__ = self._spec


class Moved(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    """Finder for sys.meta_path that imports modules by their former names, with a DeprecationWarning.

    Args:
      names: {name before: name now}.
    """

    def __init__(self, names: Mapping[str, str]) -> None:
        self._names = names

    def find_spec(
        self, fullname: str, path: Sequence[str] | None = None, target: types.ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        return importlib.machinery.ModuleSpec(fullname, self) if fullname in self._names else None

    def create_module(self, spec: importlib.machinery.ModuleSpec) -> types.ModuleType:
        return types.ModuleType(spec.name)  # a module of its own: the import changes no attribute of the new one

    def exec_module(self, module: types.ModuleType) -> None:
        name = module.__name__
        message = f"{name} is now called {self._names[name]}; the former name will be removed"
        warnings.warn(message, DeprecationWarning, stacklevel=2)
        sys.modules[name] = importlib.import_module(self._names[name])
