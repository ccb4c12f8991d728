"""The look of pictures: colours that the colour-blind can tell apart, one legend per picture, units at every axis."""

import contextlib
import pathlib
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import matplotlib as mpl

mpl.use("Agg")  # no display is needed

from matplotlib import patches, ticker
from matplotlib import pyplot as plt

from mtf_hetero._support import files

# Okabe and Ito's palette, in the order in which we use it
COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000")
GREY = "#7F7F7F"
_STYLE: dict[Any, Any] = {
    "font.size": 9,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.titlesize": 10,
    "axes.titlelocation": "left",
    "axes.grid": True,
    "grid.color": "#E5E5E5",
    "grid.linewidth": 0.6,
    "axes.axisbelow": True,
    "lines.linewidth": 1.6,
    "legend.frameon": False,
}
_TITLES: Mapping[str, str] = {
    "vgg11": "VGG-11",
    "vgg16": "VGG-16",
    "vgg19": "VGG-19",
    "vgg11_4096": "VGG-11 with a head of 4096 units",
    "paper_cifar": "The paper's network for CIFAR-10",
    "paper_mnist": "The paper's network for MNIST",
    "marques": "The two-layer network of Marques et al.",
    "conv": "CosmoFlow's convolutions",
    "cosmoflow": "CosmoFlow",
    "resnet50": "ResNet-50",
    "unet3d": "3D U-Net",
}

Row = Mapping[str, Any]


def title(row: Row) -> str:
    """Return a row's network and, where it has one, its batch, in words."""
    name = _TITLES.get(row["network"], str(row["network"]))
    return f"{name}, batches of {row['batch_size']} images" if "batch_size" in row else name


@contextlib.contextmanager
def panels(
    path: pathlib.Path,
    count: int = 1,
    columns: int = 1,
    *,
    width: float = 4.6,
    height: float = 3.2,
    colours: Mapping[str, str] | None = None,
    ncols: int = 3,
    **kwargs: Any,
) -> Iterator[list[Any]]:
    """Give the axes of a picture, and at the end add its one legend above them and write its PNG.

    Args:
      path: of the PNG.
      count: number of axes; what the last line has beyond stays empty.
      columns: axes side by side; 9.2 inches in all are legible where a page shows the picture 800 pixels wide.
      width: of each, in inches.
      height: of each.
      colours: of the legend; None: the labels of the artists, if they have any.
      ncols: of the legend.
      **kwargs: of subplots.
    """
    mpl.rcParams.update(_STYLE)  # for what is added to the axes later too
    lines = -(-count // columns)
    size = (width * columns, height * lines)
    figure, axes = plt.subplots(lines, columns, figsize=size, squeeze=False, layout="constrained", **kwargs)
    yield list(axes.flat[:count])
    for ax in axes.flat[count:]:
        ax.set_axis_off()
    handles: dict[str, Any] = {name: patches.Patch(color=colour) for name, colour in (colours or {}).items()}
    for ax in figure.axes if colours is None else ():
        handles |= {name: handle for handle, name in zip(*ax.get_legend_handles_labels(), strict=True)}
    if handles:
        figure.legend(list(handles.values()), list(handles), loc="outside upper left", ncols=ncols)
    with files.new_file(path) as new:
        figure.savefig(new, dpi=160, metadata={"Software": None})
    plt.close(figure)


def dots(path: pathlib.Path, values: Mapping[str, Sequence[float]], label: str) -> None:
    """Draw numbers of several kinds, {kind: numbers}, a line per kind."""
    with panels(path, width=8.0, height=2.4) as (ax,):
        for line, of_kind in enumerate(values.values()):
            ax.plot(sorted(of_kind), [line] * len(of_kind), "o", color=COLOURS[0], alpha=0.5)
        ax.set_yticks(range(len(values)), list(values))
        ax.set_xlim(left=0)
        ax.set_xlabel(label)


def plain_log(ax: Any, *, x: Sequence[int] = (), y: bool = True) -> None:
    """Logarithmic axes with plain numbers at their ticks: powers of two at x, if any are given."""
    if x:
        ax.set_xscale("log", base=2)
        ax.set_xticks(x, [f"{tick:,}" for tick in x])
        ax.minorticks_off()
    if y:
        ax.set_yscale("log")
        plain_ticks(ax.yaxis)


def plain_ticks(axis: Any) -> None:
    """Plain numbers at the ticks of a logarithmic axis."""
    low, high = axis.get_view_interval()
    axis.set_major_locator(ticker.LogLocator(subs=(1, 2, 5) if high < 100 * low else (1,)))
    axis.set_major_formatter(ticker.FuncFormatter(lambda value, _: f"{value:,.0f}" if value >= 1 else f"{value:g}"))
    axis.set_minor_formatter(ticker.NullFormatter())


def bars(ax: Any, lengths: Mapping[str, Any], colours: Sequence[str], label: str) -> None:
    """Horizontal bars from top to bottom: {name: length}, or a summary, whose minimum and maximum are drawn too."""
    for (name, length), colour in zip(lengths.items(), colours, strict=True):
        options = {}
        if isinstance(length, Mapping):
            low, high = length["median"] - length["min"], length["max"] - length["median"]
            options, length = {"xerr": [[low], [high]], "error_kw": {"linewidth": 0.8}}, length["median"]
        ax.barh(name, length, color=colour, height=0.65, **options)
    ax.yaxis.set_inverted(True)
    ax.grid(axis="y", visible=False)
    ax.set_xlabel(label)


def stacked_bars(
    ax: Any, lengths: Mapping[str, Mapping[str, float]], colours: Mapping[str, str], *, height: float
) -> None:
    """Horizontal bars from top to bottom, {name: {kind: length}}, in the colours of the kinds."""
    for name, kinds in lengths.items():
        left = 0.0
        for kind, length in kinds.items():
            ax.barh(name, length, left=left, color=colours[kind], height=height)
            left += length
    ax.invert_yaxis()
    ax.grid(axis="y", visible=False)
