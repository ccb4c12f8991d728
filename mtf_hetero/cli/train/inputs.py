"""The input of a run: images or volumes. Each processor reads only its own slices if possible."""

import functools
import os
from collections.abc import Callable, Mapping, Sequence

from mtf_hetero import data
from mtf_hetero._compat import mtf, tf
from mtf_hetero.cli.train import program as network
from mtf_hetero.cli.train.config import Config
from mtf_hetero.cli.train.recorded import Record
from mtf_hetero.layout import Layout
from mtf_hetero.models.registry import Model

Dataset = data.Dataset | data.Volumes
# Batches of one pipeline, or features and labels with a slice for each processor
Batches = tf.data.Dataset | tuple[dict[str, tuple[tf.Tensor, ...]], tuple[tf.Tensor, ...]]
_MANIFEST = "manifest.json"


def load(config: Config, model: Model, record: Record | None = None) -> Dataset:
    """Find the data set of a run.

    Args:
      config: the user's configuration.
      model: the model.
      record: of the run whose network is used: its statistics normalise the images, and its classes are the classes of
        a user's own images; None: a new run.

    Raises:
      ValueError: the data set is missing or damaged, has images for a model of volumes or vice versa, or has fewer
        training examples than a batch.
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
            f"{dataset.unit}; give a smaller one"
        )
    return dataset


def _load_images(config: Config, record: Record | None) -> data.Dataset:
    names = () if record is None else record.class_names
    dataset = data.load(
        config.dataset,
        config.data_dir,
        image_size=config.image_size,
        seed=config.seed,
        class_names=names,
        needs_images=not config.dry_run,
    )
    if record is not None:
        return record.with_recorded_statistics(record.with_change_note(dataset))
    if data.is_own(config.dataset, config.data_dir):
        _ = dataset.statistics  # reads images now: a damaged one is found before the training
    return dataset


def for_training(
    dataset: Dataset, config: Config, layout: Layout, batch: Sequence[int], devices: Sequence[str]
) -> Batches:
    """Return training batches, from the batch of the global step on.

    Returns:
      A tf.data.Dataset of batches, or (features, labels) with a slice for each processor.
    """
    make = functools.partial(
        dataset.train_input_fn,
        config.batch_size,
        config.train_epochs,
        config.seed,
        start_batch=tf.train.get_global_step().read_value(),  # in a new session too, after a worker is back
        augment=config.augment,
    )
    return _read_slices(make, dataset, layout, network.batch_shape(batch), devices)


def for_test(
    dataset: Dataset, batch_size: int, layout: Layout, batch: Sequence[int], devices: Sequence[str]
) -> Batches:
    """Return test batches, in the same form as `for_training`."""
    make = functools.partial(dataset.test_input_fn, batch_size)
    return _read_slices(make, dataset, layout, network.batch_shape(batch), devices)


def _read_slices(
    make: Callable[..., tf.data.Dataset],
    dataset: Dataset,
    layout: Layout,
    batch: Mapping[str, int],
    devices: Sequence[str],
) -> Batches:
    """Return each processor's own slices, if the input can be read in the slices of the layout."""
    image: dict[str, int] = dict(zip(network.IMAGE[-len(dataset.image_shape) :], dataset.image_shape, strict=True))
    dims = (mtf.Dimension(name, size) for name, size in {**batch, **image}.items())
    split = {dim.name for dim in dims if layout.axis_of(dim) is not None}
    if not isinstance(dataset, data.Volumes):
        image = {}  # each slab would decode all images of the batch
    if not split or not split <= {*batch, *image} or layout.axis_of("targets") is not None:
        return make()
    return data.laid_out_batches(make, layout, batch, devices, image)
