"""Reading on workers: images per second where the training process makes the batches, and where workers read them.

    python -m benchmarks.run reading

A network of one convolution, whose steps take less time than their images, trains on two workers, a core each, on
images of 224 x 224. The links of the workers are this machine's loopback, or as slow as the kernel makes them.

* files: PNG files, which each worker decodes for itself.
* sent: the same images, of which this process decodes each batch and sends the parts, as a generator's.
* arrays: the decoded images in memory, as uint8, which workers get once; the epochs after that are measured.
* alone: one of the workers, which decodes all files itself.

Time: about seven minutes on two cores. Expected: with files, the workers are together faster than one core alone on
each link, as no image passes through this process; what is sent is bounded by the link.
"""

import dataclasses
import functools
from collections.abc import Mapping
from typing import Any, ClassVar

from benchmarks.child import Child
from benchmarks.harness import Case, Part, chief, compare_losses, take_turns
from benchmarks.rows import Writer, summarise

_TARGET = "benchmarks.frameworks.reading:Reading"
FILES, SENT, ARRAYS, ALONE = "files", "sent", "arrays", "alone"
LOOPBACK = 0


@dataclasses.dataclass(frozen=True)
class Reading(Case):
    """The case."""

    name: ClassVar[str] = "reading"
    summary: ClassVar[str] = "images per second, by who reads the examples"
    minutes: ClassVar[float] = 7
    small: ClassVar[Mapping[str, Any]] = {
        "links": (LOOPBACK,),
        "pixels": 32,
        "images": 32,
        "batch_size": 8,
        "repeats": 1,
    }

    repeats: int = 3  # trainings of each way
    epochs: int = 3  # of a training that are measured
    links: tuple[int, ...] = (LOOPBACK, 1000, 100)  # megabits per second
    ways: tuple[str, ...] = (ALONE, SENT, FILES, ARRAYS)
    pixels: int = 224
    images: int = 512
    batch_size: int = 64
    fractions: tuple[float, ...] = (1.0, 1.0)  # cores of the workers

    def parts(self) -> Mapping[str, Part]:
        """Return a part for each link."""
        return {f"convolution/{link or 'loopback'}": functools.partial(self._measure, link) for link in self.links}

    def _measure(self, link: int, writer: Writer, bar: Any) -> None:
        settings = {"pixels": self.pixels, "images": self.images, "batch_size": self.batch_size, "link": link}
        with chief(_TARGET, True, **settings, fractions=self.fractions, seed=self.seed) as child:
            ways = {way: functools.partial(self._train, child, way) for way in self.ways}
            found = take_turns(ways, self.repeats, self.seed)
        for way, trainings in found.items():
            seconds = [each for one in trainings for each in one["seconds"][-self.epochs :]]
            row = {"network": "convolution", **settings, "way": way, "devices": list(self.fractions)}
            row |= {"images_per_second": summarise([self.images / each for each in seconds])}
            row |= {"sent_bytes": trainings[-1]["sent_bytes"][-1], "losses": trainings[0]["losses"][: self.epochs]}
            row |= compare_losses(row["losses"], found[ALONE][0]["losses"][: self.epochs])
            writer.write(f"convolution/{link or 'loopback'}/{way}", self.columns(**row))
            bar.update()

    def _train(self, child: Child, way: str) -> dict[str, Any]:
        """Train with some epochs more: the first one builds the step, and arrays are sent in the first ones."""
        return child.call("train", way=way, epochs=self.epochs + (3 if way == ARRAYS else 1))

    @property
    def units(self) -> int:
        return len(self.ways)
