"""The oracle over random programs on random layouts: none gives a wrong result, and few are refused."""

from random_checks import REFUSED, refusal
from tiers import parametrize

CHUNKS, PER_CHUNK = range(2, 40, 5), 5


@parametrize("chunk", CHUNKS, first=[37])
def test_random_programs(chunk):
    for seed in range(chunk * PER_CHUNK, (chunk + 1) * PER_CHUNK):
        why = refusal(seed)
        assert (why or "").startswith(REFUSED.get(seed, "")), f"seed {seed} is refused otherwise than it was: {why}"
        assert (why is None) == (seed not in REFUSED), f"seed {seed} is refused: {why}"
