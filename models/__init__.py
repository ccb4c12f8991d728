"""CNNs as layout-blind builders, and the program that trains them (`mtf-hetero train --help`).

`MODELS` maps a name to a `registry.Model`. It is imported when it is first asked for, so that a program can read its
flags before TensorFlow is loaded. It is `mtf_hetero.models`; in a checkout it is the
folder `models/` too.
"""

import sys
from typing import TYPE_CHECKING

from mtf_hetero._support import lazy

if TYPE_CHECKING:
    from mtf_hetero.models.registry import MODELS, Model

__all__ = ["MODELS", "Model"]

__getattr__, __dir__ = lazy.attach(__name__, dict.fromkeys(__all__, "registry"))

_TRAIN = "mtf_hetero.models.train"
_MOVED = {
    "command_line": f"{_TRAIN}.console",
    "config": f"{_TRAIN}.config",
    "inputs": f"{_TRAIN}.inputs",
    "meshes": f"{_TRAIN}.meshes",
    "network": f"{_TRAIN}.program",
    "tasks": f"{_TRAIN}.tasks",
    "training": f"{_TRAIN}.prepare",
}
sys.meta_path.append(lazy.Moved({f"{__name__}.{name}": new for name, new in _MOVED.items()}))
