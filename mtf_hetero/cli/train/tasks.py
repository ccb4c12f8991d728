"""Tasks of a network: the prediction for each example, the loss, and the report of a test.

A task works on mtf.Tensors, so that split outputs stay split: only a few sums of each batch leave the mesh in a test.
An example that only fills a batch has the weight 0.
"""

import abc
import dataclasses
import functools
import math
from collections.abc import Mapping, Sequence
from typing import Self

from mtf_hetero import data
from mtf_hetero._compat import mtf, tf

EXAMPLES, LOSS = "examples", "loss"  # sums of each task
CLASS_EXAMPLES, CLASS_RIGHT, CONFUSION, NOT_FINITE = COUNTS = (  # the sums of a detailed test
    "class_examples",
    "class_right",
    "confusion",
    "not_finite",
)
MOST_CONFUSED = 2_000  # classes with a count of each pair: four million numbers


class Task(abc.ABC):
    """The prediction that a network is trained for."""

    label_dtype = tf.int32

    @classmethod
    @abc.abstractmethod
    def of(cls, dataset: data.Dataset | data.Volumes) -> Self:
        """Return the task of a data set.

        Raises:
          ValueError: the data set has no task of this kind.
        """

    @classmethod
    @abc.abstractmethod
    def of_count(cls, count: int) -> Self:
        """Return the task for so many classes or targets, without data."""

    @property
    @abc.abstractmethod
    def config(self) -> dict[str, int]:
        """Return the part of a network's configuration that depends on the data set."""

    @abc.abstractmethod
    def label_names(self, spatial: Sequence[str]) -> tuple[str, ...]:
        """Return the names of the dimensions of an example's label.

        Args:
          spatial: names of an image's or volume's dimensions, without channels.
        """

    @abc.abstractmethod
    def losses(self, outputs: mtf.Tensor, labels: mtf.Tensor) -> mtf.Tensor:
        """Return the loss of each label, or of each of its numbers.

        Args:
          outputs: mtf.Tensor of the network.
          labels: mtf.Tensor [*batch, *label_names].
        """

    @abc.abstractmethod
    def sums(self, outputs: mtf.Tensor, labels: mtf.Tensor, weights: mtf.Tensor) -> dict[str, mtf.Tensor]:
        """Return sums over a batch, mtf.Tensors of few numbers, from which `metrics` are computed.

        EXAMPLES is the sum of the weights, and LOSS the sum of the examples' losses.

        Args:
          outputs: mtf.Tensor of the network.
          labels: mtf.Tensor [*batch, *label_names].
          weights: mtf.Tensor [*batch], 1 or 0.
        """

    def training_accuracy(self, outputs: mtf.Tensor, labels: mtf.Tensor) -> mtf.Tensor | None:
        """Return the share of right predictions in a training batch; None if it is unknown or expensive."""
        return None

    @abc.abstractmethod
    def metrics(self, sums: Mapping[str, tf.Tensor]) -> dict[str, tf.Tensor]:
        """Return scalar metrics from the sums over all batches, tf.Tensors."""

    @abc.abstractmethod
    def predictions(self, outputs: tf.Tensor) -> dict[str, tf.Tensor]:
        """Return the network's predictions for each example.

        Args:
          outputs: tf.Tensor [examples, ...].
        """

    @abc.abstractmethod
    def report(self, metrics: Mapping[str, float], tested: str) -> str:
        """Return lines for the user on the `metrics` of so many tested examples, "100 volumes"."""

    def describe(self) -> str:
        """Return the prediction's name for the line about the data, or ""."""
        return ""


def _total(x: mtf.Tensor, kept: Sequence[mtf.Dimension] = ()) -> mtf.Tensor:
    """Return the sum over all dimensions except some, one after another, so that no float32 exceeds its digits."""
    for dim in reversed(x.shape.dims):
        if dim not in kept:
            x = mtf.reduce_sum(x, reduced_dim=dim)
    return x


def _is_finite(outputs: mtf.Tensor) -> mtf.Tensor:
    """Return 1 for each label all of whose outputs are finite, 0 for each other."""
    each = mtf.cast(mtf.less_equal(mtf.abs(outputs), outputs.dtype.max), outputs.dtype)  # false for NaN
    return mtf.reduce_min(each, reduced_dim=outputs.shape.dims[-1])


def _right(outputs: mtf.Tensor, labels: mtf.Tensor) -> mtf.Tensor:
    """Return 1 for each label whose class has the largest output, 0 for each other."""
    found = mtf.equal(mtf.argmax(outputs, outputs.shape.dims[-1]), labels)
    return mtf.cast(found, outputs.dtype) * _is_finite(outputs)


@dataclasses.dataclass(frozen=True)
class Classes(Task):
    """Predict a class for each label, with the mean softmax cross entropy as the loss.

    The predicted class has the largest output, the first of equal ones. A label with an output that is not finite is
    wrong in every figure.

    Args:
      classes: number of classes.
      top: a test also counts labels among so many largest outputs; 0: it does not.
      detailed: whether a test also counts the labels of each class. Up to MOST_CONFUSED classes, it counts each pair of
        a label and a predicted class too.
    """

    classes: int
    top: int = 0
    detailed: bool = False

    @classmethod
    def of_count(cls, count: int) -> Self:
        return cls(count)

    @property
    def config(self) -> dict[str, int]:
        return {"classes": self.classes}

    def losses(self, outputs: mtf.Tensor, labels: mtf.Tensor) -> mtf.Tensor:
        classes = outputs.shape.dims[-1]
        targets = mtf.one_hot(labels, classes, dtype=outputs.dtype)
        return mtf.layers.softmax_cross_entropy_with_logits(outputs, targets, classes)

    def sums(self, outputs: mtf.Tensor, labels: mtf.Tensor, weights: mtf.Tensor) -> dict[str, mtf.Tensor]:
        sums = {
            EXAMPLES: _total(weights),
            LOSS: _total(self.losses(outputs, labels) * weights) * (weights.shape.size / labels.shape.size),
            "labels": _total(weights) * (labels.shape.size / weights.shape.size),
            "right": _total(_right(outputs, labels) * weights),
        }
        if self.top:
            _, largest = mtf.top_k(outputs, outputs.shape.dims[-1], mtf.Dimension("largest", self.top))
            among = mtf.cast(mtf.equal(largest, labels), outputs.dtype)
            sums["right_in_top"] = _total(among * _is_finite(outputs) * weights)
        return sums | (self._counts(outputs, labels, weights) if self.detailed else {})

    def _counts(self, outputs: mtf.Tensor, labels: mtf.Tensor, weights: mtf.Tensor) -> dict[str, mtf.Tensor]:
        """Return counts of each class, in float64 because they may exceed the digits of float32."""
        classes, predicted = outputs.shape.dims[-1], mtf.Dimension("predicted", self.classes)
        kept = [dim for dim in labels.shape.dims if dim not in weights.shape.dims][:1]  # the sum of a plane is exact

        def count(parts: Sequence[mtf.Tensor], *dims: mtf.Dimension) -> mtf.Tensor:
            return _total(mtf.cast(mtf.einsum(parts, [*kept, *dims]), tf.float64), dims)

        true, finite = mtf.one_hot(labels, classes) * mtf.cast(weights, tf.float32), _is_finite(outputs)
        found = mtf.argmax(outputs, classes)
        counts = {
            CLASS_EXAMPLES: count([true], classes),
            CLASS_RIGHT: count([true, mtf.one_hot(found, classes) * finite], classes),
            NOT_FINITE: count([true, 1 - finite]),
        }
        if self.classes <= MOST_CONFUSED:
            counts[CONFUSION] = count([true, mtf.one_hot(found, predicted) * finite], classes, predicted)
        return counts

    def metrics(self, sums: Mapping[str, tf.Tensor]) -> dict[str, tf.Tensor]:
        """Return the accuracy and the other requested metrics. The counts of classes are vectors and a matrix."""
        metrics = {"accuracy": sums["right"] / sums["labels"]}
        if self.top:
            metrics[f"top_{self.top}_accuracy"] = sums["right_in_top"] / sums["labels"]
        return metrics | {name: sums[name] for name in COUNTS if name in sums}

    def predictions(self, outputs: tf.Tensor) -> dict[str, tf.Tensor]:
        return {
            "class": tf.argmax(outputs, axis=-1),
            "logits": tf.identity(outputs),
            "probabilities": tf.nn.softmax(outputs),
        }


class Classification(Classes):
    """Predict a class for each image."""

    @classmethod
    def of(cls, dataset: data.Dataset) -> Self:
        return cls(dataset.classes)

    def label_names(self, spatial: Sequence[str]) -> tuple[str, ...]:
        return ()

    def training_accuracy(self, outputs: mtf.Tensor, labels: mtf.Tensor) -> mtf.Tensor | None:
        predicted = mtf.argmax(outputs, outputs.shape.dims[-1])
        return mtf.reduce_mean(mtf.cast(mtf.equal(predicted, labels), outputs.dtype))

    def report(self, metrics: Mapping[str, float], tested: str) -> str:
        return f"test accuracy: {metrics['accuracy']:.4f} of {tested}"


class Segmentation(Classes):
    """Predict a class for each voxel. Class 0 is the background."""

    @classmethod
    def of(cls, dataset: data.Volumes) -> Self:
        if not dataset.classes:
            raise ValueError(
                f"{dataset.directory} has targets, {', '.join(dataset.targets)}, and no labels of voxels to segment; "
                "give a set with labels, or a model for regression, such as cosmoflow"
            )
        return cls(dataset.classes)

    def label_names(self, spatial: Sequence[str]) -> tuple[str, ...]:
        return tuple(spatial)

    def sums(self, outputs: mtf.Tensor, labels: mtf.Tensor, weights: mtf.Tensor) -> dict[str, mtf.Tensor]:
        classes = outputs.shape.dims[-1]
        predicted = mtf.one_hot(mtf.argmax(outputs, classes), classes, dtype=outputs.dtype) * _is_finite(outputs)
        true = mtf.one_hot(labels, classes, dtype=outputs.dtype) * weights
        count = functools.partial(_total, kept=[classes])
        counts = {"both": count(predicted * true), "found": count(predicted * weights), "true": count(true)}
        return {**super().sums(outputs, labels, weights), **counts}

    def metrics(self, sums: Mapping[str, tf.Tensor]) -> dict[str, tf.Tensor]:
        """Return accuracy, each class's Dice (twice the intersection by the sum of both), and its mean without class 0.

        A class that is neither predicted nor labelled has Dice NaN, which the mean leaves out.
        """
        either = sums["found"] + sums["true"]
        dice = tf.math.divide_no_nan(2.0 * sums["both"], either)
        there = tf.cast(either > 0, dice.dtype)
        metrics = super().metrics(sums)
        metrics["dice"] = tf.reduce_sum((dice * there)[1:]) / tf.reduce_sum(there[1:])
        each = tf.where_v2(either > 0, dice, math.nan)
        return metrics | {f"dice/{number}": each[number] for number in range(self.classes)}

    def describe(self) -> str:
        return f"{self.classes} classes of voxels"

    def report(self, metrics: Mapping[str, float], tested: str) -> str:
        each = ", ".join(f"{number}: {metrics[f'dice/{number}']:.4f}" for number in range(self.classes))
        return (
            f"test accuracy: {metrics['accuracy']:.4f} of the voxels of {tested}\n"
            f"test Dice: {metrics['dice']:.4f}, the mean of all classes but 0; of each class, {each}"
        )


@dataclasses.dataclass(frozen=True)
class Regression(Task):
    """Predict numbers for each example, with the mean squared error of normalised numbers as the loss.

    Args:
      targets: names of the numbers.
      mean: of each target, in its own unit.
      deviation: the standard deviation of each target.
    """

    label_dtype = tf.float32
    targets: tuple[str, ...]
    mean: tuple[float, ...]
    deviation: tuple[float, ...]

    @classmethod
    def of(cls, dataset: data.Volumes) -> Self:
        if not dataset.targets:
            raise ValueError(
                f"{dataset.directory} has labels of voxels and no targets to predict; give a set with targets, or a "
                "model for segmentation, such as unet3d"
            )
        return cls(dataset.targets, dataset.manifest.target_mean, dataset.manifest.target_deviation)

    @classmethod
    def of_count(cls, count: int) -> Self:
        return cls(tuple(f"target_{number}" for number in range(count)), (0.0,) * count, (1.0,) * count)

    @property
    def config(self) -> dict[str, int]:
        return {"outputs": len(self.targets)}

    def label_names(self, spatial: Sequence[str]) -> tuple[str, ...]:
        return ("targets",)

    def losses(self, outputs: mtf.Tensor, labels: mtf.Tensor) -> mtf.Tensor:
        return mtf.square(outputs - mtf.reshape(labels, outputs.shape))

    def sums(self, outputs: mtf.Tensor, labels: mtf.Tensor, weights: mtf.Tensor) -> dict[str, mtf.Tensor]:
        each = outputs.shape.dims[-1]
        labels, losses = mtf.reshape(labels, outputs.shape), self.losses(outputs, labels) * weights
        values = {
            "squared_error": losses,
            "absolute_error": mtf.abs(outputs - labels) * weights,
            "label": labels * weights,
            "squared_label": mtf.square(labels) * weights,
        }
        sums = {name: _total(value, kept=[each]) for name, value in values.items()}
        return {EXAMPLES: _total(weights), LOSS: _total(losses) * (1.0 / each.size), **sums}

    def metrics(self, sums: Mapping[str, tf.Tensor]) -> dict[str, tf.Tensor]:
        """Return each target's mean absolute error in its own unit, and R2, 1 minus the unexplained variance."""
        count = sums[EXAMPLES]
        error = sums["absolute_error"] / count * self.deviation
        variance = sums["squared_label"] - tf.square(sums["label"]) / count
        r2 = tf.where_v2(count > 1, 1.0 - sums["squared_error"] / variance, math.nan)
        metrics = {f"mean_absolute_error/{name}": error[i] for i, name in enumerate(self.targets)}
        return metrics | {f"r2/{name}": r2[i] for i, name in enumerate(self.targets)}

    def predictions(self, outputs: tf.Tensor) -> dict[str, tf.Tensor]:
        return {"targets": outputs * self.deviation + self.mean}

    def describe(self) -> str:
        return f"targets {', '.join(self.targets)}"

    def report(self, metrics: Mapping[str, float], tested: str) -> str:
        each = [
            f"{name} {metrics[f'mean_absolute_error/{name}']:.4g} (R2 {metrics[f'r2/{name}']:.3f})"
            for name in self.targets
        ]
        return f"mean absolute error of {tested}: {', '.join(each)}"
