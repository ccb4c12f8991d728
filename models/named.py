"""What `--model` may name: a network of MODELS, a Keras model's file, or a constructor of keras.applications."""

from collections.abc import Mapping

from mtf_hetero.models.registry import MODELS, PREFIX, SUFFIX, Model, is_keras


def find(name: str, models: Mapping[str, Model] = MODELS, *, kept: str | None = None, seed: int = 1) -> Model:
    """The model of a name; of a Keras model, `fitted` makes the network.

    Args:
      name: what --model says.
      models: those that are known by name.
      kept: path of a copy of the Keras model, which is taken in its place.
      seed: of the initial values of a model of keras.applications.

    Raises:
      ValueError: there is none of this name, or the file is none of a model.
      NotImplementedError: a model that the project cannot build.
    """
    if name in models:
        return models[name]
    if not is_keras(name):
        raise ValueError(
            f"--model is {name!r}; it must be one of {', '.join(models)}, a Keras model's file, such as my{SUFFIX}, or "
            f"one of keras.applications, such as {PREFIX}ResNet50"
        )
    try:
        from mtf_hetero.models import keras_models  # which imports Keras
    except ImportError as error:
        raise ValueError(f"--model is {name!r}, but {error}") from error
    return keras_models.find(name, kept=kept, seed=seed)
