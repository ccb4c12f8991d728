"""A set of images that is damaged is named with the file and the record, before training or in the middle of it."""

import functools
import pathlib
import shutil
import struct

import numpy as np
import pytest
from small_sets import build, read_batches
from tiers import parametrize

from mtf_hetero import data, tf
from mtf_hetero.data import dataset as dataset_lib
from mtf_hetero.data import records

pytestmark = pytest.mark.filterwarnings("ignore")  # tensorflow-datasets' own
TRAIN, TEST = 13, 5
HEADER, FRAMING = 12, 16


@pytest.fixture(scope="module")
def prepared(tmp_path_factory):
    path = tmp_path_factory.mktemp("tfds")
    build(path, splits=(("train", TRAIN), ("test", TEST)))
    return path


@pytest.fixture
def root(prepared, tmp_path):
    shutil.copytree(prepared, tmp_path, dirs_exist_ok=True)
    return tmp_path


def shard(root, split="train"):
    return next(root.rglob(f"*{split}.tfrecord*"))


def begins(path):
    return np.cumsum([0, *(records.record_lengths(str(path)) + FRAMING)]).tolist()


def flip(path, place):
    content = bytearray(path.read_bytes())
    content[place] ^= 1
    path.write_bytes(content)


def info(root):
    return next(root.rglob("dataset_info.json"))


def replace(path, old, new):
    text = path.read_text()
    assert old in text
    path.write_text(text.replace(old, new))


def rewrite(path, payloads):
    with tf.python_io.TFRecordWriter(str(path)) as writer:
        for payload in payloads:
            writer.write(payload)


CUT = r"train.tfrecord-00000-of-00001 is cut off or damaged in record {} of 13, which begins at byte [\d,]+; prepare"
DAMAGE = {
    "cut in a record": (lambda root: shard(root).write_bytes(shard(root).read_bytes()[:-9]), CUT.format(13)),
    "cut in a header": (
        lambda root: shard(root).write_bytes(shard(root).read_bytes()[: begins(shard(root))[4] + 7]),
        CUT.format(5),
    ),
    "cut between records": (
        lambda root: shard(root).write_bytes(shard(root).read_bytes()[: begins(shard(root))[4]]),
        "train.tfrecord-00000-of-00001 holds 4 records, but 13 were prepared; prepare the data set again",
    ),
    "more than there was": (
        lambda root: shard(root).write_bytes(shard(root).read_bytes() * 2),
        "holds 26 records, but 13 were prepared",
    ),
    "a length": (lambda root: flip(shard(root), begins(shard(root))[6]), CUT.format(7)),
    "a checksum of a length": (lambda root: flip(shard(root), begins(shard(root))[6] + 9), CUT.format(7)),
    "a missing shard": (lambda root: shard(root, "test").unlink(), "test.tfrecord-00000-of-00001 is missing; prepare"),
    "an empty shard": (lambda root: shard(root).write_bytes(b""), "holds 0 records, but 13 were prepared"),
    "garbage": (
        lambda root: shard(root).write_bytes(np.random.default_rng(0).bytes(5000)),
        r"in record 1 of 13, which begins at byte 0; prepare",
    ),
    "text": (lambda root: shard(root).write_text("<html>\n" * 99), r"in record 1 of 13, which begins at byte 0;"),
    "info cut": (
        lambda root: info(root).write_text(info(root).read_text()[:100]),
        r"dataset_info.json is damaged at byte \d+ \(.*\); prepare the data set again",
    ),
    "info binary": (
        lambda root: info(root).write_bytes(b'{"a": "\xff"}'),
        r"dataset_info.json is damaged at byte 7 \(invalid start byte\); prepare",
    ),
    "info empty": (lambda root: info(root).write_text(""), r"dataset_info.json is damaged at byte 0 "),
    "info of another kind": (lambda root: info(root).write_text("[]"), r"dataset_info.json or features.json beside it"),
    "info without shards": (
        lambda root: replace(info(root), '"shardLengths"', '"shardLength"'),
        r"dataset_info.json or features.json beside it is damaged \(ParseError: ",
    ),
    "info of fewer images": (lambda root: replace(info(root), '"13"', '"11"'), "holds 13 records, but 11 were prepare"),
    "features cut": (
        lambda root: info(root).with_name("features.json").write_text("{"),
        r"features.json is damaged at byte 1 ",
    ),
    "features missing": (
        lambda root: info(root).with_name("features.json").unlink(),
        r"features.json cannot be read \(No such file or directory\); prepare",
    ),
}


@pytest.mark.parametrize("kind", DAMAGE)
def test_what_is_damaged_is_told_before_anything_is_read(root, kind):
    damage, message = DAMAGE[kind]
    damage(root)
    with pytest.raises(ValueError, match=message) as caught:
        data.load("squares", str(root))
    assert "\n" not in str(caught.value)
    assert str(root) in str(caught.value)


def flipped(root, split, record):
    """Changes a bit of a record's image; returns what is said of it."""
    path = shard(root, split)
    begin = begins(path)[record]
    flip(path, begin + HEADER + 20)
    count = {"train": TRAIN, "test": TEST}[split]
    what = f"record {record + 1} of {count} is missing, damaged or cut off; prepare the data set again"
    return f"^{path} cannot be read from byte {begin}: {what}$"


def check_unreadable(make, message):
    with pytest.raises(data.UnreadableError, match=message), data.unreadable_as_value_error():
        read_batches(make)


def check_intact(make, batches):
    """Read to the end: nothing is raised."""
    assert len(read_batches(make)) == batches


@parametrize("record", [0, 7, 12], first=[7])
def test_a_flipped_bit_is_named_when_it_is_read(root, record, monkeypatch):
    message = flipped(root, "train", record)
    dataset = data.load("squares", str(root))
    with pytest.raises(data.UnreadableError, match=message):
        _ = dataset.statistics
    monkeypatch.setattr(dataset_lib.Dataset, "statistics", (np.zeros(3), np.ones(3)))
    check_unreadable(lambda: dataset.train_input_fn(TRAIN, 1), message)
    check_unreadable(lambda: dataset.train_input_fn(5, 20, slab=data.Slab((0, 3))), message)  # which are kept in memory
    check_intact(lambda: dataset.test_input_fn(2), batches=3)


def test_a_flipped_bit_of_the_test_set(root):
    message = flipped(root, "test", 3)
    dataset = data.load("squares", str(root))
    check_intact(lambda: dataset.train_input_fn(5, 1), batches=2)
    check_unreadable(lambda: dataset.test_input_fn(2), message)
    check_intact(lambda: dataset.test_input_fn(2, slab=data.Slab((0,))), batches=3)  # a slice without it


@pytest.mark.parametrize("change", [pathlib.Path.unlink, lambda path: path.write_bytes(path.read_bytes()[:40])])
def test_a_file_that_is_lost_while_it_is_read(root, change):
    dataset = data.load("squares", str(root))
    make = functools.partial(dataset.train_input_fn, 5, 1)
    assert len(read_batches(make)) == 2
    path = shard(root)
    change(path)
    check_unreadable(make, rf"^{path} cannot be read from byte \d+: record \d+ of 13 is missing, damaged or cut off")


def test_checksums_of_headers_are_those_of_tensorflow(tmp_path):
    path = tmp_path / "records"
    rewrite(path, [b"", b"a" * 300, b"b" * 70000])
    assert records.record_lengths(str(path)).tolist() == [0, 300, 70000]
    content = path.read_bytes()
    path.write_bytes(struct.pack("<Q", 1) + content[8:])
    with pytest.raises(
        data.UnreadableError, match="records is cut off or damaged in record 1, which begins at byte 0;"
    ):
        records.record_lengths(str(path))
