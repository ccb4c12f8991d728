"""Reading on workers: images per second where the training process makes the batches, and where workers read them.

    python -m benchmarks.run reading [--only=convolution/loopback]

A network of one convolution, whose steps take less time than their images, and ResNet-50 train on two workers, a core
each, on images of 224 x 224. The links of the workers are this machine's loopback, or as slow as the kernel makes them.

* files: PNG files, which each worker decodes for itself.
* sent: the same images, of which this process decodes each batch and sends the parts, as a generator's.
* arrays: the decoded images in memory, as uint8, which workers get once; the epochs after that are measured.
* alone: one of the workers, which decodes all files itself.
* mirrored: MultiWorkerMirroredStrategy of TensorFlow, in two processes under the same limits. Each reads half of each
  batch by tf.data. Keras 3 refuses the strategy in `fit`, so they run the loop of its guide, and read ahead.
* DDP: DistributedDataParallel of PyTorch, in two such processes. The DataLoader of each decodes in the process itself,
  or in one beside it ("loaders").

Time: about 25 minutes on two cores, seven without ResNet-50. Expected: with files, the workers are together faster than
one core alone on each link, as no image passes through this process; what is sent is bounded by the link.
"""

import contextlib
import dataclasses
import functools
import tempfile
from collections.abc import Callable, Mapping
from typing import Any, ClassVar

from benchmarks.child import ChildError
from benchmarks.harness import Case, Part, chief, compare_losses, take_turns
from benchmarks.rows import Writer, summarise

_TARGET = "benchmarks.frameworks.reading:Reading"
_RANKS = "benchmarks.frameworks.ranks:Ranks"
FILES, SENT, ARRAYS, ALONE = "files", "sent", "arrays", "alone"
MIRRORED, DDP, LOADERS = "mirrored", "DDP", "DDP, loaders"
_MIRRORED_RANK, _TORCH_RANK = "benchmarks.frameworks.reading_mirrored:Rank", "benchmarks.frameworks.reading_torch:Rank"
_PEERS: Mapping[str, tuple[str, Mapping[str, Any]]] = {  # way: the class of its ranks, and what they are told
    MIRRORED: (_MIRRORED_RANK, {}),
    DDP: (_TORCH_RANK, {"loaders": 0}),
    LOADERS: (_TORCH_RANK, {"loaders": 1}),
}
CONVOLUTION = "convolution"


@dataclasses.dataclass(frozen=True)
class Setting:
    """A network, its images, and the links of the workers."""

    network: str
    link: int  # megabits per second; 0: the loopback
    images: int
    batch_size: int
    ways: tuple[str, ...] = (ALONE, SENT, FILES, ARRAYS)  # beside the peers

    @property
    def name(self) -> str:
        """The variant's name."""
        return f"{self.network}/{self.link or 'loopback'}"


_DEEP: Any = {"images": 32, "batch_size": 16, "ways": (ALONE, FILES)}
SETTINGS = (
    *(Setting(CONVOLUTION, link, images=512, batch_size=64) for link in (0, 1000, 100)),
    *(Setting("ResNet50", link, **_DEEP) for link in (0, 1000)),
)


@dataclasses.dataclass(frozen=True)
class Reading(Case):
    """The case."""

    name: ClassVar[str] = "reading"
    summary: ClassVar[str] = "images per second, by who reads the examples"
    minutes: ClassVar[float] = 25
    small: ClassVar[Mapping[str, Any]] = {
        "settings": (Setting(CONVOLUTION, 0, images=32, batch_size=8),),
        "pixels": 32,
        "repeats": 1,
    }

    repeats: int = 3  # trainings of each way
    epochs: int = 3  # of a training that are measured
    settings: tuple[Setting, ...] = SETTINGS
    pixels: int = 224
    fractions: tuple[float, ...] = (1.0, 1.0)  # cores of the workers

    def parts(self) -> Mapping[str, Part]:
        """Return a part for each network and link."""
        return {setting.name: functools.partial(self._measure, setting) for setting in self.settings}

    def _measure(self, setting: Setting, writer: Writer, bar: Any) -> None:
        about = {**dataclasses.asdict(setting), "pixels": self.pixels}
        del about["ways"]
        ways, failed = dict[str, Callable[..., dict[str, Any]]](), dict[str, str]()
        with contextlib.ExitStack() as stack:
            folder = stack.enter_context(tempfile.TemporaryDirectory(prefix="reading_"))
            common = {**about, "fractions": self.fractions, "seed": self.seed, "folder": folder}
            ours = stack.enter_context(chief(_TARGET, True, **common))
            for way in setting.ways:
                epochs = self.epochs + (3 if way == ARRAYS else 1)  # arrays are sent in the first ones
                ways[way] = functools.partial(ours.call, "run", way=way, epochs=epochs)
            for target in (_MIRRORED_RANK, _TORCH_RANK):
                told = {way: options for way, (of_way, options) in _PEERS.items() if of_way == target}
                try:
                    ranks = stack.enter_context(chief(_RANKS, True, target=target, **common))
                except ChildError as error:
                    failed |= dict.fromkeys(told, str(error))
                else:
                    run = functools.partial(ranks.call, "run", epochs=self.epochs + 1)
                    ways |= {way: functools.partial(run, **options) for way, options in told.items()}
            found = take_turns(ways, self.repeats, self.seed)
        for way in (*setting.ways, *_PEERS):
            row = {**about, "way": way, "devices": list(self.fractions), "layout": "batch"}
            if way in failed:
                row["failed"] = failed[way]
            else:
                row |= self._summarise(found[way], setting)
            if way in found and setting.network == CONVOLUTION:
                row |= compare_losses(row["losses"], found[ALONE][0]["losses"][: self.epochs])
            writer.write(f"{setting.name}/{way}", self.columns(**row))
            bar.update()

    def _summarise(self, trainings: list[dict[str, Any]], setting: Setting) -> dict[str, Any]:
        seconds = [each for one in trainings for each in one["seconds"][-self.epochs :]]
        return {
            "images_per_second": summarise([setting.images / each for each in seconds]),
            "sent_bytes": trainings[-1]["sent_bytes"][-1],
            "losses": trainings[0]["losses"][: self.epochs],
        }

    @property
    def units(self) -> int:
        return max(len(setting.ways) for setting in self.settings) + len(_PEERS)
