"""Numbers that a user gives for each device or processor, parsed once."""

import dataclasses
from collections.abc import Mapping, Sequence


@dataclasses.dataclass(frozen=True)
class Numbers:
    """A number for each processor of a mesh axis: speeds, shares or gigabytes.

    Args:
      of_axis: {mesh axis: numbers}.
      given: what the user wrote, for messages.
    """

    of_axis: Mapping[str, tuple[float, ...]]
    given: object = dataclasses.field(compare=False)

    def __repr__(self) -> str:
        return repr(self.given)

    @property
    def single(self) -> tuple[float, ...]:
        """The numbers of the only axis."""
        (numbers,) = self.of_axis.values()
        return numbers

    def only(self, places: Sequence[int]) -> "Numbers":
        """Return the numbers of some processors of the only axis."""
        left = {axis: tuple(numbers[place] for place in places) for axis, numbers in self.of_axis.items()}
        return Numbers(left, ";".join(f"{axis}:{','.join(map(str, numbers))}" for axis, numbers in left.items()))
