"""Start a new training from the weights of another one, whose network may differ in some layers."""

import dataclasses
import os

from mtf_hetero import checkpoint as saver_lib
from mtf_hetero._compat import tf
from mtf_hetero.cli.train import config_file
from mtf_hetero.cli.train.run import Draft
from mtf_hetero.data.listing import join_names
from mtf_hetero.models.registry import is_keras

_SHOWN = 4  # variables that a note names; a network has hundreds


def with_weights(draft: Draft) -> Draft:
    """Return a draft whose variables start from those of --initial_weights that have their name and shape.

    A training that is resumed has weights of its own, and the draft stays as it is.

    Raises:
      ValueError: there is no checkpoint, or none of its variables fits; or the resumed training began without these.
    """
    config = draft.config
    assert config.initial_weights is not None
    if config.model_dir is not None and saver_lib.find(config.model_dir).path:
        path = os.path.join(config.model_dir, config_file.NAME)
        if not os.path.isfile(path) or config_file.load(path).get("initial_weights") == config.initial_weights:
            return draft
        raise ValueError(
            f"--initial_weights is {config.initial_weights!r}, but --model_dir {config.model_dir!r} has a checkpoint, "
            "from which the training continues; remove the flag, or name another directory"
        )
    given = os.path.expanduser(config.initial_weights)
    flag = f"--initial_weights is {config.initial_weights!r}"
    if is_keras(config.model):
        raise ValueError(
            f"{flag}, but --model={config.model} has weights of its own; remove the flag, or name a .keras file"
        )
    path = saver_lib.find(given).path if os.path.isdir(given) else given
    if path is None or not os.path.isfile(f"{path}.index"):
        raise ValueError(f"{flag}, where there is no checkpoint; name a directory of a run, or DIRECTORY/model.ckpt-7")
    # An optimizer's variable has the name of a weight, and more: kernel/adam_m, kernel_slot_v
    weights = {
        name: shape
        for name, shape in draft.shapes.items()
        if shape and not any(name != other and name.startswith(other) for other in draft.shapes)
    }
    saved = dict(tf.train.list_variables(path))
    values = {name: tf.train.load_variable(path, name) for name, shape in weights.items() if saved.get(name) == shape}
    if not values:
        raise ValueError(f"{flag}, which has no variable of --model={config.model} in the same shape; name another one")
    others = [name for name in weights if name not in values]
    rest = f"; initialized: {join_names(others, _SHOWN)}" if others else ""
    note = f"{len(values)} of {len(weights)} variables start from {path}{rest}"
    model = dataclasses.replace(draft.model, initial=lambda: values)
    return dataclasses.replace(draft, model=model, notes=(*draft.notes, note))
