"""CNNs as layout-blind builders, and the binaries that train them (`python -m models.train --help`).

`MODELS` maps a name to a `models.registry.Model`. It is imported when it is first asked for, so that a binary can read
its flags before TensorFlow is loaded.
"""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from models.registry import MODELS, Model

__all__ = ["MODELS", "Model"]


def __getattr__(name: str) -> Any:
    if name in __all__:
        from models import registry

        return getattr(registry, name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
