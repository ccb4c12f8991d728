"""Makes small data sets to be damaged: images by the name of mnist, and volumes.

python -m benchmarks.faults.sets DIRECTORY
"""

import pathlib
import struct
import sys

import numpy as np

from mtf_hetero.data.preparing.cosmology import write_universes
from mtf_hetero.data.preparing.prepare import prepare

COUNTS = {"train": 200, "test": 40}
_FILES = {"train": "train", "test": "t10k"}  # as MNIST's own are called


def main(directory: pathlib.Path) -> None:
    """Write DIRECTORY/images/mnist and DIRECTORY/volumes."""
    rng = np.random.default_rng(1)
    source = directory / "source"
    source.mkdir(parents=True)
    for split, count in COUNTS.items():
        images = rng.integers(0, 256, (count, 28, 28), dtype=np.uint8)
        labels = rng.integers(0, 10, count, dtype=np.uint8)
        head = struct.pack(">IIII", 2051, count, 28, 28)
        (source / f"{_FILES[split]}-images-idx3-ubyte").write_bytes(head + images.tobytes())
        (source / f"{_FILES[split]}-labels-idx1-ubyte").write_bytes(struct.pack(">II", 2049, count) + labels.tobytes())
    prepare("mnist", str(source), str(directory / "images"), counts=COUNTS)
    write_universes(str(directory / "volumes"), train=4, test=2, size=16)


if __name__ == "__main__":
    main(pathlib.Path(sys.argv[1]))
