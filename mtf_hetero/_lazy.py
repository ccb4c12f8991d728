"""Names of a package that are imported when they are first asked for (PEP 562)."""

import importlib
import importlib.util
import pkgutil
import sys
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
        modules = (found.name for found in pkgutil.iter_modules(module.__path__))
        return sorted({*vars(module), *module_of, *(name for name in modules if not name.startswith("_"))})

    return __getattr__, __dir__
