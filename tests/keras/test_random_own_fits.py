"""Random train steps, layers and several outputs of users' own: `keras.fit` gives what `model.fit` gives."""

from fit_oracle import PLACES, check
from random_own_fits import RandomOwnFit
from tiers import parametrize

# Together they have all ways to train and all layers; rounding decides nothing
SEEDS = [103, 104, 105, 110, 112, 113, 119, 124, 125, 130, 151]


@parametrize("seed", SEEDS, first=[110])
def test_a_random_training(seed):
    training = RandomOwnFit(seed)
    check(training.make, *training.data, places=PLACES[seed % 2 : seed % 2 + 1], **training.options)
