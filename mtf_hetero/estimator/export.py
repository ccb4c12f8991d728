"""The names of tf.estimator.export, by which a model_fn tells Estimator.export_saved_model how it is served."""

import dataclasses
from collections.abc import Mapping

from mtf_hetero._compat import tf
from mtf_hetero.estimator.config import EstimatorSpec, Tensors


def _name_tensors(tensors: Tensors, name: str, default: str) -> dict[str, tf.Tensor]:
    named = dict(tensors) if isinstance(tensors, Mapping) else {default: tensors}
    for key, tensor in named.items():
        if not isinstance(key, str) or not isinstance(tensor, (tf.Tensor, tf.SparseTensor)):
            raise ValueError(f"{name}: {key!r} is {tensor!r}; it must be a tf.Tensor with a name as key")
    return named


@dataclasses.dataclass(frozen=True, eq=False)
class PredictOutput:
    """A model's outputs: {name: tensor}, or one tensor, which is then called "output"."""

    outputs: Tensors

    def __post_init__(self) -> None:
        object.__setattr__(self, "outputs", _name_tensors(self.outputs, "PredictOutput", "output"))


@dataclasses.dataclass(frozen=True, eq=False)
class ServingInputReceiver:
    """The input of a served model.

    Args:
      features: what model_fn gets: {name: tensor}, or one tensor.
      receiver_tensors: the placeholders that are fed: {name: tensor}, or one tensor, which is then called "input".
      receiver_tensors_alternatives: others that may be fed instead; accepted and unused.
    """

    features: Tensors
    receiver_tensors: Tensors
    receiver_tensors_alternatives: Mapping[str, Tensors] | None = None

    def __post_init__(self) -> None:
        object.__setattr__(
            self, "receiver_tensors", _name_tensors(self.receiver_tensors, "ServingInputReceiver", "input")
        )


def signatures(spec: EstimatorSpec, default: str) -> dict[str, dict[str, tf.Tensor]]:
    """{signature: {output: tensor}} of an EstimatorSpec: its export_outputs, or else its predictions.

    Args:
      spec: of the mode PREDICT.
      default: the name of the signature that is served where none is named.

    Raises:
      ValueError: several outputs of which none is the default one, or what is no output.
    """
    assert spec.predictions is not None
    outputs: Mapping[str, object] = spec.export_outputs or {default: PredictOutput(spec.predictions)}
    if default not in outputs:
        if len(outputs) > 1:
            raise ValueError(f"export_outputs are {', '.join(outputs)}; name the default output {default!r}")
        outputs = {**outputs, default: next(iter(outputs.values()))}
    found = {}
    for name, output in outputs.items():
        if not isinstance(output, PredictOutput):
            raise ValueError(f"export_outputs[{name!r}] is {output!r}; it must be a PredictOutput")
        found[name] = _name_tensors(output.outputs, "PredictOutput", "output")
    return found
