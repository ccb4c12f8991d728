"""Keras models: every model of keras.applications against Keras, in outputs, gradients and three training steps.

    python -m benchmarks.run keras_models

Each model is made by its constructor without downloads, for the smallest images that it accepts. Keras and the model's
builder (`mtf_hetero.keras.build`) have the same weights and images. They infer, train three steps of stochastic
gradient descent with momentum, and infer again. The builder does so on one device, with the batch and with the filters
split 4:2:1 over three processors, and with a plan for three processors of such speeds.

"Keras again" is Keras itself on images of which each number is the next larger one. It shows the effect of rounding
alone. All is in float64, because each step of a network with batch norm multiplies the rounding of float32 a
thousandfold; inference on one device is also compared in float32. The two largest ConvNeXt have no batch norm and are
compared in float32 only. Dropout is off, because each side has random numbers of its own.

Time: three hours on two cores; `--only=ResNet50/` measures one model. Expected: outputs within 1e-4, gradients, weights
and moving averages within 1e-3, on every layout.
"""

import contextlib
import dataclasses
import itertools
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, ClassVar

from benchmarks.child import Child
from benchmarks.harness import Case, progress
from benchmarks.rows import Writer

_TARGET = "benchmarks.frameworks.keras_twin:Twin"
ONE_DEVICE, PLANNED, AGAIN = "one device", "planned", "Keras again"
LAYOUTS = (ONE_DEVICE, "batch", "filters", PLANNED)
LARGEST = ("ConvNeXtLarge", "ConvNeXtXLarge")  # that take more than 24 GB in float64; they have no batch norm
MODELS = (
    *("VGG16", "VGG19", "ResNet50", "ResNet101", "ResNet152", "ResNet50V2", "ResNet101V2", "ResNet152V2"),
    *("MobileNet", "MobileNetV2", "MobileNetV3Small", "MobileNetV3Large", "DenseNet121", "DenseNet169", "DenseNet201"),
    *("InceptionV3", "InceptionResNetV2", "Xception", "NASNetMobile", "NASNetLarge"),
    *(f"EfficientNetB{size}" for size in range(8)),
    *(f"EfficientNetV2{size}" for size in ("B0", "B1", "B2", "B3", "S", "M", "L")),
    *(f"ConvNeXt{size}" for size in ("Tiny", "Small", "Base", "Large", "XLarge")),
)


@dataclasses.dataclass(frozen=True)
class KerasModels(Case):
    """The case."""

    name: ClassVar[str] = "keras_models"
    summary: ClassVar[str] = "models of keras.applications: differences from Keras"
    minutes: ClassVar[float] = 180
    small: ClassVar[Mapping[str, Any]] = {"examples": 4, "steps": 1, "models": ("MobileNet",)}

    models: tuple[str, ...] = MODELS
    shares: tuple[float, ...] = (4.0, 2.0, 1.0)
    examples: int = 8  # images of a step
    steps: int = 3
    limit_seconds: float = 1800.0  # how long one measurement may take

    def variants(self) -> tuple[str, ...]:
        return tuple(f"{model}/{layout}" for model, layout in itertools.product(self.models, (*LAYOUTS, AGAIN)))

    def measure(self, writer: Writer, variants: Sequence[str]) -> None:
        with progress(len(variants), self.unit) as bar:
            for model, of_model in itertools.groupby(variants, lambda variant: variant.partition("/")[0]):
                self._measure(model, [variant.partition("/")[2] for variant in of_model], writer, bar)

    def _measure(self, model: str, layouts: Sequence[str], writer: Writer, bar: Any) -> None:
        """Layouts of a model, of which Keras takes its steps once."""
        dtype = "float32" if model in LARGEST else "float64"
        with self._twin(model, dtype, self.steps) as twin:
            for layout in layouts:
                bar.set_description(f"{model}/{layout}")
                devices = [f"cpu:{index}" for index in range(1 if layout in (ONE_DEVICE, AGAIN) else len(self.shares))]
                about = {"model": model, "layout": layout, "dtype": dtype, "shares": self.shares, "devices": devices}
                values = self.columns(repeats=1, warmup=0, **about)
                try:
                    found = self._compare(twin, layout)
                    if layout == ONE_DEVICE and dtype == "float64":
                        with self._twin(model, "float32", 0) as inferring:
                            found["float32"] = self._compare(inferring, layout)["output"]
                except Exception as error:
                    writer.write(f"{model}/{layout}", {**values, "failed": str(error)})
                    raise
                writer.write(f"{model}/{layout}", {**values, **found})
                bar.update()

    @contextlib.contextmanager
    def _twin(self, model: str, dtype: str, steps: int) -> Iterator[Child]:
        """Give a child for a model, and a directory for Keras's values, gigabytes for the largest models."""
        arguments = {"name": model, "examples": self.examples, "dtype": dtype, "steps": steps, "seed": self.seed}
        with tempfile.TemporaryDirectory() as directory, Child(_TARGET, {**arguments, "directory": directory}) as child:
            yield child

    def _compare(self, twin: Child, layout: str) -> dict[str, Any]:
        shares: Sequence[float] = self.shares
        found = twin.call("compare", layout=layout, shares=shares, timeout_seconds=self.limit_seconds)
        return {**twin.call("facts"), **found}
