"""tf.estimator.tpu's interface, for programs that are written for TPUs and also run on CPUs and GPUs.

With use_tpu=False, TPUEstimator is an Estimator that passes the batch size on, as TensorFlow's own was. What only a TPU
can do raises NotImplementedError, in one line, when it is used.
"""

import copy
import dataclasses
import os
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from mtf_hetero._compat import tf
from mtf_hetero.estimator import config as config_lib
from mtf_hetero.estimator.config import EstimatorSpec, Hooks, ModeKeys, Tensors
from mtf_hetero.estimator.estimator import Estimator
from mtf_hetero.estimator.inputs import argument_names

HostCall = tuple[Callable[..., Any], Mapping[str, Any] | Sequence[Any]]  # a function, and its arguments
_OFFERED = ("features", "labels", "mode", "params", "config")


class InputPipelineConfig:
    """The input pipelines of a TPU's hosts; without effect on CPUs and GPUs."""

    PER_SHARD_V1 = 1
    PER_HOST_V1 = 2
    PER_HOST_V2 = 3
    BROADCAST = 4
    SLICED = 5


class TPUConfig:
    """Settings of TPUs, of which CPUs and GPUs have the first one.

    Args:
      iterations_per_loop: steps of training in one call of the session; None: those of the RunConfig.
      num_shards: number of model replicas.
      **settings: any others that TensorFlow's own has.
    """

    def __init__(
        self, iterations_per_loop: int | None = None, num_shards: int | None = None, **settings: object
    ) -> None:
        self.iterations_per_loop = iterations_per_loop
        self.num_shards = num_shards
        vars(self).update(settings)


@dataclasses.dataclass(frozen=True)
class RunConfig(config_lib.RunConfig):
    """mtf_hetero.RunConfig, and what a TPU would need.

    Args:
      tpu_config: a TPUConfig.
      evaluation_master: unused.
      cluster: a cluster resolver of TPUs; None on CPUs and GPUs.
    """

    tpu_config: TPUConfig | None = None
    evaluation_master: str | None = None
    cluster: object = None

    def __post_init__(self) -> None:
        tpu_config = copy.copy(self.tpu_config) or TPUConfig()
        steps = tpu_config.iterations_per_loop
        if steps is None:
            tpu_config.iterations_per_loop = self.iterations_per_loop
        elif self.iterations_per_loop not in (1, steps):
            raise ValueError(
                f"iterations_per_loop is {self.iterations_per_loop}, but that of tpu_config is {steps}; "
                "give one of the two"
            )
        else:
            object.__setattr__(self, "iterations_per_loop", steps)
        object.__setattr__(self, "tpu_config", tpu_config)
        super().__post_init__()
        if self.cluster is not None:
            raise _only_on_tpus(f"cluster={self.cluster!r}", "remove it, and give master or workers")


def _only_on_tpus(what: str, remedy: str) -> NotImplementedError:
    return NotImplementedError(f"{what} needs a TPU; mtf_hetero does not run on TPUs; {remedy}")


def _call(host_call: HostCall) -> Any:
    """Call (function, tensors), the tensors being a list or a dict of arguments."""
    function, tensors = host_call
    return function(**tensors) if isinstance(tensors, Mapping) else function(*tensors)


@dataclasses.dataclass(frozen=True, eq=False)
class TPUEstimatorSpec:
    """The result of a TPUEstimator's model_fn, in place of an EstimatorSpec.

    Args:
      mode: one of ModeKeys.
      predictions: as of EstimatorSpec.
      loss: as of EstimatorSpec.
      train_op: as of EstimatorSpec.
      eval_metrics: (function, tensors) that gives {name: (value, update operation)}.
      export_outputs: accepted and unused.
      scaffold_fn: function that gives a tf.train.Scaffold.
      host_call: (function, tensors) that gives operations which run with every step.
      training_hooks: as of EstimatorSpec.
      evaluation_hooks: as of EstimatorSpec.
      prediction_hooks: as of EstimatorSpec.
    """

    mode: str
    predictions: Tensors | None = None
    loss: tf.Tensor | None = None
    train_op: tf.Operation | tf.Tensor | None = None
    eval_metrics: HostCall | None = None
    export_outputs: Mapping[str, object] | None = None
    scaffold_fn: Callable[[], tf.train.Scaffold] | None = None
    host_call: HostCall | None = None
    training_hooks: Hooks = ()
    evaluation_hooks: Hooks = ()
    prediction_hooks: Hooks = ()

    def as_estimator_spec(self) -> EstimatorSpec:
        """Do the same on a CPU or GPU."""
        train_op = self.train_op
        if self.host_call is not None and self.mode == ModeKeys.TRAIN:
            train_op = tf.group(train_op, _call(self.host_call))
        return EstimatorSpec(
            self.mode,
            predictions=self.predictions,
            loss=self.loss,
            train_op=train_op,
            eval_metric_ops=None if self.eval_metrics is None else _call(self.eval_metrics),
            export_outputs=self.export_outputs,
            training_hooks=self.training_hooks,
            scaffold=None if self.scaffold_fn is None else self.scaffold_fn(),
            evaluation_hooks=self.evaluation_hooks,
            prediction_hooks=self.prediction_hooks,
        )


class TPUEstimator(Estimator):
    """An Estimator whose input_fn and model_fn find the batch size in params["batch_size"].

    Args:
      model_fn: as of Estimator; it may return a TPUEstimatorSpec.
      model_dir: as of Estimator.
      config: a RunConfig of this module, or mtf_hetero's.
      params: as of Estimator, without "batch_size".
      use_tpu: must be False.
      train_batch_size: examples of a training step.
      eval_batch_size: of an evaluation step.
      predict_batch_size: of a prediction step.
      **settings: any others that TensorFlow's own has, all about TPUs and exports; without effect.

    Raises:
      NotImplementedError: use_tpu.
      ValueError: an argument that does not fit.
    """

    def __init__(
        self,
        model_fn: Callable[..., "EstimatorSpec | TPUEstimatorSpec"],
        model_dir: str | os.PathLike | None = None,
        config: config_lib.RunConfig | None = None,
        params: Mapping[str, Any] | None = None,
        use_tpu: bool = True,
        train_batch_size: int | None = None,
        eval_batch_size: int | None = None,
        predict_batch_size: int | None = None,
        **settings: object,
    ) -> None:
        if use_tpu:
            raise _only_on_tpus("TPUEstimator: use_tpu=True", "give use_tpu=False")
        if params and "batch_size" in params:
            raise ValueError(
                f"params has batch_size {params['batch_size']!r}, which TPUEstimator sets itself; give "
                "train_batch_size, eval_batch_size and predict_batch_size"
            )
        self._batch_sizes = {
            ModeKeys.TRAIN: train_batch_size,
            ModeKeys.EVAL: eval_batch_size,
            ModeKeys.PREDICT: predict_batch_size,
        }
        for mode, size in self._batch_sizes.items():
            config_lib.check_number(size, f"TPUEstimator: batch size of mode {mode!r}")
        names = argument_names(model_fn, "model_fn", offered=_OFFERED)

        def as_an_estimators(
            features: object, labels: object, mode: str, params: object, config: object
        ) -> EstimatorSpec:
            offered = {"features": features, "labels": labels, "mode": mode, "params": params, "config": config}
            spec = model_fn(**{name: offered[name] for name in names})
            return spec.as_estimator_spec() if isinstance(spec, TPUEstimatorSpec) else spec

        super().__init__(as_an_estimators, model_dir, config, params)

    def _mode_params(self, mode: str) -> dict[str, Any]:
        size = self._batch_sizes[mode]
        return {**super()._mode_params(mode), **({} if size is None else {"batch_size": size})}
