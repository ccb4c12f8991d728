"""Lists of a user's own images: what is found, how it is divided, and what is refused, with the file's name."""

import os
import re

import pytest
from own_sets import CLASSES, draw, draw_folders

from mtf_hetero.data import listing
from mtf_hetero.data.listing import list_images


def names(listed, split):
    return [photo.name for photo in listed.photos[split]]


def test_folders_are_classes_and_one_image_in_five_is_for_the_test(tmp_path):
    listed = list_images(str(draw_folders(tmp_path / "photos", 36)), seed=1)
    assert listed.class_names == CLASSES
    assert listed.notes == ()
    assert [len(listed.photos[split]) for split in ("train", "test")] == [30, 6]
    for name in CLASSES:
        assert sum(photo.class_name == name for photo in listed.photos["test"]) == 2
    assert names(listed, "test") == sorted(names(listed, "test"))
    assert sorted(names(listed, "train") + names(listed, "test")) == sorted(
        path.relative_to(tmp_path / "photos").as_posix() for path in tmp_path.rglob("*.png")
    )


def test_the_choice_of_test_images_follows_from_the_seed_and_the_names(tmp_path):
    one, two = (list_images(str(draw_folders(tmp_path / name, 60)), seed=1) for name in ("one", "two"))
    assert names(one, "test") == names(two, "test")
    assert names(one, "train") == names(two, "train") != sorted(names(one, "train"))
    assert one.digest == two.digest
    other = list_images(str(tmp_path / "one"), seed=2)
    assert names(other, "test") != names(one, "test") and other.digest != one.digest
    draw(tmp_path / "two" / "cat" / "new.png")
    assert len(set(names(list_images(str(tmp_path / "two"), seed=1), "test")) ^ set(names(one, "test"))) <= 2


def test_a_class_of_one_image_has_no_test():
    assert listing.choose_test(list("abcdefgh"), [0, 1, 1, 2, 2, 2, 2, 2], 1).count(True) == 2
    assert not listing.choose_test(["a"], [0], 1)[0]


def test_folders_of_training_and_test(tmp_path):
    for split, count in (("train", 6), ("test", 4)):
        draw_folders(tmp_path / split, count, suffix=".JPEG")
    listed = list_images(str(tmp_path), seed=1)
    assert [len(listed.photos[split]) for split in ("train", "test")] == [6, 4]
    assert names(listed, "test")[0] == "test/cat/000.JPEG"


def test_a_class_may_be_called_test(tmp_path):
    assert list_images(str(draw_folders(tmp_path, classes=("test", "train"))), seed=1).class_names == ("test", "train")


def test_other_files_are_skipped_and_counted(tmp_path):
    draw_folders(tmp_path)
    for name in (
        ".DS_Store",
        "cat/.hidden.png",
        "cat/notes.txt",
        "dog/a.webp",
        "dog/b.webp",
        "loose.jpg",
        "owl/more/a",
    ):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text("x")
    (note,) = list_images(str(tmp_path), seed=1).notes
    assert note == (
        f"warning: 7 files are skipped in {tmp_path}: 1 .txt, 2 .webp, 1 folder, 2 hidden, 1 outside of the classes' "
        f"folders; such as {tmp_path}/.DS_Store"
    )


@pytest.mark.parametrize("name", ["val", "valid", "Validation"])
def test_a_folder_of_validation_images_is_named(name, tmp_path):
    for split in ("train", "test", name):
        draw_folders(tmp_path / split)
    listed = list_images(str(tmp_path), seed=1)
    assert [len(listed.photos[split]) for split in ("train", "test")] == [12, 12]
    assert listed.notes == (
        f"warning: {tmp_path}/{name} is skipped, because a training is validated with the images of test/; move its "
        "images into train/ or test/ to use them",
    )


def test_a_network_that_is_trained_keeps_its_classes(tmp_path):
    draw_folders(tmp_path, classes=("dog", "owl"))
    assert list_images(str(tmp_path), seed=1, class_names=CLASSES).class_names == CLASSES
    with pytest.raises(ValueError, match=r"owl/001.png is of the class 'owl', which the trained network does not know"):
        list_images(str(tmp_path), seed=1, class_names=("cat", "dog"))


def empty_class(root):
    (root / "bird").mkdir()
    (root / "bird" / "a.gif").write_text("x")


def only_in_test(root):
    draw_folders(root / "train", classes=("cat", "dog"))
    draw_folders(root / "test")


def no_test(root):
    draw_folders(root / "train")
    draw(root / "val" / "cat" / "a.png")


FOLDERS = [
    (empty_class, "bird, the folder of a class, has no JPEG or PNG image .but 1 .gif.; put some into it"),
    (only_in_test, "test/owl/002.png is a test image of the class 'owl', which has no training image .cat, dog.; add"),
    (no_test, r"has train/ and no test/ .it has val.; give it both"),
    (lambda root: None, r"has no images; give a directory with a folder"),
    (lambda root: draw(root / "a.png"), "has 1 images but no folder for each class"),
    (lambda root: draw(root / "cat" / "a.png"), "has images of one class, 'cat', alone; give two classes or more"),
    (lambda root: (root / "cat" / "new.png").write_text(""), "cat/new.png is empty; replace or remove it"),
    (lambda root: os.link(root / "cat" / "000.png", root / "dog" / "x.png"), "dog/x.png is the same file as .*000.png"),
    (lambda root: (root / "dog" / "x.png").symlink_to(root / "cat" / "000.png"), "dog/x.png is the same file as"),
    (lambda root: (root / "dog" / "x.png").symlink_to("nowhere"), "x.png cannot be read: No such file"),
]


@pytest.mark.parametrize(("spoil", "message"), FOLDERS, ids=[message for _, message in FOLDERS])
def test_wrong_folders_are_named_in_one_line(spoil, message, tmp_path):
    if spoil is empty_class or "x.png" in message or "new.png" in message:
        draw_folders(tmp_path)
    spoil(tmp_path)
    with pytest.raises(ValueError, match=message) as error:
        list_images(str(tmp_path), seed=1)
    assert "\n" not in str(error.value)


def write_list(root, *rows):
    (root / "labels.csv").write_text("".join(f"{row}\n" for row in rows), encoding="utf-8")
    return str(root / "labels.csv")


def test_a_csv_file_of_paths_and_labels(tmp_path):
    for number in range(10):
        draw(tmp_path / "images" / f"{number}.png")
    rows = [f"images/{number}.png,{10 * (number % 2)}" for number in range(10)]
    listed = list_images(write_list(tmp_path, "path,label", *rows), seed=1)
    assert listed.class_names == ("0", "10")
    assert [len(listed.photos[split]) for split in ("train", "test")] == [8, 2]
    rows = [
        f'"{tmp_path}/images/{number}.png",extra,{"test" if number < 3 else "train"},"c, {number % 2}"'
        for number in range(10)
    ]
    listed = list_images(write_list(tmp_path, "\ufeffpath, note,split,label", *rows), seed=1)
    assert listed.class_names == ("c, 0", "c, 1")
    assert [photo.path for photo in listed.photos["test"]] == [f"{tmp_path}/images/{number}.png" for number in range(3)]


@pytest.mark.parametrize(
    "classes",
    [
        ("9", "10"),
        ("1.0", "2.0", "10.0"),
        ("-10", "-1.5", ".5", "1e1"),
        ("10", "9", "cat"),
        ("1_0", "9"),
        (str(10**20), str(10**20 + 1)),
    ],
)
def test_numbers_as_labels_are_in_the_order_of_their_values(classes, tmp_path):
    for number in range(4):
        draw(tmp_path / f"{number}.png")
    rows = [f"{number}.png,{classes[::-1][number % len(classes)]}" for number in range(4)]
    assert list_images(write_list(tmp_path, "path,label", *rows), seed=1).class_names == classes


CSV = [
    (["file,class", "a.png,1"], "labels.csv has no column 'path' in its first row, which is 'file,class'"),
    ([], "labels.csv has no column 'path' in its first row, which is ''"),
    (["path,label"], "labels.csv names no training images"),
    (["path,label", "a.png,1", "none.png,2"], "labels.csv, line 3, none.png cannot be read: No such file or directory"),
    (["path,label", "a.png,1", "b.png,"], "labels.csv, line 3: 'label' is empty"),
    (["path,label", "a.png,1", "b.png"], "labels.csv, line 3: 'label' is empty"),
    (["path,label", "a.png,1", "b.png,2", "./a.png,2"], "line 4, ./a.png is the same file as .*line 2, a.png; remove"),
    (
        ["path,label", "a.png,1", "b.png,big, cat"],
        "labels.csv, line 3 has the field 'cat' after the last column; each row has the 2 fields of the first row: put",
    ),
    (["path,label,split", "a.png,1,val"], "line 2: 'split' is 'val'; it must be train or test"),
    (["path,label,split", "a.png,1,train", "b.png,2,train"], "has the column 'split' and no row of the split 'test'"),
    (
        ["path,label,split", "a.png,1,train", "b.png,2,test"],
        "line 3, b.png is a test image of the class '2', which has",
    ),
    (["path,label", ".,1", "b.png,2"], "line 2, . is no file; replace or remove it"),
]


@pytest.mark.parametrize(("rows", "message"), CSV, ids=[message for _, message in CSV])
def test_wrong_rows_are_named_in_one_line(rows, message, tmp_path):
    for name in "ab":
        draw(tmp_path / f"{name}.png")
    with pytest.raises(ValueError, match=message) as error:
        list_images(write_list(tmp_path, *rows), seed=1)
    assert "\n" not in str(error.value)


def test_a_file_that_is_no_text(tmp_path):
    (tmp_path / "labels.csv").write_bytes(b"path,label\n\xff\xfe.png,1\n")
    with pytest.raises(ValueError, match=re.escape("labels.csv cannot be read as a CSV file of text in UTF-8")):
        list_images(str(tmp_path / "labels.csv"), seed=1)
