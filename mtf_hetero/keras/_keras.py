"""Import Keras 3 on TensorFlow for the room, or say in one line what to do."""

import importlib
import types
from typing import TYPE_CHECKING

from mtf_hetero._support import garbage, stand_ins

# They import Matplotlib and scikit-learn, which takes longer than the rest of Keras
_POSTPONED = ("keras.src.visualization", "keras.visualization", "keras.wrappers")


def check(version: str, backend: str) -> None:
    """Raise ImportError, in one line, unless it is Keras 3 on TensorFlow."""
    if int(version.partition(".")[0]) < 3:
        raise ImportError(
            f"Keras {version} is too old: mtf_hetero.keras needs Keras 3, which comes with TensorFlow 2.16 and newer; "
            "pip install 'tensorflow>=2.16'"
        )
    if backend != "tensorflow":
        raise ImportError(
            f"Keras runs on {backend}: mtf_hetero.keras needs TensorFlow; set KERAS_BACKEND=tensorflow before Keras is "
            "imported"
        )


@garbage.without_collection()
def _import_keras() -> types.ModuleType:
    importlib.import_module("mtf_hetero._compat")  # it imports TensorFlow, and holds its start-up messages back
    try:
        with stand_ins.postponed(*_POSTPONED):
            found = importlib.import_module("keras")
    except ModuleNotFoundError as error:
        raise ImportError("mtf_hetero.keras needs Keras 3; pip install 'tensorflow>=2.16'") from error
    check(found.__version__, getattr(found.config, "backend", lambda: "tensorflow")())
    return found


if TYPE_CHECKING:  # tests/stubs has its types
    import keras as keras
else:
    keras = _import_keras()
