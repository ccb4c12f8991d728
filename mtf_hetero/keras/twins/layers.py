"""Plain Keras layers, of each of which it is known which mtf variables its weights are."""

from collections.abc import Sequence

from mtf_hetero.keras._keras import keras
from mtf_hetero.keras.twin import Twin
from mtf_hetero.keras.weights import Weight

_EPSILON = 1e-5  # of mtf_hetero.layers.batch_norm


class Layers:
    """Calls plain Keras layers one after another, and gathers their weights.

    A layer `stage1/block1/conv1` of the network is `stage1_block1_conv1` in Keras, whose names have no slash.

    Args:
      image_shape: of an image or a volume, the channels last.
      name: of the model.
      dtype: of all numbers.
    """

    def __init__(self, image_shape: Sequence[int], *, name: str, dtype: str) -> None:
        self.inputs = keras.Input(
            tuple(image_shape), dtype=dtype, name="volumes" if len(image_shape) == 4 else "images"
        )
        self._name, self._dtype = name, dtype
        self._rank = len(image_shape) - 1
        self._weights: dict[str, Weight] = {}

    def twin(self, outputs: keras.KerasTensor) -> Twin:
        """Return the network from the images to these outputs."""
        return Twin(keras.Model(self.inputs, outputs, name=self._name), self._weights)

    def _call(
        self, kind: str, x: keras.KerasTensor | list[keras.KerasTensor], name: str, **options: object
    ) -> tuple[keras.Layer, keras.KerasTensor]:
        """Return a layer of a class, in whose name {} stands for the rank of the images, and what it gives."""
        layer = getattr(keras.layers, kind.format(self._rank))(
            name=name.replace("/", "_"), dtype=self._dtype, **options
        )
        return layer, layer(x)

    def _own(self, name: str, variable: "keras.Variable", shape: Sequence[int] | None = None) -> None:
        self._weights[name] = Weight(variable, tuple(variable.shape if shape is None else shape))

    def conv(
        self,
        x: keras.KerasTensor,
        filters: int,
        *,
        size: int,
        name: str,
        strides: int = 1,
        padding: str = "same",
        use_bias: bool = False,
        norm: float | None = None,
        activation: str | None = "relu",
    ) -> keras.KerasTensor:
        """Return a convolution.

        Args:
          x: [batch, ..., channels].
          filters: number of filters.
          size: of the kernel along each spatial dimension.
          name: the network's name of the layer.
          strides: along each spatial dimension.
          padding: "same" or "valid".
          use_bias: whether there is one.
          norm: the momentum of the batch norm after it; None: there is none.
          activation: "relu", "leaky_relu" of slope 0.01, or None.
        """
        options = {"strides": strides, "padding": padding, "use_bias": use_bias}
        layer, x = self._call("Conv{}D", x, name, filters=filters, kernel_size=size, **options)
        self._own(f"{name}/kernel", layer.kernel)
        if use_bias:
            self._own(f"{name}/bias", layer.bias)
        if norm is not None:
            x = self.batch_norm(x, name=f"{name}/batch_norm", momentum=norm)
        return self.activate(x, activation, name)

    def conv_transpose(self, x: keras.KerasTensor, *, name: str) -> keras.KerasTensor:
        """Return a transposed convolution of windows of 2 with stride 2, with as many filters as there are channels."""
        options = {"kernel_size": 2, "strides": 2, "padding": "same", "use_bias": False}
        layer, x = self._call("Conv{}DTranspose", x, name, filters=x.shape[-1], **options)
        self._own(f"{name}/kernel", layer.kernel)
        return x

    def batch_norm(self, x: keras.KerasTensor, *, name: str, momentum: float) -> keras.KerasTensor:
        """Batch norm over all dimensions but the last."""
        layer, x = self._call("BatchNormalization", x, name, momentum=momentum, epsilon=_EPSILON)
        names = {"scale": layer.gamma, "offset": layer.beta}
        names |= {"moving_mean": layer.moving_mean, "moving_variance": layer.moving_variance}
        for own, variable in names.items():
            self._own(f"{name}/{own}", variable)
        return x

    def activate(self, x: keras.KerasTensor, activation: str | None, name: str) -> keras.KerasTensor:
        """Return an activation, in a layer of its own."""
        if activation is None:
            return x
        if activation == "leaky_relu":
            return self._call("LeakyReLU", x, f"{name}/leaky_relu", negative_slope=0.01)[1]
        return self._call("Activation", x, f"{name}/{activation}", activation=activation)[1]

    def pool(
        self,
        x: keras.KerasTensor,
        *,
        kind: str,
        name: str,
        size: int = 2,
        strides: int = 2,
        around: int | None = None,
    ) -> keras.KerasTensor:
        """Return a pool.

        Args:
          x: [batch, ..., channels].
          kind: "max" or "avg".
          name: the network's name of the layer.
          size: of the window along each spatial dimension.
          strides: the same.
          around: zeros around the image, which an average counts; None: windows as "same" has them.
        """
        if around is not None:
            _, x = self._call("ZeroPadding{}D", x, f"{name}/padding", padding=around)
        padding = "same" if around is None else "valid"
        options = {"pool_size": size, "strides": strides, "padding": padding}
        return self._call("MaxPooling{}D" if kind == "max" else "AveragePooling{}D", x, name, **options)[1]

    def mean(self, x: keras.KerasTensor, *, name: str) -> keras.KerasTensor:
        """Return the mean of all pixels: [batch, channels]."""
        return self._call("GlobalAveragePooling{}D", x, name)[1]

    def drop(self, x: keras.KerasTensor, rate: float, *, name: str) -> keras.KerasTensor:
        """Dropout."""
        return self._call("Dropout", x, name, rate=rate)[1] if rate else x

    def dense(self, x: keras.KerasTensor, units: int, *, name: str, activation: str | None = None) -> keras.KerasTensor:
        """Return a dense layer over all dimensions but the first. The network has its kernel unflattened."""
        inputs = tuple(x.shape[1:])
        if len(inputs) > 1:
            _, x = self._call("Flatten", x, f"{name}/flatten")
        layer, x = self._call("Dense", x, name, units=units)
        self._own(f"{name}/kernel", layer.kernel, (*inputs, units))
        self._own(f"{name}/bias", layer.bias)
        return self.activate(x, activation, name)

    def add(self, *parts: keras.KerasTensor, name: str) -> keras.KerasTensor:
        """Return the sum of tensors of one shape."""
        return self._call("Add", list(parts), name)[1]

    def beside(self, *parts: keras.KerasTensor, name: str) -> keras.KerasTensor:
        """Return the channels of all parts, one after another."""
        return self._call("Concatenate", list(parts), name)[1]

    def classifier(
        self,
        x: keras.KerasTensor,
        units: Sequence[int],
        classes: int,
        *,
        dropout: Sequence[float] = (),
        last: str | None = None,
    ) -> keras.KerasTensor:
        """Dense layers with relu, dense1, dense2 and so on, and one to the classes.

        Args:
          x: [batch, ...].
          units: of the hidden layers.
          classes: number of classes.
          dropout: the rate after each hidden layer; none of them where it is empty.
          last: the last layer's name; None: its number, as of the others.
        """
        for number, count in enumerate(units, 1):
            x = self.dense(x, count, name=f"dense{number}", activation="relu")
            x = self.drop(x, dropout[number - 1], name=f"dropout{number}") if dropout else x
        return self.dense(x, classes, name=f"dense{len(units) + 1}" if last is None else last)
