"""A user's own images: each slice of a batch is that of the whole, formats are as Pillow has them, damage is named."""

import functools
import sys

import numpy as np
import pytest
from own_sets import CLASSES, arrays, draw, draw_folders
from PIL import Image, ImageOps
from small_sets import as_bytes, assert_same, joined, read_batches, rows
from tiers import parametrize

from mtf_hetero import data, tf
from mtf_hetero.data import functions, own, pictures
from mtf_hetero.data.examples import made_ahead
from mtf_hetero.data.orientation import TAG, upright

AUGMENT = data.Augmentation(crop=2)


def folder(root):
    return str(draw_folders(root / "photos", 15))


def table(root):
    draw_folders(root, 15)
    lines = [f"{path.relative_to(root)},{path.parent.name}" for path in sorted(root.rglob("*.png"))]
    (root / "labels.csv").write_text("\n".join(["path,label", *lines]))
    return str(root / "labels.csv")


def divided_archive(root):
    np.savez_compressed(root / "set.npz", **arrays(13))
    return str(root / "set.npz")


def archive(root):
    made = arrays(16)
    np.savez(root / "set.npz", x=made["x_train"], y=made["y_train"][:, None].astype(np.uint8), class_names=CLASSES)
    return str(root / "set.npz")


def pair(root):
    np.savez(root / "raw.npz", **arrays(13))
    return module(
        root,
        """
        made = np.load("raw.npz")
        return tuple(tf.data.Dataset.from_tensor_slices((made[f"x_{s}"], made[f"y_{s}"])) for s in ("train", "test"))
        """,
    )


def names_and_decode(root):
    draw_folders(root / "photos", 15)
    return module(
        root,
        """
        import glob
        paths = sorted(glob.glob("photos/*/*.png"))
        classes = ["cat", "dog", "owl"]
        files = tf.data.Dataset.from_tensor_slices((paths, [classes.index(path.split("/")[1]) for path in paths]))
        def decode(path, label):
            return tf.ensure_shape(tf.io.decode_png(tf.io.read_file(path), channels=3), [6, 6, 3]), label
        return {"train": files.take(13), "test": files.skip(13), "class_names": classes, "decode": decode}
        """,
    )


def module(root, body):
    """Writes a module with a function `make`; returns what --dataset says."""
    name = f"made_{abs(hash((str(root), body)))}"
    text = "import numpy as np\nimport tensorflow as tf\n\n\ndef make():\n"
    (root / f"{name}.py").write_text(text + body.replace("\n        ", "\n    "))
    return f"{name}:make"


KINDS = [folder, table, divided_archive, archive, pair, names_and_decode]


@parametrize("kind", KINDS, first=[folder])
def test_slices_are_the_batch(kind, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    name = kind(tmp_path)
    dataset = data.load(name, str(tmp_path), image_size=(8, 4) if kind is table else ())
    assert dataset.image_shape == ((8, 4, 3) if kind is table else (6, 6, 3))
    assert dataset.class_names == (tuple("012") if kind in (divided_archive, pair) else CLASSES)
    assert len(dataset.digest) == 32
    again = data.load(name, str(tmp_path), image_size=(8, 4) if kind is table else ())
    assert again.digest == dataset.digest
    make = functools.partial(dataset.train_input_fn, 5, 2, seed=4, augment=AUGMENT)
    whole = read_batches(make)
    assert len(whole) == 2 * dataset.train_size // 5
    slices = [read_batches(lambda p=p: make(slab=data.Slab(p))) for p in ((0, 1, 2), (3, 4))]
    for batch, *parts in zip(whole, *slices, strict=True):
        for expected, *found in zip(batch, *parts):
            np.testing.assert_array_equal(np.concatenate(found), expected)
    assert_same(read_batches(lambda: make(start_batch=3)), whole[3:])


@parametrize("kind", KINDS, first=[names_and_decode])
def test_images_have_their_labels(kind, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    dataset = data.load(kind(tmp_path), str(tmp_path))
    if kind in (divided_archive, archive, pair):
        made = arrays(16 if kind is archive else 13)
        expected = {
            image.tobytes(): label for s in ("train", "test") for image, label in zip(made[f"x_{s}"], made[f"y_{s}"])
        }
    else:
        paths = tmp_path.rglob("*.png")
        expected = {np.asarray(Image.open(path)).tobytes(): CLASSES.index(path.parent.name) for path in paths}
    train = joined(read_batches(lambda: dataset.train_input_fn(1, 1)))
    test = joined(read_batches(lambda: dataset.test_input_fn(1)))
    found = np.concatenate([as_bytes(train[0], dataset), as_bytes(test[0], dataset)])
    assert len(set(rows(found))) == len(found) == dataset.train_size + dataset.test_size
    assert [expected[image.tobytes()] for image in found] == [*train[2], *test[2]]


def test_decoded_images_are_kept_as_far_as_there_is_room(tmp_path):
    paths = sorted(str(path) for path in draw_folders(tmp_path, 6).rglob("*.png"))
    source = pictures.source_of_files(paths, np.arange(6), (6, 6, 3), resize=False)
    with tf.Graph().as_default(), tf.Session() as session:
        dataset = made_ahead(source.read(tf.data.Dataset.range(6).repeat(100), 4 * 108).batch(6))
        iterator = tf.data.make_initializable_iterator(dataset)
        fetches = iterator.get_next()
        session.run(iterator.initializer)
        first = session.run(fetches)[0]
        for path in paths[:5]:
            new = draw(tmp_path / "new.png", seed=99)
            new.replace(path)  # which is seen where the file is read again, and at no time empty
        last = [session.run(fetches)[0] for _ in range(99)][-1]
    changed = [number for number in range(6) if not np.array_equal(first[number], last[number])]
    assert 1 <= len(changed) <= 2 and 5 not in changed  # four are kept, of those that threads read first


FORMATS = ["RGB", "L", "RGBA", "LA", "P", "1", "I;16", "CMYK"]


def test_formats_are_read_as_pillow_reads_them(tmp_path):
    paths = {}
    for mode in FORMATS:
        paths[mode] = draw(
            tmp_path / f"{mode}{'.jpg' if mode == 'CMYK' else '.png'}", mode="L" if ";" in mode else mode
        )
    Image.fromarray(np.arange(36, dtype=np.uint16).reshape(6, 6) * 1800).save(paths["I;16"])
    with tf.Graph().as_default(), tf.Session() as session:
        decoded = {m: pictures.decode(tf.constant(str(path)), (6, 6, 3), resize=False) for m, path in paths.items()}
        images = session.run(decoded)
    for mode, path in paths.items():
        expected = Image.open(path).convert("RGBA").convert("RGB")
        if mode == "I;16":
            expected = np.repeat(np.asarray(Image.open(path))[..., None] // 256, 3, -1)
        np.testing.assert_allclose(images[mode], np.asarray(expected, np.int32), atol=2, err_msg=mode)


@pytest.mark.full
def test_photos_are_turned_as_their_exif_data_say(tmp_path):
    image = Image.fromarray(np.kron(np.arange(24, dtype=np.uint8).reshape(4, 6) * 10, np.ones([8, 8], np.uint8)))
    paths = []
    for orientation in range(10):  # 0 and 9 have no meaning
        for endian in ("little", "big"):
            exif = image.getexif()
            exif.endian = {"little": "<", "big": ">"}[endian]
            exif[0x010F], exif[TAG] = "a maker", orientation
            paths.append(tmp_path / f"{orientation}{endian}.jpg")
            image.save(paths[-1], exif=exif, quality=95)
            assert exif.tobytes()[6:8] == {"little": b"II", "big": b"MM"}[endian]
    image.save(tmp_path / "none.jpg")
    (tmp_path / "cut.jpg").write_bytes(paths[12].read_bytes()[:30])
    for path in [*paths, tmp_path / "none.jpg"]:
        expected = np.asarray(ImageOps.exif_transpose(Image.open(path)), np.int32)[..., None]
        (look,) = pictures.look_at([(str(path), path.name)])
        assert look.size == expected.shape[:2]
        with tf.Graph().as_default(), tf.Session() as session:
            found = session.run(pictures.decode(tf.constant(str(path)), expected.shape, resize=False))
        np.testing.assert_allclose(found, expected, atol=3, err_msg=path.name)
    with tf.Graph().as_default(), tf.Session() as session:
        content = tf.io.read_file(str(tmp_path / "cut.jpg"))
        np.testing.assert_array_equal(session.run(upright(tf.constant([[[1], [2]]]), content)), [[[1], [2]]])


@pytest.mark.parametrize(("mode", "channels"), [("L", 1), ("1", 1), ("LA", 1), ("P", 3), ("RGBA", 3)])
def test_a_set_of_grey_images_has_one_channel(mode, channels, tmp_path):
    for name in ("cat/1.png", "cat/2.png", "dog/3.png", "dog/4.png"):
        draw(tmp_path / name, mode=mode)
    assert data.load(str(tmp_path)).image_shape == (6, 6, channels)


def test_copies_are_counted(tmp_path):
    root = draw_folders(tmp_path, 12)
    assert data.load(str(root)).notes == ()
    for name in ("dog/copy.png", "owl/copy.png"):
        (root / name).write_bytes((root / "cat" / "000.png").read_bytes())
    (note,) = data.load(str(root)).notes
    assert note.startswith("warning: 2 images are copies of others, such as ")


def test_images_of_several_sizes_need_one(tmp_path):
    draw(tmp_path / "cat" / "1.png", (6, 9))
    draw(tmp_path / "cat" / "2.png", (6, 9))
    draw(tmp_path / "dog" / "3.png", (12, 8))
    message = (
        r"has images of 2 sizes: 6 x 9, 12 x 8 .height x width.; give one size for all with --image_size=HEIGHT,WI"
    )
    with pytest.raises(ValueError, match=message):
        data.load(str(tmp_path))
    assert data.load(str(tmp_path), image_size=(4, 4)).image_shape == (4, 4, 3)


def test_an_image_is_cut_to_the_ratio_of_the_sides_and_scaled():
    wide = np.zeros([4, 12, 1], np.uint8)
    wide[:, 4:8] = 200
    checks = np.indices([8, 8]).sum(0)[..., None] % 2 * np.uint8(200)
    with tf.Graph().as_default(), tf.Session() as session:

        def fitted(image, size):
            return session.run(pictures.crop_and_resize(tf.constant(image), size))

        assert (fitted(wide, (4, 4)) == 200).all() and (fitted(wide, (2, 2)) == 200).all()
        assert (fitted(wide.transpose(1, 0, 2), (3, 3)) == 200).all()
        np.testing.assert_array_equal(fitted(wide, (4, 12)), wide)
        assert abs(int(fitted(checks, (2, 2))[0, 0, 0]) - 100) <= 2  # not one of the pixels
        assert fitted(wide, (50, 1)).shape == (50, 1, 1)


def test_damaged_images_are_named_when_they_are_listed(tmp_path):
    root = draw_folders(tmp_path, 9, (40, 40), suffix=".jpg")
    whole = (root / "cat" / "000.jpg").read_bytes()
    for content, message in [
        (whole[: len(whole) // 2], "000.jpg is not an intact JPEG or PNG image .image file is truncated"),
        (b"no image", "000.jpg is not an intact JPEG or PNG image .cannot identify"),
    ]:
        (root / "cat" / "000.jpg").write_bytes(content)
        with pytest.raises(ValueError, match=message) as error:
            data.load(str(root))
        assert "\n" not in str(error.value)
    Image.new("RGB", (40, 40)).save(root / "cat" / "000.jpg", format="GIF")
    with pytest.raises(ValueError, match="000.jpg is a GIF image; convert it to JPEG or PNG, or remove it"):
        data.load(str(root))


CUT, OTHER_SIZE, GONE = (
    "TensorFlow cannot decode it, or it is cut off; replace or remove it",
    "it is 20 x 40, but the images of the set are 40 x 40; give one size for all with --image_size, or remove it",
    "it is missing or empty on the machine that reads it; each worker needs the same files at the same paths",
)


@pytest.mark.filterwarnings("ignore")
@parametrize("message", [CUT, OTHER_SIZE, GONE], first=[CUT])
def test_damaged_images_are_named_when_they_are_read(message, tmp_path):
    root = draw_folders(tmp_path / "a ]é", 10, (40, 40), suffix=".jpg")
    dataset = data.load(str(root))
    _ = dataset.statistics
    path = root / "cat" / "000.jpg"
    if message is CUT:
        path.write_bytes(path.read_bytes()[:-300])
    else:
        draw(path, (20, 40)) if message is OTHER_SIZE else path.unlink()
    with pytest.raises(data.UnreadableError) as error, data.unreadable_as_value_error():
        read_batches(lambda: dataset.train_input_fn(4, 3))
    assert str(error.value) == f"{path} cannot be read: {message}"


def test_names_of_sets_and_of_own_data(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    draw_folders(tmp_path / "mnist5k")
    draw_folders(tmp_path / "photos")
    assert data.load("mnist5k").train_size == 4000
    assert data.load("./mnist5k").train_size == 9
    assert data.full_name("mnist5k") == "mnist5k"
    assert data.full_name("./mnist5k") == data.full_name("mnist5k/") == str(tmp_path / "mnist5k")
    assert data.full_name("photos") == str(tmp_path / "photos")
    assert data.full_name("photos.csv") == str(tmp_path / "photos.csv")
    assert [data.full_name(name) for name in ("a.b:c", "mnist:3.0.1", "cifar10")] == ["a.b:c", "mnist:3.0.1", "cifar10"]
    (tmp_path / "prepared" / "photos" / "1.0.0").mkdir(parents=True)
    (tmp_path / "prepared" / "photos" / "1.0.0" / "dataset_info.json").write_text("{}")
    assert not data.is_own("photos", str(tmp_path / "prepared"))


@pytest.mark.parametrize("name", ["./none", "none.csv", "/none/none.npz", "~nobody/x", "none/"])
def test_own_data_that_are_not_there(name):
    with pytest.raises(ValueError, match=f"--dataset is '{name}', and .* does not exist; name a directory"):
        data.load(name)


def test_a_file_of_another_kind(tmp_path):
    (tmp_path / "a.zip").write_text("x")
    with pytest.raises(ValueError, match="a.zip is not a directory, .csv or .npz file; name a directory"):
        data.load(str(tmp_path / "a.zip"))


def wrong(**changes):
    return {**arrays(), **changes}


def without(*names):
    return {name: array for name, array in arrays().items() if name not in names}


ARCHIVES = [
    (
        without("y_test"),
        "has the arrays x_test, x_train, y_train; it needs x_train, y_train, x_test and y_test, or x and",
    ),
    (wrong(x_train=arrays()["x_train"] / 255), r"x_train is float64 .12, 6, 6, 3.; it must be uint8 .images, height"),
    (wrong(x_test=np.zeros([5, 36], np.uint8)), r"x_test is uint8 .5, 36.; it must be uint8 .images, height, width."),
    (
        wrong(x_train=arrays()["x_train"].transpose(0, 3, 1, 2)),
        r"x_train is .12, 3, 6, 6., which is .images, channels, height, width.; the channels must be last: save numpy"
        r".ascontiguousarray.x_train.transpose.0, 2, 3, 1..",
    ),
    (wrong(x_test=np.zeros([5, 1, 6, 6], np.uint8)), r"x_test is .5, 1, 6, 6., which is .images, channels, height"),
    (wrong(x_train=np.asfortranarray(arrays()["x_train"])), "x_train is in Fortran's order; save numpy.ascontig"),
    (
        wrong(x_test=np.zeros([5, 9, 9, 3], np.uint8)),
        "has training images of 6 x 6 x 3 and test images of 9 x 9 x 3; give",
    ),
    (
        wrong(y_train=np.eye(12)),
        r"y_train is float64 .12, 12.; it must be whole numbers, one for each of the 12 images",
    ),
    (
        wrong(y_test=np.zeros([4], int)),
        r"y_test is int64 .4.; it must be whole numbers, one for each of the 5 images of x",
    ),
    (wrong(y_test=np.array([0, 1, 2, 3, 0])), "y_test has the label 3 at index 3, but the training images have 0 to 2"),
    (wrong(y_train=np.arange(12) - 1), "y_train has the label -1 at index 0; labels count from 0"),
    (
        wrong(y_train=np.arange(12) % 3 * 2),
        "no training image has the label 1, and the highest is 4; number the classes",
    ),
    (wrong(y_train=np.zeros([12], int)), "no training image has the label 1, and the highest is 0"),
    (wrong(class_names=["a", "b"]), "class_names has 2 names for 3 classes; give each class a name"),
    (wrong(y_train=np.array([{}] * 12, object)), "y_train is not an array of numbers or text"),
]


@pytest.mark.parametrize(("made", "message"), ARCHIVES, ids=[message for _, message in ARCHIVES])
def test_wrong_arrays_are_named_in_one_line(made, message, tmp_path):
    np.savez(tmp_path / "set.npz", **made)
    with pytest.raises(ValueError, match=f"set.npz.*{message}") as error:
        data.load(str(tmp_path / "set.npz"))
    assert "\n" not in str(error.value)


@pytest.mark.parametrize("shape", [(5, 6, 2), (4, 6, 3), (3, 6, 1), (6, 6, 13)])
def test_arrays_may_have_any_number_of_channels(shape, tmp_path):
    np.savez(tmp_path / "set.npz", x=np.zeros([20, *shape], np.uint8), y=np.arange(20) % 2)
    assert data.load(str(tmp_path / "set.npz"), class_names=("0", "1")).image_shape == shape
    with pytest.raises(ValueError, match="which has the classes 0, 1, but the network was trained on a, b; give data"):
        data.load(str(tmp_path / "set.npz"), class_names=("a", "b"))


@pytest.mark.filterwarnings("ignore")
def test_damaged_archives(tmp_path):
    path = tmp_path / "set.npz"
    np.savez(path, **arrays())
    whole = path.read_bytes()
    for content in (b"", whole[: len(whole) // 2], whole[:900] + b"?" + whole[901:]):
        path.write_bytes(content)
        with pytest.raises(ValueError, match="set.npz cannot be read as an archive of numpy.savez"):
            data.load(str(path))
    path.write_bytes(whole)
    dataset = data.load(str(path))
    _ = dataset.statistics
    np.savez(path, **arrays(9))  # as on a worker that has another file of this name
    message = "set.npz cannot be read: it is missing, or not the file that the training process has"
    with pytest.raises(data.UnreadableError, match=message), data.unreadable_as_value_error():
        read_batches(lambda: dataset.train_input_fn(4, 1))


PAIRS = "\n        def pairs(x, y): return (tf.data.Dataset.from_tensor_slices((x, y)),) * 2\n        "
FUNCTIONS = [
    ("return 3", "made by a function that returned a int; it must return .train, test., two data sets"),
    ("return (1, 2)", "has a int as 'train'; it must return"),
    ("return {'train': tf.data.Dataset.range(3)}", "has nothing as 'test'; it must return"),
    ("return {'training': 1}", "has 'training'; a dict has the keys class_names, classes, decode, test, train"),
    ("return (tf.data.Dataset.range(3),) * 2", "its elements are one tensor; give pairs .image, label. of tensors"),
    ("return pairs(np.zeros([4, 6, 6, 3]), np.arange(4))", "has images of float64"),
    ("return pairs(np.zeros([4, 6, 6, 3], 'B'), np.eye(4))", "has labels of float64"),
    (
        "return [d.batch(2) for d in pairs(np.zeros([4, 6, 6, 3], 'B'), np.arange(4))]",
        "elements of .*; give each the same shape, unbatched",
    ),
    (
        "d, _ = pairs(np.zeros([4, 6, 6, 3], 'B'), np.arange(4))\n        return {'train': d, 'test': d, 'classes': 3}",
        "'train' element 3 has the label 3; with 3 classes it must be 0 to 2",
    ),
    (
        "d = tf.data.Dataset.range(3)\n        return {'train': d, 'test': d, 'decode': print}",
        "'decode' and no 'classes'",
    ),
    (
        "d = tf.data.Dataset.range(3)\n"
        "        f = lambda i: (tf.ensure_shape(tf.py_function(lambda i: i, [i], tf.uint8), [6, 6, 3]), i)\n"
        "        return {'train': d, 'test': d, 'classes': 3, 'decode': f}",
        "'decode' calls Python .EagerPyFunc., which workers cannot; write it with TensorFlow's",
    ),
    ("return 1 / 0", r"which failed: ZeroDivisionError: division by zero .*made_\d+.py, line 8."),
    (
        "d = tf.data.Dataset.from_tensors('none').map(lambda p: (tf.zeros([6, 6, 3], tf.uint8), "
        "tf.strings.length(tf.io.read_file(p))))\n        return d, d",
        "cannot be read: .*none; No such file",
    ),
]


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize(("body", "message"), FUNCTIONS, ids=[message for _, message in FUNCTIONS])
def test_wrong_functions_are_named_in_one_line(body, message, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    name = module(tmp_path, f"{PAIRS}{body}\n")
    with pytest.raises(ValueError, match=f"(?s)dataset (is )?{name!r}.*{message}"):
        data.load(name, str(tmp_path))


def test_functions_that_are_not_there(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(ValueError, match="which cannot be imported: No module named 'no_such_module'"):
        data.load("no_such_module:make", str(tmp_path))
    name = module(tmp_path, "\n        pass\n").partition(":")[0]
    with pytest.raises(ValueError, match=f"which cannot be imported: module '{name}' has no attribute 'other'"):
        data.load(f"{name}:other", str(tmp_path))
    assert str(tmp_path) not in sys.path[:1]  # a file beside the user's program shadows no module of Python


def test_a_label_that_decode_gets_wrong_is_named(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    name = names_and_decode(tmp_path)
    text = (tmp_path / f"{name.partition(':')[0]}.py").read_text().replace("3]), label", "3]), label + 1")
    (tmp_path / "spoilt.py").write_text(text)
    dataset = data.load("spoilt:make", str(tmp_path))
    message = (
        "example .* of the train images of spoilt:make cannot be read: its label is 3; with 3 classes it must be 0 to 2"
    )
    with pytest.raises(data.UnreadableError, match=message), data.unreadable_as_value_error():
        _ = dataset.statistics


def test_elements_that_are_kept_in_memory_have_a_limit(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(functions, "MOST_BYTES", 2**20)
    name = module(
        tmp_path,
        """
        endless = tf.data.Dataset.from_tensors((np.zeros([60, 60, 3], 'B'), 0)).repeat()
        return endless, endless
        """,
    )
    with pytest.raises(
        ValueError, match="has more than 1 MiB of 'train' elements, which are kept in memory; return file"
    ):
        data.load(name, str(tmp_path))


def test_the_statistics_are_of_a_sample(tmp_path, monkeypatch):
    root = draw_folders(tmp_path, 40)
    monkeypatch.setattr(own, "STATISTICS_IMAGES", 7)
    dataset = data.load(str(root))
    first = dataset.source("train").names[:7]
    pixels = np.stack([np.asarray(Image.open(path)) for path in first]) / 255
    np.testing.assert_allclose(dataset.statistics[0], pixels.mean((0, 1, 2)), rtol=1e-9)
    assert len({path.split("/")[-2] for path in first}) > 1
