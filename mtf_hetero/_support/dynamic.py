"""What a type checker sees in place of mesh_tensorflow and tensorflow, whose names are made when they are imported.

Each name is a type and is not checked further, so that an annotation says what goes in and out: `x: mtf.Tensor`. Python
itself looks the name up in the real module when a function is defined, and a wrong one fails there.
"""

from typing import Any


def __getattr__(name: str) -> Any:
    raise AttributeError(name)  # this module is for type checkers alone
