"""Names of TensorFlow 2 that `tensorflow.compat.v1` has in another form."""

from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any

from tensorflow.compat.v1 import Variable as Variable
from tensorflow.compat.v1 import data as data
from tensorflow.compat.v1 import function as function

def variable_creator_scope(variable_creator: Callable[..., Any]) -> AbstractContextManager[None]: ...
def __getattr__(name: str) -> Any: ...
