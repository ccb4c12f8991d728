"""Models whose steps Keras would run in another way than as functions of the model, refused by name."""

import inspect

from mtf_hetero._compat import tf
from mtf_hetero.keras._keras import keras


def check_runs(model: keras.Model, *kinds: str) -> None:
    """Raise an error unless Keras would run some steps of a model as a traced function of one device.

    Args:
      model: the keras.Model.
      *kinds: "train", "test", "predict".

    Raises:
      ValueError: it is no keras.Model, or is not compiled.
      NotImplementedError: it runs eagerly, makes its functions itself, or was made for a tf.distribute strategy.
    """
    if not isinstance(model, keras.Model):
        if any(base.__module__.startswith("tf_keras.") for base in type(model).__mro__):
            raise ValueError(
                f"model is a {type(model).__name__} of Keras 2; make it with Keras 3, or give its train_step to "
                "mtf_hetero.function"
            )
        raise ValueError(f"model is a {type(model).__name__}; give a keras.Model that is compiled")
    if not model.compiled and kinds != ("predict",):
        raise ValueError(f"model {model.name!r} is not compiled; call model.compile(optimizer, loss) first")
    if model.run_eagerly or tf.config.functions_run_eagerly():
        where = "model.compile(run_eagerly=True)" if model.run_eagerly else "tf.config.run_functions_eagerly(True)"
        raise NotImplementedError(
            f"model {model.name!r} runs eagerly by {where}, so that its Python code runs in every step; a divided step "
            "is traced once: leave that out, or use Keras alone"
        )
    for kind in kinds:
        _check_function(model, f"make_{kind}_function")
    _check_loop(model, {"train": "fit", "test": "evaluate"}.get(kinds[0], kinds[0]))
    check_strategy(model)


def has_own(instance: object, kind: type, name: str) -> bool:
    """Return whether an object has a method of its own, on its class or itself, in place of one of Keras's class."""
    method = getattr(instance, name)
    return getattr(method, "__func__", method) is not getattr(kind, name)


def _check_loop(model: keras.Model, name: str) -> None:
    """Raise NotImplementedError if a model has its own fit, evaluate or predict, with other arguments than Keras's."""
    data = ["x"] if name == "predict" else ["x", "y"]
    try:
        inspect.signature(getattr(model, name)).bind(*data)
    except TypeError:
        raise NotImplementedError(
            f"model {model.name!r} has its own {name} (of its class {type(model).__name__}), which does not take "
            f"{' and '.join(data)}; make it of a subclass with {name} = keras.Model.{name}"
        ) from None


def _check_function(model: keras.Model, name: str) -> None:
    """Raise NotImplementedError if a model makes a function of its steps itself: on its class, or the instance."""
    if has_own(model, keras.Model, name):
        where = "set on the instance" if name in vars(model) else f"of its class {type(model).__name__}"
        raise NotImplementedError(
            f"model {model.name!r} has its own {name} ({where}), which is not divided; override train_step, test_step "
            "or predict_step instead"
        )


def check_strategy(model: keras.Model) -> None:
    """Raise NotImplementedError if a tf.distribute strategy copies the weights of a model."""
    is_copied = any(isinstance(v.value, tf.compat.v2.distribute.DistributedValues) for v in model.variables)
    distribute = tf.compat.v2.distribute
    if is_copied or distribute.has_strategy() or model.distribute_strategy is not distribute.get_strategy():
        raise NotImplementedError(
            f"model {model.name!r} is in the scope of a tf.distribute strategy, which copies its weights; make and use "
            "it outside of the scope: mtf_hetero distributes it"
        )
