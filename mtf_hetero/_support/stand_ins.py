"""Replace missing modules for a package that imports them, or postpone modules that few programs use."""

import contextlib
import functools
import importlib.abc
import importlib.machinery
import importlib.util
import sys
import types
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any


def is_importable(name: str) -> bool:
    """Return whether a module can be imported."""
    try:
        return name in sys.modules or importlib.util.find_spec(name) is not None
    except ModuleNotFoundError:  # its package is missing
        return False


@contextlib.contextmanager
def without(name: str) -> Iterator[None]:
    """Make imports of one module fail, unless it is imported already."""
    hidden = name not in sys.modules
    if hidden:
        sys.modules[name] = None  # pyright: ignore[reportArgumentType] - so Python marks a missing module
    try:
        yield
    finally:
        if hidden:
            del sys.modules[name]


class Wrapped(importlib.abc.MetaPathFinder):
    """Finder for sys.meta_path that puts a loader around those of some modules. Modules that are missing stay so.

    Args:
      is_wrapped: whether a module of this name is one of them.
      wrap: returns the loader around another one.
    """

    def __init__(
        self, is_wrapped: Callable[[str], bool], wrap: Callable[[importlib.abc.Loader], importlib.abc.Loader]
    ) -> None:
        self._is_wrapped, self._wrap = is_wrapped, wrap

    def find_spec(
        self, fullname: str, path: Sequence[str] | None = None, target: types.ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        spec = importlib.machinery.PathFinder.find_spec(fullname, path, target) if self._is_wrapped(fullname) else None
        if spec is not None and spec.loader is not None:
            spec.loader = self._wrap(spec.loader)
        return spec


def within(package: str, context: Callable[[], contextlib.AbstractContextManager[None]]) -> Wrapped:
    """Return a finder that imports a package within a context."""
    return Wrapped(package.__eq__, lambda loader: ContextLoader(loader, context))


@contextlib.contextmanager
def postponed(*names: str) -> Iterator[None]:
    """Let modules that are imported in this context run at their first use."""
    finder = Wrapped(names.__contains__, importlib.util.LazyLoader)
    sys.meta_path.insert(0, finder)
    try:
        yield
    finally:
        sys.meta_path.remove(finder)


class StandIns(Wrapped):
    """Finder that gives stand-ins to the modules of a package. It precedes the package's finder in sys.meta_path.

    Args:
      package: its name.
      modules: {name: its stand-in}. A module that exists is not replaced.
    """

    def __init__(self, package: str, modules: Mapping[str, types.ModuleType]) -> None:
        super().__init__(
            lambda name: name.startswith(f"{package}."), lambda loader: ContextLoader(loader, self._present)
        )
        self._modules = modules

    @functools.cached_property
    def _missing(self) -> dict[str, types.ModuleType]:
        return {name: module for name, module in self._modules.items() if not is_importable(name)}

    @contextlib.contextmanager
    def _present(self) -> Iterator[None]:
        """Offer the stand-ins while a module is imported. The module keeps the ones that it imports."""
        added = {name: module for name, module in self._missing.items() if name not in sys.modules}
        sys.modules.update(added)
        try:
            yield
        finally:
            for name in added:
                del sys.modules[name]


class ContextLoader(importlib.abc.Loader):
    """Runs another loader in a context."""

    def __init__(
        self, loader: importlib.abc.Loader, context: Callable[[], contextlib.AbstractContextManager[None]]
    ) -> None:
        self._loader = loader
        self._context = context

    def __getattr__(self, name: str) -> Any:  # get_source, get_filename and others
        return getattr(self._loader, name)

    def create_module(self, spec: importlib.machinery.ModuleSpec) -> types.ModuleType | None:
        return self._loader.create_module(spec)

    def exec_module(self, module: types.ModuleType) -> None:
        with self._context():
            self._loader.exec_module(module)


def module(name: str, attribute: Callable[[str], object] | None = None, **attributes: object) -> types.ModuleType:
    """Make a module.

    Args:
      name: its full name.
      attribute: returns any other attribute by its name, or raises AttributeError.
      **attributes: its attributes.
    """
    made = types.ModuleType(name)
    vars(made).update(attributes)
    if attribute is not None:
        vars(made)["__getattr__"] = attribute
    return made
