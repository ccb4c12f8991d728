"""Variables whose values lie elsewhere until somebody looks at them, or changes them."""

from collections.abc import Callable, Iterable, Mapping

from mtf_hetero._compat import handle_watch, tf


class Watch:
    """Calls a function as soon as somebody reads or writes one of some variables, once.

    TensorFlow reads and writes a tf.Variable by its handle, which it asks the variable for; a function that was traced
    before has the handle. Both are seen: `numpy()`, `assign`, a layer that is called, `model.predict`, `model.save`.

    Args:
      look: called before the value is read or written.

    Example:
      >>> watch = Watch(lambda: bring_values(variables))
      >>> watch.begin(variables)
      >>> callback.on_train_batch_end(batch, logs)  # the values are brought if it looks at them
      >>> watch.end()
    """

    def __init__(self, look: Callable[[], object]) -> None:
        self._look = look
        self._watched: Mapping[int, object] = {}

    def begin(self, variables: Iterable[tf.Variable]) -> None:
        """Watch variables from now on."""
        self.end()
        self._watched = {id(part): part for variable in variables for part in (variable, variable.handle)}
        _looks.update(dict.fromkeys(self._watched, self._see))
        handle_watch(_notify if _looks else None)

    def end(self) -> None:
        """Watch nothing more."""
        if not self._watched:
            return
        for key in self._watched:
            _looks.pop(key, None)
        self._watched = {}
        handle_watch(_notify if _looks else None)

    def _see(self) -> None:
        self.end()
        with tf.init_scope():  # somebody may look while a function is traced
            self._look()


_looks: dict[int, Callable[[], None]] = {}  # of variables and their handles that are watched, by their id


def _notify(key: int) -> None:
    if (see := _looks.get(key)) is not None:
        see()
