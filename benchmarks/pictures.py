"""Pictures in rows: arrays of uint8 in a form for JSON."""

import base64
import zlib
from collections.abc import Mapping
from typing import Any

import numpy as np


def pack(picture: np.ndarray) -> dict[str, Any]:
    """Return the picture in a form for JSON."""
    packed = zlib.compress(picture.astype(np.uint8).tobytes(), 9)
    return {"shape": list(picture.shape), "data": base64.b64encode(packed).decode("ascii")}


def unpack(packed: Mapping[str, Any]) -> np.ndarray:
    """Return the picture that `pack` packed.

    Example:
      >>> unpack(pack(np.eye(2)))
      array([[1, 0],
             [0, 1]], dtype=uint8)
    """
    return np.frombuffer(zlib.decompress(base64.b64decode(packed["data"])), np.uint8).reshape(packed["shape"])
