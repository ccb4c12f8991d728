"""Steps of any other model: `train_step` and `test_step` as Keras would run them, imported and divided."""

from collections.abc import Callable
from typing import Any

from mtf_hetero._compat import tf
from mtf_hetero.importer import step as step_lib
from mtf_hetero.importer.divided import Divided, Traced
from mtf_hetero.keras.session import LOSS
from mtf_hetero.placement import Placement


class Imported:
    """Runs the model's own steps. Metrics, and scalars of the optimizer, stay in this process.

    Args:
      model: the compiled keras.Model.
      place: from a function that builds a step to where the model lies.
      data: the first batch, as Keras gives it.

    Raises:
      NotImplementedError: an operation that is not followed, by name and the user's line.
    """

    tests_write = True  # a test_step of the user's may change variables

    def __init__(self, model: Any, place: Callable[[Any], Placement], data: Any) -> None:
        self._model = model
        self._steps_given = self._iterations()

        def step(is_training: bool, data: Any) -> Any:
            return model.train_step(data) if is_training else model.test_step(data)

        traced = Traced(tf.compat.v2.function(step, autograph=False), lambda: [v.value for v in _hosted(model)])
        inputs = True, data
        program = traced.program(inputs)
        placement = place(lambda: step_lib.build(program).graph)
        owner = f"model {model.name!r}"
        self._divided = Divided(traced, placement, inputs, owner=owner, loss=LOSS)

    def __enter__(self) -> "Imported":
        return self

    def __exit__(self, *_: object) -> None:
        self._divided.close()

    def _iterations(self) -> int:
        return int(self._model.optimizer.iterations.numpy())

    def train(self, data: Any) -> Any:
        """Take a step; returns the logs."""
        return self._divided(True, data)

    def test(self, data: Any) -> Any:
        """Test a batch; returns the logs."""
        return self._divided(False, data)

    def give_back(self) -> None:
        """Give the model its weights."""
        self._divided.pull()
        self._steps_given = self._iterations()

    def take_changed(self) -> None:
        """Take over what was changed in the model since it was given its weights."""
        self._divided.push_pulled()

    def forget_steps(self) -> None:
        """Have the optimizer count the steps until the model was given its weights, and none after them."""
        self._model.optimizer.iterations.assign(self._steps_given)


def _hosted(model: Any) -> list[Any]:
    """Return the variables that Keras and callbacks read and write between steps."""
    return [*model.metrics_variables, *(v for v in model.optimizer.variables if not v.shape)]
