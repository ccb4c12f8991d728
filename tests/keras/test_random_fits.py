"""Random models, losses, optimizers, data and callbacks: `mtf_hetero.keras.fit` gives what `model.fit` gives."""

from fit_oracle import PLACES, check
from random_fits import RandomFit
from tiers import parametrize

# Without those of which rounding decides what is compared
SEEDS = [1000, 1002, 1003, 1004, 1005, 1006]


@parametrize("seed", SEEDS, first=[1004])
def test_a_random_training(seed):
    training = RandomFit(seed)
    places = PLACES[seed % 2 : seed % 2 + 1]
    check(training.make, *training.data, callbacks=training.callbacks, places=places, **training.options)
