"""Keras training: step times of model.fit, interpreted and compiled, and of mtf_hetero.keras.fit.

    python -m benchmarks.run keras_fit

Models of keras.applications train on images of 64 x 64, with stochastic gradient descent and momentum; an LSTM and a
Transformer of 6 layers train on sequences, with Adam.

* one device: Keras without and with XLA (jit_compile), and mtf_hetero on the same cores. XLA is left out for sequences.
* workers: Keras on one core, and mtf_hetero on a worker of that core and one of a third of another, with the layout
  that `layout="auto"` finds.
* first step: the time from the call of `fit` until its first step is done, in a new process: by Keras, and by
  mtf_hetero on one device and with its batch over three devices of this machine.
* lengths: two epochs of batches of sixty lengths, in the same ways.
* calls: an MLP of 6 layers of 256, a Transformer of 4 layers of 128 and an LSTM with 1, 4 and 16 steps per call
  (Keras's `steps_per_execution`), on one device and on workers, over which the batch is split by fixed speeds.
* auto: the time until the first step with `layout="auto"` on two unequal workers, for a training of many steps and for
  one of few.

All ways of a setting begin with the same weights and images, and run in turns, step by step, each in its own process.

Time: about half an hour on two cores. `--only=ResNet50/` measures one model, `--only="/one device"` the steps on one
device in eight minutes, `--only="/first step"` the first steps in ten, `--only=/lengths` two minutes, `--only=/calls`
six, `--only=/auto` five. Expected: mtf_hetero is at least as fast as Keras on one device, and faster than Keras on the
fast core where the planner splits the model. Its first step is done after at most 1.3 times the time of Keras on one
device, and 2 times on three. `auto` needs 30 seconds at most, and a few if a split gains nothing.
"""

import contextlib
import dataclasses
import functools
import itertools
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

from benchmarks.child import Child
from benchmarks.harness import CHECKED_STEPS, Case, Part, chief, compare_losses, take_turns
from benchmarks.rows import Writer, summarise

_TARGET = "benchmarks.frameworks.keras_fit:KerasFit"
KERAS, COMPILED, OURS = "Keras", "Keras, compiled", "mtf_hetero"
ONE_DEVICE, WORKERS, FIRST_STEP = "one device", "workers", "first step"
LENGTHS, AUTO, CALLS = "lengths", "auto", "calls"
_LENGTHS_TARGET = "benchmarks.frameworks.keras_shapes:Shapes"
_AUTO_TARGET = "benchmarks.frameworks.keras_auto:Auto"
_FIRST_TARGET = "benchmarks.frameworks.keras_first_step:FirstStep"
DEVICES_OF = {  # way: the devices over which mtf_hetero divides the batch; None: Keras
    KERAS: None,
    "mtf_hetero, one device": ["cpu:0"],
    "mtf_hetero, batch over three": ["cpu:0", "cpu:1", "cpu:2"],
}


@dataclasses.dataclass(frozen=True)
class KerasFit(Case):
    """The case."""

    name: ClassVar[str] = "keras_fit"
    summary: ClassVar[str] = "step times of Keras's fit and of mtf_hetero.keras.fit"
    minutes: ClassVar[float] = 30
    small: ClassVar[Mapping[str, Any]] = {
        "networks": ("MobileNet",),
        "pixels": 32,
        "batch_size": 4,
        "repeats": 2,
        "settings": (ONE_DEVICE,),
        "in_calls": (("LSTM", 1),),
        "steps_per_call": (1, 2),
        "first_networks": ("Transformer",),
        "sequences": (),
        "layers": 1,
        "first_batch_size": 6,
        "first_repeats": 1,
        "fits": (KERAS, "mtf_hetero, batch over three"),
        "lengths": 2,
        "auto_networks": (("LeNet", 8),),
        "auto_steps": (3,),
    }

    repeats: int = 9  # steps of each way
    networks: tuple[str, ...] = ("ResNet50", "MobileNetV2", "EfficientNetB0")
    sequences: tuple[str, ...] = ("Transformer", "LSTM")
    settings: tuple[str, ...] = (ONE_DEVICE, WORKERS)
    pixels: int = 64
    batch_size: int = 32  # images of a step
    fractions: tuple[float, ...] = (1.0, 0.33)  # cores of each worker
    first_networks: tuple[str, ...] = ("ResNet50", "MobileNetV2", "EfficientNetB0", "Transformer", "LSTM")
    layers: int = 6  # of the Transformer
    first_batch_size: int = 16  # examples of the first step
    first_repeats: int = 3  # processes of each way
    fits: tuple[str, ...] = tuple(DEVICES_OF)  # ways of first steps and lengths
    lengths: int = 60  # of sequences
    in_calls: tuple[tuple[str, int], ...] = (("MLP", 6), ("Transformer of 128", 4), ("LSTM", 1))  # and their layers
    call_repeats: int = 5  # times the largest of these numbers of steps
    steps_per_call: tuple[int, ...] = (1, 4, 16)
    speeds: tuple[float, ...] = (3.0, 1.0)  # by which the batch of a call's steps is split over the workers
    auto_networks: tuple[tuple[str, int], ...] = (("LeNet", 64), ("VGG-11", 256))  # and images of a step
    auto_steps: tuple[int, ...] = (10_000, 10)  # of the training that is announced

    def parts(self) -> Mapping[str, Part]:
        """{variant: what measures it}."""
        part = functools.partial
        models = itertools.product(self.networks + self.sequences, self.settings)
        calls = itertools.product(self.in_calls, self.settings)
        return {
            **{f"{network}/{setting}": part(self._measure, network, setting) for network, setting in models},
            **{f"{network}/{FIRST_STEP}": part(self._measure_first, network) for network in self.first_networks},
            f"Conv1D/{LENGTHS}": self._measure_lengths,
            **{
                f"{network}/{CALLS}/{setting}": part(self._measure_calls, network, layers, setting)
                for (network, layers), setting in calls
            },
            **{f"{network}/{AUTO}": part(self._measure_auto, network, size) for network, size in self.auto_networks},
        }

    def _measure(self, network: str, setting: str, writer: Writer, _: Any) -> None:
        common = {"network": network, "pixels": self.pixels, "batch_size": self.batch_size, "seed": self.seed}
        common["layers"] = self.layers
        if setting == ONE_DEVICE:
            options: dict[str, dict[str, Any]] = {KERAS: {}, OURS: {}}
            options |= {} if network in self.sequences else {COMPILED: {}}
        else:
            options = {KERAS: {"cores": [0]}, OURS: {"fractions": list(self.fractions)}}
        with contextlib.ExitStack() as stack:
            children = {
                way: stack.enter_context(chief(_TARGET, way=way, **common, **own)) for way, own in options.items()
            }
            losses = {way: child.call("run", steps=CHECKED_STEPS)["losses"] for way, child in children.items()}
            ways = {way: functools.partial(child.call, "run", steps=1) for way, child in children.items()}
            turns = take_turns(ways, self.repeats, self.seed)
        about = {**self.columns(warmup=CHECKED_STEPS, steps=1), **common, "setting": setting}
        about |= {"devices": ["cpu:0"], "fractions": list(self.fractions) if setting == WORKERS else None}
        for way, results in turns.items():
            values: dict[str, Any] = {"way": way, "layout": "auto" if setting == WORKERS and way == OURS else None}
            values |= _compare(results, turns[KERAS], "_seconds_per_step")
            # the first one: a step of batch norms on so few pixels multiplies what float32 rounds
            values |= {"losses": losses[way], **compare_losses(losses[way][:1], losses[KERAS][:1])}
            writer.write(f"{network}/{setting}/{way}", {**about, **values})

    def _measure_calls(self, network: str, layers: int, setting: str, writer: Writer, _: Any) -> None:
        common = {"network": network, "layers": layers, "batch_size": self.batch_size, "seed": self.seed, "pixels": 0}
        options: dict[str, dict[str, Any]] = {KERAS: {}, OURS: {}}
        if setting == WORKERS:
            own = {"fractions": list(self.fractions), "list_speed": list(self.speeds)}
            options = {KERAS: {"cores": [0]}, OURS: own}
        most = max(self.steps_per_call)
        with contextlib.ExitStack() as stack:
            children = {
                (way, steps): stack.enter_context(chief(_TARGET, way=way, steps_per_call=steps, **common, **own))
                for way, own in options.items()
                for steps in self.steps_per_call
            }
            # the first call is taken step by step, the next one makes the row
            losses = {way: child.call("run", steps=CHECKED_STEPS + 1)["losses"] for way, child in children.items()}
            ways = {way: functools.partial(child.call, "run", steps=most // way[1]) for way, child in children.items()}
            turns = take_turns(ways, self.call_repeats, self.seed)
        about = self.columns(warmup=CHECKED_STEPS + 1, steps=most, repeats=self.call_repeats)
        about |= {**common, "setting": CALLS, "devices": ["cpu:0"]}
        about |= {"where": setting, "fractions": list(self.fractions) if setting == WORKERS else None}
        for (way, steps), results in turns.items():
            values = {"way": way, "steps_per_call": steps, "shares": list(self.speeds) if setting == WORKERS else None}
            values["layout"] = None if way == KERAS else "batch"
            values |= _compare(results, turns[KERAS, steps], "_seconds_per_step", ["wall"], most)
            found, expected = losses[way, steps], losses[KERAS, steps]
            values |= {"losses": found, **compare_losses(found[:1], expected[:1])}
            writer.write(f"{network}/{CALLS}/{setting}/{way}, {steps}", {**about, **values})

    def _measure_first(self, network: str, writer: Writer, _: Any) -> None:
        common = {"network": network, "batch_size": self.first_batch_size, "pixels": self.pixels, "seed": self.seed}
        self._measure_whole(network, FIRST_STEP, _FIRST_TARGET, {**common, "layers": self.layers}, writer)

    def _measure_lengths(self, writer: Writer, _: Any) -> None:
        common = {"batch_size": 8, "lengths": self.lengths, "seed": self.seed}
        self._measure_whole("Conv1D", LENGTHS, _LENGTHS_TARGET, common, writer)

    def _measure_auto(self, network: str, batch_size: int, writer: Writer, _: Any) -> None:
        for steps in self.auto_steps:
            common = {"network": network, "batch_size": batch_size, "steps": steps, "seed": self.seed}
            common["fractions"] = list(self.fractions)
            with chief(_AUTO_TARGET, **common) as child:
                found = child.call("run")
            about = self.columns(warmup=0, repeats=1, shares=None)
            about |= {"way": f"auto, {steps} steps", "layout": "auto", "devices": ["worker:0/cpu:0", "worker:1/cpu:0"]}
            values = {"setting": AUTO, "said": found["said"], "wall_seconds": summarise([found["wall_seconds"]])}
            writer.write(f"{network}/{AUTO}/{steps}", {**about, **common, **values})

    def _measure_whole(
        self, network: str, setting: str, target: str, common: Mapping[str, Any], writer: Writer
    ) -> None:
        """Measures what one call of fit takes in a process of its own, by each way in turns."""

        def measure(way: str) -> dict[str, Any]:
            with Child(target, {"way": way, **common}) as child:
                return child.call("run")

        ways = {way: functools.partial(measure, way) for way in self.fits}
        turns = take_turns(ways, self.first_repeats, self.seed)
        about = {**self.columns(warmup=0, steps=1, repeats=self.first_repeats), **common, "setting": setting}
        about["network"] = network
        for way, results in turns.items():
            devices = DEVICES_OF[way]
            values: dict[str, Any] = {"way": way, "layout": None if devices is None else "batch"}
            values |= _compare(results, turns[KERAS], "_seconds")
            values |= {"devices": devices or ["cpu:0"], "losses": results[0]["losses"]}
            values |= compare_losses(results[0]["losses"], turns[KERAS][0]["losses"])
            if "peak_bytes" in results[0]:
                values["peak_bytes"] = summarise(result["peak_bytes"] for result in results)
            writer.write(f"{network}/{setting}/{way}", {**about, **values})


def _compare(
    results: Sequence[Mapping[str, Any]],
    of_keras: Sequence[Mapping[str, Any]],
    ending: str,
    clocks: Sequence[str] = ("wall", "cpu"),
    steps: int = 1,
) -> dict[str, Any]:
    """Return the columns on the seconds of so many steps, and on their ratio to Keras's of the same turn."""
    values = {}
    for clock in clocks:
        seconds, theirs = ([one[f"{clock}_seconds"] / steps for one in each] for each in (results, of_keras))
        values[f"{clock}{ending}"] = summarise(seconds)
        values[f"{clock}_ratio"] = summarise(a / b for a, b in zip(seconds, theirs, strict=True))
    return values
