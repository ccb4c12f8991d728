"""Small data sets that tests make for themselves, and what comes out of a pipeline."""

import numpy as np

from mtf_hetero import tf

SIZE, CHANNELS = 6, 3


def read_batches(make):
    """All batches of a tf.data.Dataset made in a graph of its own: [(image, weight, label), ...]."""
    with tf.Graph().as_default():
        dataset = make()
        iterator = tf.data.make_initializable_iterator(dataset)
        features, labels = iterator.get_next()
        assert features["image"].shape.is_fully_defined()
        fetches = (features["image"], features["weight"], labels)
        batches = []
        config = tf.ConfigProto()
        config.graph_options.rewrite_options.disable_meta_optimizer = True  # a fifth of the time
        with tf.Session(config=config) as session:
            session.run(iterator.initializer)
            while True:
                try:
                    batches.append(session.run(fetches))
                except tf.errors.OutOfRangeError:
                    return batches


def assert_same(actual, expected):
    """Compare the batches of two pipelines."""
    for one, two in zip(actual, expected, strict=True):
        for part, other in zip(one, two, strict=True):
            np.testing.assert_array_equal(part, other)


def joined(batches):
    return [np.concatenate(parts) for parts in zip(*batches)]


def as_bytes(images, dataset):
    """Normalised images back to the bytes that they were."""
    mean, deviation = dataset.statistics
    return np.rint((images * deviation + mean) * 255).astype(np.uint8)


def rows(images):
    return sorted(image.tobytes() for image in images)


def random_images(count):
    return np.random.default_rng(count).integers(0, 256, (count, SIZE, SIZE, CHANNELS), dtype=np.uint8)


def build(root, *, image_shape=(SIZE, SIZE, CHANNELS), splits=(("train", 7), ("test", 5)), label=True):
    """Prepares a small set of random images, as tfds does."""
    import tensorflow_datasets as tfds

    features = {"image": tfds.features.Image(shape=image_shape)}
    if label:
        features["label"] = tfds.features.ClassLabel(num_classes=4)

    class Squares(tfds.core.GeneratorBasedBuilder, skip_registration=True):
        VERSION = tfds.core.Version("1.2.0")
        pkg_dir_path = root  # tfds looks for a README beside the class

        def _info(self):
            return tfds.core.DatasetInfo(builder=self, features=tfds.features.FeaturesDict(features))

        def _split_generators(self, dl_manager):
            return {split: self._generate_examples(count) for split, count in splits}

        def _generate_examples(self, count):
            for index, image in enumerate(random_images(count)):
                yield index, {"image": image, "label": index % 4} if label else {"image": image}

    Squares(data_dir=str(root)).download_and_prepare()
