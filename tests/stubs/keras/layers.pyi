from typing import Any

from keras import Layer as Layer

def __getattr__(name: str) -> Any: ...
