"""Find a model by the name in `--model`: of MODELS, a Keras model's file, or a constructor of keras.applications."""

from collections.abc import Mapping

from mtf_hetero.models.registry import MODELS, PREFIX, SUFFIX, Model, is_keras


def find(name: str, models: Mapping[str, Model] = MODELS, *, kept: str | None = None, seed: int | None = 1) -> Model:
    """Return the model of a name. For a Keras model, `fitted` makes the network.

    Args:
      name: the value of --model.
      models: the models with names.
      kept: path of a copy of the Keras model, which is read instead.
      seed: for the initial values of a model of keras.applications; None: it has none.

    Raises:
      ValueError: no model has this name, or the file has no model.
      NotImplementedError: the project cannot build the model.
    """
    if name in models:
        return models[name]
    if not is_keras(name):
        raise ValueError(
            f"--model is {name!r}; it must be one of {', '.join(models)}, a Keras model's file, such as my{SUFFIX}, or "
            f"one of keras.applications, such as {PREFIX}ResNet50"
        )
    try:
        from mtf_hetero.models import keras_models  # imports Keras
    except ImportError as error:
        raise ValueError(f"--model is {name!r}, but {error}") from error
    return keras_models.find(name, kept=kept, seed=seed)
