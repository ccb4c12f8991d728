"""Networks and sets of volumes that are trained in no time."""

import functools

import numpy as np

from mtf_hetero import data
from mtf_hetero.models import MODELS

TOYS = {
    "cosmoflow_small": functools.partial(MODELS["cosmoflow_small"].build, filters=(2, 3, 2, 3), head=(5,)),
    "unet3d_small": functools.partial(MODELS["unet3d"].build, down=((2, 3),), bottom=(3, 4), up=((2, 3),)),
}


def labelled(directory, size=8, train=5, test=3):
    """Cubes with a ball, or two, that is brighter than what is around it."""
    rng = np.random.default_rng(3)
    planes = data.Planes((size, size, size, 1), "int16", labelled=True)
    with data.write_volumes(directory, planes, provenance={}, volumes_per_file=3) as writer:
        for number in range(train + test):
            places = np.stack(np.meshgrid(*[np.arange(size)] * 3, indexing="ij"))
            labels = np.zeros([size] * 3, int)
            for mark in (1, 2):
                centre = rng.uniform(1, size - 1, [3, 1, 1, 1])
                labels[np.square(places - centre).sum(0) < (size / 4) ** 2] = mark
            image = 100 * labels + rng.normal(0, 20, labels.shape)
            writer.add("train" if number < train else "test", [(image[..., None], labels)])
    return directory
