"""What a run reads: images or volumes, of which each processor reads its own slices where it can."""

import dataclasses
import functools
import os
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from mtf_hetero import Layout, data, mtf, tf
from mtf_hetero.data.listing import listed
from mtf_hetero.data.source import TEST
from mtf_hetero.models.registry import Model
from mtf_hetero.models.train import program as network
from mtf_hetero.models.train.config import Config
from mtf_hetero.models.train.recorded import Record

Dataset = data.Dataset | data.Volumes
_MANIFEST = "manifest.json"


def load(config: Config, model: Model, record: Record | None = None) -> Dataset:
    """Finds the data set of a run.

    Args:
      config: what the user asked for.
      model: the model.
      record: of the run whose network is used on it: the images are normalised as there, and the classes of one's own
        images are those; None: a new run.

    Raises:
      ValueError: it is not there, is damaged, is of images where the model takes volumes or the other way round, or has
        fewer training examples than a batch.
    """
    path = os.path.expanduser(config.dataset)
    is_set_of_volumes = os.path.isfile(os.path.join(path, _MANIFEST))
    if model.takes_volumes:
        if not os.path.isdir(path):
            raise ValueError(
                f"--dataset is {config.dataset!r}, but --model={config.model} takes volumes; give a directory that "
                "mtf-hetero data simulate or convert has made"
            )
        dataset = data.load_volumes(config.dataset)
    elif is_set_of_volumes:
        raise ValueError(
            f"--dataset is {config.dataset!r}, a set of volumes, but --model={config.model} takes images; give a model "
            "of volumes, such as cosmoflow or unet3d"
        )
    else:
        try:
            dataset = _load_images(config, record)
        except OSError as error:
            raise ValueError(
                f"--dataset is {config.dataset!r}, which cannot be read: {error.strerror or error}; name another one"
            ) from error
    if config.batch_size > dataset.train_size:
        raise ValueError(
            f"--batch_size is {config.batch_size}, but {config.dataset} has {dataset.train_size} training "
            f"{unit(dataset)}; give a smaller one"
        )
    return dataset


def _load_images(config: Config, record: Record | None) -> data.Dataset:
    names = () if record is None else record.class_names
    options: Any = {"image_size": config.image_size, "seed": config.seed, "class_names": names}
    dataset = data.load(config.dataset, config.data_dir, **options)
    if record is not None:
        return record.normalised(record.compared(dataset))
    if data.is_own(config.dataset, config.data_dir):
        _ = dataset.statistics  # which reads images: now, while a damaged one costs nothing but this
    return dataset


def as_stored(dataset: Dataset) -> Dataset:
    """Return the same data, of which images and volumes are not normalised: they have the numbers that are stored."""
    channels = dataset.image_shape[-1]
    if isinstance(dataset, data.Volumes):
        manifest = dataclasses.replace(dataset.manifest, mean=(0.0,) * channels, deviation=(1.0,) * channels)
        return dataclasses.replace(dataset, manifest=manifest)
    return dataclasses.replace(dataset, known_statistics=((0.0,) * channels, (1 / 255,) * channels))


def statistics_as_stored(dataset: Dataset) -> tuple[np.ndarray, np.ndarray]:
    """Return the mean and the deviation of each channel by which the data are normalised, of numbers as stored."""
    if isinstance(dataset, data.Volumes):
        return np.array(dataset.manifest.mean), np.array(dataset.manifest.deviation)
    mean, deviation = dataset.statistics
    return 255 * mean, 255 * deviation


def unit(dataset: Dataset) -> str:
    """What the data set is of."""
    return "volumes" if isinstance(dataset, data.Volumes) else "images"


def test_names(dataset: Dataset) -> Sequence[str]:
    """Names of the files of the test set; none where the examples have none."""
    return dataset.source(TEST).names if isinstance(dataset, data.Dataset) else ()


def notes(dataset: Dataset) -> tuple[str, ...]:
    """Lines about the data, for the user."""
    return dataset.notes if isinstance(dataset, data.Dataset) else ()


def describe(dataset: Dataset) -> str:
    """Its name and its size."""
    name = dataset.directory if isinstance(dataset, data.Volumes) else dataset.name
    text = (
        f"{name}: {dataset.train_size:,} training and {dataset.test_size:,} test {unit(dataset)} of "
        f"{' x '.join(map(str, dataset.image_shape))}"
    )
    if isinstance(dataset, data.Volumes) or not dataset.digest:
        return text
    return f"{text}, {dataset.classes} classes: {listed(dataset.class_names)}"


def for_training(dataset: Dataset, config: Config, layout: Layout, batch: Sequence[int], devices: Sequence[str]) -> Any:
    """Training batches, from that of the global step on.

    Args:
      dataset: the data.
      config: how it is to be read.
      layout: how the tensors lie on the mesh.
      batch: sizes of the dimensions of the batch.
      devices: one per processor.

    Returns:
      A tf.data.Dataset of batches, or (features, labels) with a slice for each processor.
    """
    augment: Any = config.augment
    if isinstance(dataset, data.Dataset):
        augment = data.Augmentation() if config.augment else None
    make = functools.partial(
        dataset.train_input_fn,
        config.batch_size,
        config.train_epochs,
        config.seed,
        start_batch=tf.train.get_global_step().read_value(),  # also of a session made anew, after a worker is back
        augment=augment,
    )
    return _laid_out(make, dataset, layout, network.batch_shape(batch), devices)


def for_test(dataset: Dataset, batch_size: int, layout: Layout, batch: Sequence[int], devices: Sequence[str]) -> Any:
    """Test batches; otherwise as `for_training`."""
    make = functools.partial(dataset.test_input_fn, batch_size)
    return _laid_out(make, dataset, layout, network.batch_shape(batch), devices)


def _laid_out(
    make: Callable[..., Any], dataset: Dataset, layout: Layout, batch: Mapping[str, int], devices: Sequence[str]
) -> Any:
    """Each processor's own slices, where what the layout splits of the input can be read in slices."""
    image = dict(zip(network.IMAGE[-len(dataset.image_shape) :], dataset.image_shape, strict=True))
    dims = (mtf.Dimension(name, size) for name, size in {**batch, **image}.items())
    split = {dim.name for dim in dims if layout.axis_of(dim) is not None}
    if isinstance(dataset, data.Volumes):
        if not split or layout.axis_of("targets") is not None:
            return make()
        shape = mtf.Shape([mtf.Dimension(name, size) for name, size in (*batch.items(), *image.items())])
        return data.laid_out_volumes(make, layout, shape, devices)
    if not split or not split.issubset(batch):
        return make()
    return data.laid_out_batches(make, layout, batch, devices)


def blank(dataset: Dataset, batch_size: int) -> tuple[tf.Tensor, tf.Tensor]:
    """A batch of zeros, (image, label), to build a graph with."""
    image = tf.zeros([batch_size, *dataset.image_shape])
    if isinstance(dataset, data.Dataset):
        return image, tf.zeros([batch_size], tf.int32)
    if dataset.targets:
        return image, tf.zeros([batch_size, len(dataset.targets)])
    return image, tf.zeros([batch_size, *dataset.image_shape[:-1]], tf.int32)
