"""TensorFlow 2, as far as the project uses it: `tensorflow.compat.v1` has the names."""

from typing import Any

def __getattr__(name: str) -> Any: ...
