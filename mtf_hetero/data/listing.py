"""List image files with a class each, from a directory with a folder per class or from a CSV file.

A list names files and opens none. It is in the same order on every machine.
"""

import collections
import csv
import dataclasses
import decimal
import hashlib
import os
import pathlib
import re
import stat
from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

from mtf_hetero.data.source import TEST, TRAIN

ENDINGS = (".jpeg", ".jpg", ".png")  # in lower case
TEST_EVERY = 5  # one image of so many, in a class without a test set
_SPLITS = (TRAIN, TEST)
_COLUMNS = ("path", "label")
_VALIDATION = ("val", "valid", "validation")  # usual names of a folder beside train and test
_NUMBER = re.compile(r"[+-]?([0-9]+\.?[0-9]*|\.[0-9]+)([eE][+-]?[0-9]{1,4})?")


class Photo(NamedTuple):
    """An image file.

    Args:
      path: the full path.
      name: the path from the directory or the CSV file on.
      class_name: the name of its class.
      place: its name in an error: the path, or the row of a CSV file.
    """

    path: str
    name: str
    class_name: str
    place: str


@dataclasses.dataclass(frozen=True)
class Listing:
    """The image files of a data set.

    Args:
      class_names: of all classes, in the order of their numbers.
      photos: {"train": ..., "test": ...}.
      digest: of the names, the classes and the sizes of the training files and of the test files.
      notes: lines for the user.
    """

    class_names: tuple[str, ...]
    photos: Mapping[str, Sequence[Photo]]
    digest: str
    notes: tuple[str, ...] = ()


def list_images(path: str, *, seed: int, class_names: Sequence[str] = ()) -> Listing:
    """List the images of a directory or of a CSV file.

    A directory has a folder for each class, or `train` and `test` with such folders. A CSV file has a header, the
    columns `path` and `label`, and perhaps `split`. Without a test set, one image in five of each class is for the
    test. The seed and the names of the files decide which ones.

    Args:
      path: of the directory or of the file.
      seed: of the choice of test images.
      class_names: the classes of a network, in its order; none: all classes found, sorted.

    Raises:
      ValueError: one line with the file and its fault.
    """
    photos, notes = _read_folders(pathlib.Path(path)) if os.path.isdir(path) else (_read_csv(path), ())
    names = _check_classes(path, photos, class_names)
    if TEST not in photos:
        photos = _split(photos[TRAIN], seed)
    digest = _check_files(photos)
    ordered = {split: _in_order(photos[split], seed if split == TRAIN else None) for split in _SPLITS}
    return Listing(names, ordered, digest, notes)


def choose_test(keys: list[str], labels: Sequence[object], seed: int) -> list[bool]:
    """Choose test examples: one in five of each class, and at least one of a class with several examples.

    A new example changes the choice of few others.
    """
    of_class = collections.defaultdict(list)
    for number, label in enumerate(labels):
        of_class[label].append(number)
    chosen = [False] * len(keys)
    for numbers in of_class.values():
        count = max(len(numbers) // TEST_EVERY, 1) if len(numbers) > 1 else 0
        for number in sorted(numbers, key=lambda number: _drawn(keys[number], seed))[:count]:
            chosen[number] = True
    return chosen


def find_images(folder: str | os.PathLike) -> tuple[list[str], list[str]]:
    """Return the sorted paths of the images in a folder, and of all other entries, which a caller skips."""
    images, others = [], []
    with os.scandir(folder) as entries:
        for entry in entries:
            is_image = entry.name.lower().endswith(ENDINGS) and not entry.name.startswith(".") and not entry.is_dir()
            (images if is_image else others).append(entry.path)
    return sorted(images), sorted(others)


def _drawn(key: str, seed: int) -> bytes:
    return hashlib.blake2b(f"{seed}/{key}".encode(errors="surrogateescape"), digest_size=8).digest()


def _split(photos: Sequence[Photo], seed: int) -> dict[str, list[Photo]]:
    is_test = choose_test([photo.name for photo in photos], [photo.class_name for photo in photos], seed)
    return {
        TRAIN: [photo for photo, chosen in zip(photos, is_test, strict=True) if not chosen],
        TEST: [photo for photo, chosen in zip(photos, is_test, strict=True) if chosen],
    }


def _in_order(photos: Iterable[Photo], seed: int | None) -> tuple[Photo, ...]:
    """Sort images by name, or at random by a seed, so that the first of them are a fair sample."""
    if seed is None:
        return tuple(sorted(photos, key=lambda photo: photo.name))
    return tuple(sorted(photos, key=lambda photo: _drawn(photo.name, seed)))


def _folders_in(path: pathlib.Path) -> list[pathlib.Path]:
    return sorted(entry for entry in path.iterdir() if entry.is_dir() and not entry.name.startswith("."))


def _read_folders(root: pathlib.Path) -> tuple[dict[str, list[Photo]], tuple[str, ...]]:
    folders = _folders_in(root)
    divided = [folder.name for folder in folders if folder.name in _SPLITS and _folders_in(folder)]
    others = [folder for folder in folders if folder.name not in divided]
    if len(divided) == 1:
        (missing,) = set(_SPLITS) - set(divided)
        known = f" (it has {', '.join(folder.name for folder in others)})" if others else ""
        raise ValueError(
            f"{root} has {divided[0]}/ and no {missing}/{known}; give it both, or put the folders of the classes into "
            f"{root} itself, of which one image in {TEST_EVERY} is then for the test"
        )
    photos: dict[str, list[Photo]] = {}
    unread = [folder for folder in others if folder.name.lower() in _VALIDATION] if divided else []
    skipped = [str(folder) for folder in others if folder not in unread] if divided else []
    for split in divided or [TRAIN]:
        above = root / split if divided else root
        loose, rest = find_images(above)
        classes = _folders_in(above)
        known = {str(folder) for folder in (*folders, *classes)}
        if not classes:
            raise ValueError(_no_folders(above, len(loose)))
        skipped += [*loose, *(path for path in rest if path not in known)]
        photos[split] = []
        for folder in classes:
            images, rest = find_images(folder)
            if not images:
                raise ValueError(_no_images(folder, rest))
            skipped += rest
            photos[split] += [Photo(image, image[len(str(root)) :].lstrip("/"), folder.name, image) for image in images]
    return photos, (*map(_describe_validation, unread), *_describe_skipped(root, skipped))


def _name_kind(name: str) -> str:
    """Name the kind of a skipped file or folder, for a message."""
    path = pathlib.Path(name)
    if path.name.startswith("."):
        return "hidden"
    if path.is_dir():
        return "folder"
    return "outside of the classes' folders" if path.suffix.lower() in ENDINGS else path.suffix or "without an ending"


def _count_skipped(paths: Sequence[str]) -> str:
    kinds = collections.Counter(map(_name_kind, paths))
    return ", ".join(f"{count:,} {kind}" for kind, count in sorted(kinds.items()))


def _no_images(folder: pathlib.Path, others: Sequence[str]) -> str:
    has = f" (but {_count_skipped(others)})" if others else ""
    return (
        f"{folder}, the folder of a class, has no JPEG or PNG image{has}; put some into it ({', '.join(ENDINGS)}), or "
        "remove it"
    )


def _no_folders(folder: pathlib.Path, images: int) -> str:
    has = f"{images:,} images but no folder for each class" if images else "no images"
    return (
        f"{folder} has {has}; give a directory with a folder of JPEG or PNG images for each class, such as "
        f"{folder.name}/cat and {folder.name}/dog, or a .csv file of paths and labels"
    )


def _describe_validation(folder: pathlib.Path) -> str:
    return (
        f"warning: {folder} is skipped, because a training is validated with the images of {TEST}/; move its images "
        f"into {TRAIN}/ or {TEST}/ to use them"
    )


def _describe_skipped(root: pathlib.Path, skipped: Sequence[str]) -> tuple[str, ...]:
    if not skipped:
        return ()
    files = "1 file is" if len(skipped) == 1 else f"{len(skipped):,} files are"
    return (f"warning: {files} skipped in {root}: {_count_skipped(skipped)}; such as {min(skipped)}",)


def _read_csv(path: str) -> dict[str, list[Photo]]:
    root = os.path.dirname(os.path.abspath(path))
    photos: dict[str, list[Photo]] = collections.defaultdict(list)
    try:
        with open(path, encoding="utf-8-sig", newline="") as file:
            rows = csv.DictReader(file)
            columns = [name.strip() for name in rows.fieldnames or ()]
            rows.fieldnames = columns
            if missing := [name for name in _COLUMNS if name not in columns]:
                raise ValueError(
                    f"{path} has no column {missing[0]!r} in its first row, which is {','.join(columns)!r}; begin the "
                    "file with the row path,label or path,label,split"
                )
            for row in rows:
                rest = row.pop(None, ())
                split, photo = _read_row(path, root, rows.line_num, row, rest)
                photos[split].append(photo)
    except (OSError, UnicodeDecodeError, csv.Error) as error:
        reason = getattr(error, "strerror", None) or error
        raise ValueError(f"{path} cannot be read as a CSV file of text in UTF-8 ({reason}); correct it") from error
    if TRAIN not in photos:
        raise ValueError(f"{path} names no training images; add a row path,label for each")
    if "split" in columns and TEST not in photos:
        raise ValueError(
            f"{path} has the column 'split' and no row of the split 'test'; add one, or leave the column out, and one "
            f"image in {TEST_EVERY} is for the test"
        )
    return dict(photos)


def _read_row(
    path: str, root: str, number: int, row: Mapping[str, str | None], rest: Sequence[str]
) -> tuple[str, Photo]:
    """Return the split and the image of a row; `rest` are the fields after the last column."""
    place = f"{path}, line {number}"
    if further := [value.strip() for value in rest if value.strip()]:
        raise ValueError(
            f"{place} has the field {further[0]!r} after the last column; each row has the {len(row)} fields of "
            "the first row: put a text with a comma in quotes"
        )
    values = {name: (row[name] or "").strip() for name in (*_COLUMNS, "split") if name in row}
    if empty := [name for name, value in values.items() if not value]:
        raise ValueError(f"{place}: {empty[0]!r} is empty; give each row a value in each column")
    split = values.get("split", TRAIN)
    if split not in _SPLITS:
        raise ValueError(f"{place}: 'split' is {split!r}; it must be train or test")
    file = os.path.normpath(os.path.join(root, os.path.expanduser(values["path"])))
    return split, Photo(file, values["path"], values["label"], f"{place}, {values['path']}")


def _check_classes(path: str, photos: Mapping[str, Sequence[Photo]], known: Sequence[str]) -> tuple[str, ...]:
    """Return the names of the classes, in their order, or raise ValueError."""
    found = {photo.class_name: photo for photo in reversed(photos[TRAIN])}
    for photo in photos.get(TEST, ()):
        if photo.class_name not in found and not known:
            raise ValueError(
                f"{photo.place} is a test image of the class {photo.class_name!r}, which has no training image "
                f"({join_names(_sorted(found))}); add some, or remove it"
            )
        found.setdefault(photo.class_name, photo)
    if known:
        if unknown := sorted(found.keys() - set(known)):
            raise ValueError(
                f"{found[unknown[0]].place} is of the class {unknown[0]!r}, which the trained network does not know "
                f"({join_names(known)}); remove it, or train a new network"
            )
        return tuple(known)
    if len(found) < 2:
        raise ValueError(f"{path} has images of one class, {next(iter(found))!r}, alone; give two classes or more")
    return tuple(_sorted(found))


def _sorted(names: Iterable[str]) -> list[str]:
    """Sort names of classes: by value if all are numbers, else as text."""
    names = sorted(names)
    return sorted(names, key=decimal.Decimal) if all(map(_NUMBER.fullmatch, names)) else names


def join_names(names: Sequence[str], most: int = 6) -> str:
    """Return the first names of many, as a text.

    Example:
      >>> join_names("abcd", most=2)
      'a, b and 2 more'
    """
    more = f" and {len(names) - most} more" if len(names) > most else ""
    return f"{', '.join(names[:most])}{more}"


def _check_files(photos: Mapping[str, Sequence[Photo]]) -> str:
    """Return a digest of all files; raise ValueError if one is missing, empty or named twice."""
    rows: list[bytes] = []
    places: dict[tuple[int, int], Photo] = {}
    for split in _SPLITS:
        for photo in photos[split]:
            try:
                status = os.stat(photo.path)
            except OSError as error:
                raise ValueError(f"{photo.place} cannot be read: {error.strerror}; correct the path") from error
            if not stat.S_ISREG(status.st_mode) or not status.st_size:
                what = "empty" if stat.S_ISREG(status.st_mode) else "no file"
                raise ValueError(f"{photo.place} is {what}; replace or remove it")
            first = places.setdefault((status.st_dev, status.st_ino), photo)
            if first is not photo:
                raise ValueError(f"{photo.place} is the same file as {first.place}; remove one of the two")
            row = f"{split}\0{photo.name}\0{photo.class_name}\0{status.st_size}\n"
            rows.append(row.encode(errors="surrogateescape"))
    return hashlib.blake2b(b"".join(sorted(rows)), digest_size=16).hexdigest()
