"""CNNs as layout-blind builders. `mtf-hetero train` trains them.

`MODELS` maps a name to a `registry.Model`. It is imported at its first use, so that a program can read its flags before
TensorFlow is loaded. The package is `mtf_hetero.models`; in a checkout it is the folder `models/` too.
"""

from typing import TYPE_CHECKING

from mtf_hetero._support import lazy

if TYPE_CHECKING:
    from mtf_hetero.models.registry import MODELS, Model

__all__ = ["MODELS", "Model"]

__getattr__, __dir__ = lazy.attach(__name__, dict.fromkeys(__all__, "registry"))
