"""Names of a package that are imported when they are first asked for (PEP 562), and what has to be imported before."""

import importlib
import importlib.abc
import importlib.machinery
import importlib.util
import pkgutil
import sys
import types
from collections.abc import Callable, Mapping
from typing import Any


def attach(package: str, module_of: Mapping[str, str]) -> tuple[Callable[[str], Any], Callable[[], list[str]]]:
    """The `__getattr__` and `__dir__` of a package; each of its modules is an attribute of it too.

    Args:
      package: its `__name__`.
      module_of: {public name: the module of the package that has it}.
    """

    def __getattr__(name: str) -> Any:  # noqa: N807 - it is to be called so
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
    """Has a package imported by a module, which makes it importable, whoever imports it first. Goes to sys.meta_path.

    Args:
      package: its name.
      by: the module that imports it.
    """

    def __init__(self, package: str, by: str) -> None:
        self._package, self._by = package, by
        self._spec: Any = None

    def find_spec(self, fullname: str, path: Any = None, target: Any = None) -> importlib.machinery.ModuleSpec | None:
        if fullname != self._package or self._by in sys.modules:  # it is there, or about to import the package
            return None
        importlib.import_module(self._by)
        module = sys.modules[fullname]
        self._spec = module.__spec__
        del module.__spec__  # by which the import that is under way would load it once more
        return importlib.machinery.ModuleSpec(fullname, self, is_package=True)

    def create_module(self, spec: importlib.machinery.ModuleSpec) -> Any:
        return sys.modules[self._package]

    def exec_module(self, module: Any) -> None:
        module.__spec__ = self._spec


class Moved(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    """Imports a module by a name that it had before. Goes to sys.meta_path.

    Args:
      names: {name before: name now}.
    """

    def __init__(self, names: Mapping[str, str]) -> None:
        self._names = names

    def find_spec(self, fullname: str, path: Any = None, target: Any = None) -> importlib.machinery.ModuleSpec | None:
        return importlib.machinery.ModuleSpec(fullname, self) if fullname in self._names else None

    def create_module(self, spec: importlib.machinery.ModuleSpec) -> Any:
        return types.ModuleType(spec.name)  # its own, so that the import leaves the other's attributes alone

    def exec_module(self, module: Any) -> None:
        sys.modules[module.__name__] = importlib.import_module(self._names[module.__name__])
