"""What tf.estimator.export has: how a model_fn says how it is served, which Estimator.export_saved_model reads."""

import dataclasses
from typing import Any

from mtf_hetero._compat import tf


def _named(tensors: Any, name: str, default: str) -> dict[str, Any]:
    tensors = tensors if isinstance(tensors, dict) else {default: tensors}
    for key, tensor in tensors.items():
        if not isinstance(key, str) or not isinstance(tensor, (tf.Tensor, tf.SparseTensor)):
            raise ValueError(f"{name}: {key!r} is {tensor!r}; it must be a tf.Tensor with a name as key")
    return tensors


@dataclasses.dataclass(frozen=True, eq=False)
class PredictOutput:
    """A model's outputs: {name: tensor}, or one tensor, which is then called "output"."""

    outputs: Any

    def __post_init__(self) -> None:
        object.__setattr__(self, "outputs", _named(self.outputs, "PredictOutput", "output"))


@dataclasses.dataclass(frozen=True, eq=False)
class ServingInputReceiver:
    """What a served model is fed.

    Args:
      features: what model_fn gets: {name: tensor}, or one tensor.
      receiver_tensors: the placeholders that are fed: {name: tensor}, or one tensor, which is then called "input".
      receiver_tensors_alternatives: others that may be fed instead; accepted and unused.
    """

    features: Any
    receiver_tensors: Any
    receiver_tensors_alternatives: Any = None

    def __post_init__(self) -> None:
        object.__setattr__(self, "receiver_tensors", _named(self.receiver_tensors, "ServingInputReceiver", "input"))


def signatures(spec: Any, default: str) -> dict[str, dict[str, Any]]:
    """{signature: {output: tensor}} of an EstimatorSpec: its export_outputs, or else its predictions.

    Args:
      spec: of the mode PREDICT.
      default: the name of the signature that is served where none is named.

    Raises:
      ValueError: several outputs of which none is the default one, or what is no output.
    """
    outputs = spec.export_outputs or {default: PredictOutput(spec.predictions)}
    if default not in outputs:
        if len(outputs) > 1:
            raise ValueError(f"export_outputs are {', '.join(outputs)}; name the default output {default!r}")
        outputs = {**outputs, default: next(iter(outputs.values()))}
    for name, output in outputs.items():
        if not isinstance(output, PredictOutput):
            raise ValueError(f"export_outputs[{name!r}] is {output!r}; it must be a PredictOutput")
    return {name: output.outputs for name, output in outputs.items()}
