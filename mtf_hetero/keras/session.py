"""The session that trains a Keras model: steps of batches, and the weights of the model in and out."""

import dataclasses
import random
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from mtf_hetero import traffic
from mtf_hetero._compat import tf
from mtf_hetero.importer import session as session_lib
from mtf_hetero.keras import compiled, program
from mtf_hetero.keras.program import Batch, Program
from mtf_hetero.keras.registered import Builder
from mtf_hetero.keras.weights import Weight
from mtf_hetero.keras.wrong_data import explain_wrong_data
from mtf_hetero.placement import Placement

LOSS = "training; the model has the weights of the last complete epoch"


@dataclasses.dataclass(frozen=True)
class Result:
    """What came of a batch.

    Args:
      loss: of the batch.
      values: each loss by itself.
      outputs: the model's, where they were asked for.
    """

    loss: np.ndarray
    values: tuple[np.ndarray, ...]
    outputs: tuple[np.ndarray, ...]


@dataclasses.dataclass(frozen=True, eq=False)
class _Lowered:
    """A program that was lowered, and what is fetched of it."""

    program: Program
    fetches: tuple[Any, ...]


class Session:
    """Trains a compiled Keras model on devices. A context manager.

    Args:
      builder: of the model.
      placement: where it lies.
      batch: the first one; its training step is built and lowered.
    """

    def __init__(self, builder: Builder, placement: Placement, batch: Batch) -> None:
        self._builder, self._batch = builder, batch
        self._session = session_lib.Session(placement, f"model {builder.model.name!r}", LOSS)
        self._known: dict[str, np.ndarray] = {}
        self._first_step = self._steps_given = 0
        self._begin_graph()

    def _begin_graph(self) -> None:
        """Makes a graph, with the training step of the first batch in it."""
        self._lowered: dict[Any, _Lowered] = {}
        self._kept: dict[str, Weight] = {}
        self._session.begin_graph(_seed(self._iterations()))
        with self._session.graph.as_default(), tf.device("/cpu:0"):
            steps = tf.get_variable("steps", [], tf.int64, tf.zeros_initializer(), use_resource=True)
            self._counter, self._steps = steps, steps.read_value()
        self._lower(self._batch, training=True)
        self._session.end_graph()
        self._weights = {**self._builder.variables, **self._kept}

    def __enter__(self) -> "Session":
        values = {name: weight.to_mtf(np.asarray(weight.variable)) for name, weight in self._weights.items()}
        self._steps_given = self._iterations()
        self._begin_session(values)
        self._known = values
        return self

    def _begin_session(self, values: Mapping[str, np.ndarray]) -> None:
        """Opens a session of the graph, in which variables have these values."""
        self._first_step = self._iterations()
        self._session.open(values, self._counter.initializer)

    def __exit__(self, *_: object) -> None:
        self._session.close()

    def _iterations(self) -> int:
        return int(self._builder.model.optimizer._iterations.numpy())

    def _make_room(self) -> None:
        """Begins a new session where the graph has grown too large."""
        if not self._session.is_full(len(self._lowered)):
            return
        values = self._read()
        self._session.close()
        self._begin_graph()
        self._begin_session(values)

    def train(self, batch: Batch, *, outputs: bool) -> Result:
        """Takes a step.

        Args:
          batch: the examples.
          outputs: whether the model's outputs are wanted.
        """
        self._known = {}
        optimizer = self._builder.model.optimizer
        feed = [np.asarray(optimizer.learning_rate), np.asarray(optimizer._iterations)]
        result = self._of_batch(batch, feed, training=True, outputs=outputs)
        optimizer._iterations.assign_add(1)
        return result

    def test(self, batch: Batch, *, outputs: bool) -> Result:
        """What the model gives for a batch, in inference, and its losses."""
        return self._of_batch(batch, [], training=False, outputs=outputs)

    def _of_batch(self, batch: Batch, scalars: Sequence[np.ndarray], *, training: bool, outputs: bool) -> Result:
        lowered = self._lowered.get((training, batch.kind))
        if lowered is None:
            self._make_room()
            lowered = self._lower(batch, training=training)
        built = lowered.program
        feed = dict(zip(built.feeds, batch.arrays, strict=True))
        feed.update(zip([built.rate, built.steps], scalars, strict=False))
        loss, values, tensors, *_ = lowered.fetches
        fetches = (loss, values, tensors if outputs else (), *lowered.fetches[3:])
        with explain_wrong_data(built.graph):
            found = self._session.run(fetches, feed)
        return Result(found[0], tuple(found[1]), tuple(found[2]))

    def give_back(self) -> None:
        """Gives the Keras model and its optimizer the values that their variables have here."""
        values = self._read()
        for name, value in values.items():
            self._weights[name].put_back(value)
        steps = int(self._session.run(self._steps))
        self._steps_given = self._first_step + steps
        self.forget_steps()
        self._known = values

    def forget_steps(self) -> None:
        """Has the optimizer count the steps until the model was given its values back, and none after them."""
        self._builder.model.optimizer._iterations.assign(self._steps_given)

    def take_changed(self) -> None:
        """Takes over what was changed in the Keras model since it was given its values back."""
        if not self._known:  # a step was taken since
            return
        changed = {}
        for name, known in self._known.items():
            weight = self._weights[name]
            value = weight.to_mtf(np.asarray(weight.variable))
            if not np.array_equal(value, known):
                changed[name] = value
        if changed:
            self._session.put(changed)
            self._known |= changed
        iterations = self._iterations()
        self._first_step += iterations - self._steps_given
        self._steps_given = iterations

    def _lower(self, batch: Batch, *, training: bool) -> _Lowered:
        """A program of such a batch, lowered beside those that there are, on the same variables."""
        objective = compiled.objective(self._builder.model, batch.y, batch.sample_weight)
        with self._session.graph.as_default():
            built = program.build(self._builder, batch, objective, training=training)
            self._lowered[training, batch.kind] = lowered = self._lower_program(built, batch, training=training)
        return lowered

    def _lower_program(self, built: Program, batch: Batch, *, training: bool) -> _Lowered:
        first = not self._lowered
        lowering = self._session.lower(built.graph, built.mesh, is_first=first, examples=batch.examples)
        export = lowering.export_to_tf_tensor
        fetches: list[Any] = [export(built.loss), [export(value) for value in built.values]]
        fetches.append([export(output) for output in built.outputs])
        if training:
            with tf.control_dependencies([lowering.lowered_operation(op) for op in built.updates]):
                fetches.append(self._counter.assign_add(1).op)
        if first:
            traffic.arrange([fetches[0], *fetches[3:]])
            self._kept = built.kept
        return _Lowered(built, tuple(fetches))

    def _read(self) -> dict[str, np.ndarray]:
        """The values of all variables."""
        return self._session.read(list(self._weights))


def _seed(iterations: int) -> int:
    """Draw a seed that follows from keras.utils.set_random_seed and the steps so far, and leave Python's numbers alone.

    A generator of batches that shuffles by `random` gives the same batches as under model.fit.
    """
    state = random.getstate()
    seed = random.getrandbits(64)
    random.setstate(state)
    return random.Random(f"{seed} {iterations}").getrandbits(31)
