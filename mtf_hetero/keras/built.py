"""Steps of a model that `mtf_hetero.keras.build` takes: its layers, losses and optimizer as operations of mtf."""

from collections.abc import Callable, Sequence
from typing import Any

from mtf_hetero._compat import tf
from mtf_hetero.keras import compiled, program
from mtf_hetero.keras._keras import keras
from mtf_hetero.keras.program import Batch
from mtf_hetero.keras.registered import Builder
from mtf_hetero.keras.session import Result, Session
from mtf_hetero.placement import Placement


class Built:
    """Takes steps and tests in a session, and has the model's metrics take in what they give.

    Args:
      builder: of the model.
      place: from a function that builds a step to where the model lies.
      data: the first batch, as Keras gives it.

    Raises:
      NotBuiltError: a layer, loss or optimizer that there is not, by name.
      NotImplementedError: the layout splits what an operation needs whole.
    """

    tests_write = False

    def __init__(self, builder: Builder, place: Callable[[Any], Placement], data: Any) -> None:
        self._model = model = builder.model
        self._has_metrics = compiled.has_metrics(model)
        self._measure = self._taken_in
        if not model.run_eagerly:
            self._measure = tf.compat.v2.function(self._taken_in, autograph=False, reduce_retracing=True)
        batch = program.batch_of(model, data)
        with program.refusing_parts():
            compiled.check_added(model, batch.x)
        if not model.optimizer.built:
            with keras.name_scope(model.optimizer.name, caller=model.optimizer):  # as Keras, for the variables' names
                model.optimizer.build(model.trainable_variables)
        objective = compiled.objective(model, batch.y, batch.sample_weight)
        placement = place(lambda: program.build(builder, batch, objective, training=True).graph)
        self._session = Session(builder, placement, batch)

    def __enter__(self) -> "Built":
        self._session.__enter__()
        return self

    def __exit__(self, *error: object) -> None:
        self._session.__exit__(*error)

    def train(self, data: Any) -> Any:
        """Take a step; returns the logs."""
        batch = program.batch_of(self._model, data)
        return self._logs(batch, self._session.train(batch, outputs=self._has_metrics))

    def test(self, data: Any) -> Any:
        """Test a batch; returns the logs."""
        batch = program.batch_of(self._model, data)
        return self._logs(batch, self._session.test(batch, outputs=self._has_metrics))

    def give_back(self) -> None:
        """Give the model its weights."""
        self._session.give_back()

    def take_changed(self) -> None:
        """Take over what was changed in the model since it was given its weights."""
        self._session.take_changed()

    def forget_steps(self) -> None:
        """Have the optimizer count the steps until the model was given its weights, and none after them."""
        self._session.forget_steps()

    def _logs(self, batch: Batch, result: Result) -> Any:
        """Has the model's metrics take in a batch; returns what they are."""
        arrays = [result.loss, *result.values, *result.outputs]
        if not self._has_metrics:
            return self._measure(_tensors(arrays), tf.constant(batch.examples), None)
        return self._measure(_tensors(arrays), tf.constant(batch.examples), (batch.x, batch.y, batch.sample_weight))

    def _taken_in(self, arrays: Sequence[Any], examples: Any, data: Any) -> Any:
        """The same, in a function that Keras's backend compiles."""
        model = self._model
        count = len(model.outputs) if data is not None else 0
        losses, outputs = arrays[: len(arrays) - count], arrays[len(arrays) - count :]
        compiled.track(model, losses[0], losses[1:], examples)
        if data is None:
            return model.get_metrics_result()
        x, y, sample_weight = data
        return model.compute_metrics(x, y, self._as_model_gives(outputs), sample_weight=sample_weight)

    def _as_model_gives(self, outputs: Sequence[Any]) -> Any:
        """The model's outputs in its structure."""
        shapes = [x.shape[1:] for x in self._model.outputs]
        outputs = [
            y if None in shape else tf.reshape(y, [-1, *shape]) for y, shape in zip(outputs, shapes, strict=True)
        ]
        return keras.tree.pack_sequence_as(compiled.structure_of(self._model), outputs)


def _tensors(arrays: Sequence[Any]) -> list[Any]:
    return [tf.constant(x) for x in arrays]
