"""Volumes out of HDF5, NumPy and NIfTI files."""

import os
import pathlib
import zipfile

import h5py
import nibabel
import numpy as np
import pytest
from small_sets import read_batches
from tiers import parametrize

from mtf_hetero import data
from mtf_hetero.cli import data as binary
from mtf_hetero.data.preparing import convert as convert_lib
from mtf_hetero.data.preparing.convert import Options, convert

SHAPE = (8, 4, 6, 2)
RNG = np.random.default_rng(3)
IMAGES = RNG.integers(0, 999, (4, *SHAPE)).astype(np.int16)
LABELS = RNG.integers(0, 3, (4, *SHAPE[:3])).astype(np.uint8)
TARGETS = RNG.normal(size=(4, 3)).astype(np.float32)


def csv(path, targets=TARGETS):
    lines = ["omega_m,sigma_8,n_s", *(",".join(map(repr, row)) for row in targets.tolist())]
    path.write_text("\n".join(lines) + "\n")
    return str(path)


def hdf5(path, **arrays):
    with h5py.File(path, "w") as file:
        for name, array in arrays.items():
            file[name] = array
    return str(path)


def nifti(path, array):
    nibabel.save(nibabel.Nifti1Image(array, np.eye(4)), path)
    return str(path)


def numpy(path, array):
    np.save(path, array)
    return str(path)


def stored(directory):
    """Raw images and labels or targets, (train, test)."""
    volumes = data.load_volumes(directory)
    mean, deviation = np.array(volumes.manifest.mean), np.array(volumes.manifest.deviation)
    found = []
    for make, count in (
        (lambda: volumes.train_input_fn(volumes.train_size, 1), volumes.train_size),
        (lambda: volumes.test_input_fn(max(volumes.test_size, 1)), volumes.test_size),
    ):
        if count:
            ((image, _, label),) = read_batches(make)
            if not volumes.classes:
                label = label * volumes.manifest.target_deviation + volumes.manifest.target_mean
            found.append((image * deviation + mean, label))
    return found


def assert_holds(found, images, labels):
    """The same volumes, in whichever order."""
    order = [int(np.abs(images - image).max((1, 2, 3, 4)).argmin()) for image in found[0]]
    assert sorted(order) == list(range(len(images)))
    np.testing.assert_allclose(found[0], images[order], atol=1e-3)
    np.testing.assert_allclose(found[1], labels[order], atol=1e-3)


@pytest.fixture
def sources(tmp_path):
    return {
        "one HDF5 file": ([hdf5(tmp_path / "a.h5", full=IMAGES, unitPar=TARGETS)], Options(targets="unitPar", test=1)),
        "an HDF5 file each": (
            [hdf5(tmp_path / f"{i}.hdf5", full=IMAGES[i], unitPar=TARGETS[i]) for i in range(4)],
            Options(targets="unitPar", test=1),
        ),
        "other axes": (
            [hdf5(tmp_path / "b.h5", **{"x/y": IMAGES.transpose(3, 4, 0, 2, 1), "z": IMAGES})],
            Options(key="x/y", axes="WCNHD", targets=csv(tmp_path / "b.csv"), test=1),
        ),
        "npy": ([numpy(tmp_path / "c.npy", IMAGES)], Options(targets=csv(tmp_path / "c.csv"), test=1)),
        "big-endian": (
            [numpy(tmp_path / "d.npy", IMAGES.astype(">f8"))],
            Options(targets=csv(tmp_path / "d.csv"), test=1),
        ),
    }


@parametrize(
    "name", ["one HDF5 file", "an HDF5 file each", "other axes", "npy", "big-endian"], first=["other axes", "npy"]
)
def test_volumes_with_targets(tmp_path, sources, name, monkeypatch):
    monkeypatch.setattr(convert_lib, "_BLOCK_BYTES", 300)  # three planes of int16
    paths, options = sources[name]
    manifest = convert(tmp_path / "set", paths, options)
    assert (manifest.train_size, manifest.test_size, manifest.planes.shape) == (3, 1, SHAPE)
    assert manifest.planes.dtype == ("float32" if name == "big-endian" else "int16")
    assert len(manifest.planes.targets) == 3
    train, test = stored(tmp_path / "set")
    assert_holds(train, IMAGES[:3], TARGETS[:3])
    assert_holds(test, IMAGES[3:], TARGETS[3:])


def test_a_table_of_a_spreadsheet_begins_with_a_mark(tmp_path):
    table = pathlib.Path(csv(tmp_path / "a.csv"))
    table.write_bytes(b"\xef\xbb\xbf" + table.read_bytes())
    manifest = convert(tmp_path / "set", [numpy(tmp_path / "a.npy", IMAGES)], Options(targets=str(table)))
    assert manifest.planes.targets == ("omega_m", "sigma_8", "n_s")


def test_volumes_with_labels(tmp_path):
    path = str(tmp_path / "a.npz")
    np.savez(path, image=IMAGES, label=LABELS)
    convert(tmp_path / "one", [path], Options(key="image", labels=("label",), test=1))
    images = [nifti(tmp_path / f"{i}.nii", IMAGES[i, ..., 0].transpose(2, 1, 0)) for i in range(4)]
    labels = [nifti(tmp_path / f"{i}_seg.nii.gz", LABELS[i].transpose(2, 1, 0)) for i in range(4)]
    convert(tmp_path / "two", images, Options(labels=tuple(labels), test=1))
    for directory, channels in (("one", 2), ("two", 1)):
        assert data.load_volumes(tmp_path / directory).classes == 3
        train, test = stored(tmp_path / directory)
        assert_holds(train, IMAGES[:3, ..., :channels], LABELS[:3])
        assert_holds(test, IMAGES[3:, ..., :channels], LABELS[3:])


def test_a_scaled_scan_and_a_threshold(tmp_path):
    scan = RNG.normal(size=(6, 4, 8)).astype(np.float32)
    mask = RNG.uniform(size=(6, 4, 8))
    image = nibabel.Nifti1Image(scan, np.eye(4))
    image.header.set_data_dtype(np.int16)  # nibabel scales it then
    nibabel.save(image, tmp_path / "scan.nii.gz")
    paths = [str(tmp_path / "scan.nii.gz")]
    labels = (nifti(tmp_path / "mask.nii", mask),)
    manifest = convert(tmp_path / "set", paths, Options(labels=labels, threshold=0.5))
    assert (manifest.planes.dtype, manifest.classes) == ("float32", 2)
    ((images, marks),) = stored(tmp_path / "set")
    np.testing.assert_allclose(images[0, ..., 0], scan.transpose(2, 1, 0), atol=1e-3)
    np.testing.assert_array_equal(marks[0], mask.transpose(2, 1, 0) > 0.5)


def test_cubes_inherit_the_targets(tmp_path):
    paths = [hdf5(tmp_path / "a.h5", full=IMAGES, par=TARGETS)]
    manifest = convert(tmp_path / "set", paths, Options(targets="par", cube=(4, 4, 3), test=4))
    assert (manifest.train_size, manifest.test_size) == (12, 4)
    boxes = [(slice(d, d + 4), slice(0, 4), slice(w, w + 3)) for d in (0, 4) for w in (0, 3)]
    cubes = np.stack([image[box] for image in IMAGES for box in boxes])
    targets = TARGETS.repeat(4, 0)
    train, test = stored(tmp_path / "set")
    assert_holds(train, cubes[:12], targets[:12])
    assert_holds(test, cubes[12:], targets[12:])
    with pytest.raises(ValueError, match="--test is 3, which divides the 4 cubes of one volume"):
        convert(tmp_path / "other", paths, Options(targets="par", cube=(4, 4, 3), test=3))


def test_cubes_of_one_scan_lie_in_its_middle(tmp_path):
    images, labels = numpy(tmp_path / "a.npy", IMAGES[0]), numpy(tmp_path / "b.npy", LABELS[0])
    manifest = convert(tmp_path / "set", [images], Options(labels=(labels,), cube=(3, 4, 4), test=1))
    assert (manifest.train_size, manifest.test_size) == (1, 1)
    (train, test) = stored(tmp_path / "set")
    assert_holds(train, IMAGES[:1, 1:4, :, 1:5], LABELS[:1, 1:4, :, 1:5])
    assert_holds(test, IMAGES[:1, 4:7, :, 1:5], LABELS[:1, 4:7, :, 1:5])


def cut_off(path, size):
    with open(path, "rb+") as file:
        file.truncate(size)
    return path


def write_hdf5(path, **made):
    """Writes an HDF5 file by functions of it."""
    with h5py.File(path, "w") as file:
        for name, make in made.items():
            make(file, name)
    return str(path)


def npz(path, array):
    np.savez(path, x=array)
    return str(path)


def zipped(path, name, content):
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr(name, content)
    return str(path)


def cut_within(path, begin, end):
    content = pathlib.Path(path).read_bytes()
    pathlib.Path(path).write_bytes(content[:begin] + content[end:])
    return path


def external(file, name):
    secret = pathlib.Path(file.filename).with_name("secret.txt")
    secret.write_text("x" * IMAGES.nbytes)
    file.create_dataset(name, IMAGES.shape, IMAGES.dtype, external=[(str(secret), 0, IMAGES.nbytes)])


def virtual(file, name):
    other = hdf5(pathlib.Path(file.filename).with_name("other.h5"), x=IMAGES)
    made = h5py.VirtualLayout(IMAGES.shape, IMAGES.dtype)
    made[...] = h5py.VirtualSource(other, "x", IMAGES.shape)
    file.create_virtual_dataset(name, made)


def huge(file, name):
    file.create_dataset(name, (3, 10**6, 10**6, 10**3), "int16", chunks=True)  # of which nothing is stored


def null(file, name):
    file[name] = h5py.Empty("f4")


def with_bytes(path, place, new):
    with open(path, "rb+") as file:
        file.seek(place)
        file.write(new)
    return path


MISTAKES = {
    "n.h5 has no array 'x'; it has none": lambda d: [write_hdf5(d / "n.h5", x=null), "--key=x"],
    "n.h5 has 0 arrays of three axes or more (none)": lambda d: [write_hdf5(d / "n.h5", x=null)],
    "n.h5 has no array 'y' of targets; it has x": lambda d: [
        write_hdf5(d / "n.h5", x=lambda file, name: file.create_dataset(name, data=IMAGES), y=null),
        "--targets=y",
    ],
    "o.h5 has the values of 'x' in other files (an external or virtual data set": lambda d: [
        write_hdf5(d / "o.h5", x=external),
        f"--targets={csv(d / 'o.csv')}",
    ],
    "p.h5 has the values of 'x' in other files (an external or virtual data set": lambda d: [
        write_hdf5(d / "p.h5", x=virtual),
        f"--targets={csv(d / 'p.csv')}",
    ],
    "/set would take 6e+06 GB, where ": lambda d: [
        write_hdf5(d / "s.h5", x=huge, y=lambda file, name: file.create_dataset(name, data=[1.0])),
        "--axes=DHWC",
        "--targets=y",
    ],
    "q.h5 has the values of 'y' in other files": lambda d: [
        write_hdf5(d / "q.h5", x=lambda file, name: file.create_dataset(name, data=IMAGES), y=external),
        "--key=x",
        "--targets=y",
    ],
    "r.nii cannot be read, or is damaged": lambda d: [with_bytes(nifti(d / "r.nii", LABELS[0]), 40, b"\t\x00")],
    "u.csv is not a regular file": lambda d: [
        numpy(d / "u.npy", IMAGES),
        f"--targets={os.mkfifo(d / 'u.csv') or d / 'u.csv'}",
    ],
    "t.csv cannot be read, or is damaged or cut off; it ends at byte 200,000 (field larger": lambda d: [
        numpy(d / "t.npy", IMAGES),
        f"--targets={with_bytes(csv(d / 't.csv'), 0, b'1' * 200000)}",
    ],
    "/no/where.h5 does not exist": lambda d: ["/no/where.h5"],
    "a.txt is of no known format": lambda d: [csv(d / "a.txt")],
    "a.h5 cannot be read, or is damaged or cut off": lambda d: [cut_off(hdf5(d / "a.h5", x=IMAGES), 2000)],
    "b.npy cannot be read, or is damaged or cut off; it ends at byte 2,000": lambda d: [
        cut_off(numpy(d / "b.npy", IMAGES), 2000)
    ],
    "d.nii.gz cannot be read, or is damaged": lambda d: [cut_off(nifti(d / "d.nii.gz", LABELS[0]), 60)],
    "e.npz cannot be read, or is damaged or cut off; it ends at byte 3,": lambda d: [
        with_bytes(npz(d / "e.npz", IMAGES), 500, b"\0\1\2"),
        f"--targets={csv(d / 'e.csv')}",
    ],
    "f.npz cannot be read, or is damaged or cut off; it ends at byte 3,": lambda d: [
        cut_within(npz(d / "f.npz", IMAGES), 300, 330),
        "--key=x",
    ],
    "h.npz cannot be read, or is damaged or cut off; it ends at byte 104 ('x' is not an array)": lambda d: [
        zipped(d / "h.npz", "x", b"text")
    ],
    "has 2 arrays of three axes or more (x, y); name one": lambda d: [hdf5(d / "f.h5", x=IMAGES, y=IMAGES)],
    "has no array 'z'; it has x": lambda d: [hdf5(d / "f.h5", x=IMAGES), "--key=z"],
    "does not fit the axes 'DHW'": lambda d: [g(d), "--axes=DHW"],
    "does not fit the axes ''": lambda d: [g(d, IMAGES[None])],
    "neither --labels and --targets are given": lambda d: [g(d)],
    "both --labels and --targets are given": lambda d: [g(d), labels(d), targets(d)],
    "--labels names 2 files for 1 files": lambda d: [g(d), "--labels", "x", "y"],
    "holds 4 x (8, 4, 5, 1) labels for 4 x (8, 4, 6, 2)": lambda d: [g(d), labels(d, LABELS[..., 1:])],
    "holds labels from 0 to 300": lambda d: [g(d), labels(d, LABELS.astype(np.int64) * 150)],
    "convert sets of one size and type": lambda d: [
        g(d),
        numpy(d / "h.npy", IMAGES[:, 1:]),
        targets(d, np.tile(TARGETS, (2, 1))),
    ],
    "holds a table of 3 x 3; give 3 finite numbers for each of the 4 volumes": lambda d: [
        g(d),
        targets(d, TARGETS[1:]),
    ],
    "i.csv names its columns omega_m, , n_s; give each a name of its own": lambda d: [
        g(d),
        f"--targets={with_bytes(csv(d / 'i.csv'), 8, b' ' * 7)}",
    ],
    "j.csv names its columns omega_m, omega_m, n_s; give each": lambda d: [
        g(d),
        f"--targets={with_bytes(csv(d / 'j.csv'), 0, b'omega_m,omega_m,n_s')}",
    ],
    "g.csv cannot be read, or is damaged": lambda d: [g(d), targets(d, np.array([["a", "b", "c"]]))],
    "holds int64; give one of": lambda d: [g(d, IMAGES.astype(np.int64)), targets(d)],
    "k.npy cannot be read, or is damaged or cut off; it ends at byte ": lambda d: [
        with_bytes(numpy(d / "k.npy", IMAGES), 20, b"(" * 20)
    ],
    "holds values that are not finite in float32, from plane 0 on; mend": lambda d: [g(d, IMAGES * 1e300), targets(d)],
    "holds values that are not finite in float32, from plane 0 on": lambda d: [
        g(d, np.where(IMAGES > 0, np.nan, IMAGES)),
        targets(d),
    ],
    "--cube is (9, 4, 4), but the volumes are (8, 4, 6)": lambda d: [g(d), targets(d), "--cube=9,4,4"],
    "--cube: invalid _cube value: '1,2'": lambda d: [g(d), "--cube=1,2"],
    "--test is 4, but there are 4 volumes": lambda d: [g(d), targets(d), "--test=4"],
}


def g(directory, images=IMAGES):
    return numpy(directory / "g.npy", images)


def labels(directory, array=LABELS):
    return f"--labels={numpy(directory / 'l.npy', array)}"


def targets(directory, array=TARGETS):
    return f"--targets={csv(directory / 'g.csv', array)}"


@pytest.mark.parametrize("message", MISTAKES)
def test_mistakes_are_one_line(tmp_path, capsys, message):
    try:
        code = binary.main(["convert", str(tmp_path / "set"), "--from", *MISTAKES[message](tmp_path)])
    except SystemExit as stop:  # argparse's
        code = stop.code
    said = capsys.readouterr()
    assert code == 2 and said.out == ""
    assert said.err.startswith("error: ") and said.err.count("\n") == 1 and message in said.err
    assert not [path for path in tmp_path.iterdir() if path.is_dir()]


@pytest.mark.parametrize(("package", "name"), [("h5py", "a.h5"), ("nibabel", "a.nii")])
def test_a_package_that_is_not_installed(tmp_path, monkeypatch, package, name):
    monkeypatch.setitem(__import__("sys").modules, package, None)
    (tmp_path / name).write_bytes(b"")
    with pytest.raises(ValueError, match=f"{name} needs the package {package}; pip install"):
        convert(tmp_path / "set", [str(tmp_path / name)])


def test_the_binary(tmp_path, capsys):
    paths = [hdf5(tmp_path / f"{i}.h5", full=IMAGES[i], unitPar=TARGETS[i]) for i in range(4)]
    directory = str(tmp_path / "set")
    assert binary.main(["convert", directory, "--from", *paths, "--targets=unitPar", "--cube=4", "--test=2"]) == 0
    said = capsys.readouterr()
    assert said.out == (
        f"{directory}: 6 training and 2 test volumes of 4 x 4 x 4 x 2, int16, targets unitPar0, unitPar1, unitPar2\n"
    )
    assert said.err == ""  # a bar is for terminals
    assert binary.main(["convert", directory, "--from", *paths, "--targets=unitPar"]) == 2
    assert "set already exists; remove it" in capsys.readouterr().err


def test_an_interrupted_run_leaves_nothing(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(convert_lib, "_blocks", lambda *_: (_ for _ in ()).throw(KeyboardInterrupt))
    paths = [hdf5(tmp_path / "a.h5", full=IMAGES, unitPar=TARGETS)]
    assert binary.main(["convert", str(tmp_path / "set"), "--from", *paths, "--targets=unitPar"]) == 130
    assert [path.name for path in tmp_path.iterdir()] == ["a.h5"]
