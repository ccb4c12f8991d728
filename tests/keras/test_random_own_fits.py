"""Random train steps, layers and several outputs of users' own: `keras.fit` gives what `model.fit` gives."""

from fit_oracle import PLACES, check
from random_own_fits import RandomOwnFit
from tiers import parametrize

SEEDS = [100, 101, 102, 103, 105, 108, 109, 114, 115, 119, 124, 125, 1003]


@parametrize("seed", SEEDS, first=[101, 109, 125])
def test_a_random_training(seed):
    training = RandomOwnFit(seed)
    check(training.make, *training.data, places=PLACES[seed % 2 : seed % 2 + 1], **training.options)
