"""Kinds of devices that a devices file may name, with the figures of their makers.

One rule holds for all: `flops_per_second` is the dense peak in float32 as TensorFlow computes it by default, and the
planner assumes that a step reaches `EFFICIENCY` of it. On NVIDIA's GPUs from Ampere on that is TF32 on tensor cores
(https://www.tensorflow.org/api_docs/python/tf/config/experimental/enable_tensor_float_32_execution). AMD's GPUs count
with float32 on their matrix cores, Apple's with float32 as tensorflow-metal runs it, and CPUs with
cores x base clock x operations per cycle.
"""

import dataclasses
import difflib
import re
from collections.abc import Mapping
from types import MappingProxyType

from mtf_hetero._support import tables
from mtf_hetero._support.schema import Text, shorten
from mtf_hetero._support.units import bytes_text

EFFICIENCY = 0.4  # the part of the peak that convolutions reach, about
_AVX2, _AVX512 = 32, 64  # float32 operations per cycle: two fused multiply-adds of 8 or 16 numbers
_MAKERS = re.compile(
    r"\((?:r|tm)\)|nvidia|geforce|tesla|[rg]tx|amd|instinct|ryzen|apple|intel|xeon|platinum|gold|core|generation|sxm\d?|hbm\d?e?|[^a-z0-9]"
)


@dataclasses.dataclass(frozen=True)
class Kind:
    """A kind of device.

    Args:
      flops_per_second: peak, by the rule of the module.
      bytes_per_second: peak of its memory.
      memory_bytes: size of its memory.
      source: document with these figures.
    """

    flops_per_second: float
    bytes_per_second: float
    memory_bytes: float
    source: str


def _cpu(
    cores: int, gigahertz: float, per_cycle: int, channels: int, megatransfers: int, gigabytes: float, source: str
) -> Kind:
    """Return a CPU by cores x base clock x operations per cycle, and its memory by channels of 8 bytes.

    The processor sets no size of the memory: `gigabytes` is a usual one.
    """
    rate = cores * gigahertz * 1e9 * per_cycle
    return Kind(rate, channels * 8 * megatransfers * 1e6, gigabytes * 1e9, source)


_GA102 = "https://www.nvidia.com/content/PDF/nvidia-ampere-ga-102-gpu-architecture-whitepaper-v2.pdf"
_GEFORCE30 = "https://www.nvidia.com/en-us/geforce/graphics-cards/30-series/"  # cores x boost clock x 2
_ADA = "https://images.nvidia.com/aem-dam/Solutions/geforce/ada/nvidia-ada-gpu-architecture.pdf"
_GEFORCE40 = "https://www.nvidia.com/en-us/geforce/graphics-cards/40-series/"  # likewise
_BLACKWELL = "https://images.nvidia.com/aem-dam/Solutions/geforce/blackwell/nvidia-rtx-blackwell-gpu-architecture.pdf"
_GEFORCE50 = "https://www.nvidia.com/en-us/geforce/graphics-cards/50-series/"  # likewise
_INSTINCT = "https://www.amd.com/en/products/accelerators/instinct"
_APPLE = "https://arxiv.org/abs/2502.05317"  # table 1: the largest GPU of the base chip; smallest memory sold
_ARK = "https://www.intel.com/content/www/us/en/ark.html"
_AMD = "https://www.amd.com/en/products/specifications/processors.html"

KINDS: Mapping[str, Kind] = MappingProxyType(
    {
        # NVIDIA before Ampere: float32
        "GTX-1080": Kind(8.9e12, 320e9, 8e9, "NVIDIA GeForce GTX 1080 whitepaper, 2016"),
        "GTX-1080-Ti": Kind(11.3e12, 484e9, 11e9, "NVIDIA GeForce GTX 1080 Ti product page, 2017"),
        "P100": Kind(10.6e12, 732e9, 16e9, "NVIDIA Tesla P100 (SXM2) datasheet, 2016"),
        "V100": Kind(15.7e12, 900e9, 16e9, "NVIDIA V100 (SXM2) datasheet, 2018"),
        "T4": Kind(8.1e12, 320e9, 16e9, "NVIDIA T4 datasheet, 2018"),
        "RTX-2080-Ti": Kind(13.4e12, 616e9, 11e9, "NVIDIA Turing architecture whitepaper, 2018"),
        # NVIDIA from Ampere on: TF32. A GeForce computes TF32 as fast as float32
        "RTX-3060": Kind(12.7e12, 360e9, 12e9, _GEFORCE30),
        "RTX-3070": Kind(20.3e12, 448e9, 8e9, _GA102),
        "RTX-3080": Kind(29.8e12, 760e9, 10e9, _GA102),
        "RTX-3090": Kind(35.6e12, 936e9, 24e9, _GA102),
        "RTX-4060": Kind(15.1e12, 272e9, 8e9, _GEFORCE40),
        "RTX-4070": Kind(29.1e12, 504e9, 12e9, _GEFORCE40),
        "RTX-4080": Kind(48.7e12, 716.8e9, 16e9, _ADA),
        "RTX-4090": Kind(82.6e12, 1008e9, 24e9, _ADA),
        "RTX-5060": Kind(19.2e12, 448e9, 8e9, _GEFORCE50),
        "RTX-5070": Kind(30.9e12, 672e9, 12e9, _BLACKWELL),
        "RTX-5080": Kind(56.3e12, 960e9, 16e9, _BLACKWELL),
        "RTX-5090": Kind(104.8e12, 1792e9, 32e9, _BLACKWELL),
        "RTX-A6000": Kind(77.4e12, 768e9, 48e9, _GA102),
        "RTX-6000-Ada": Kind(182.1e12, 960e9, 48e9, _ADA),
        "A10": Kind(62.5e12, 600e9, 24e9, "https://www.nvidia.com/en-us/data-center/products/a10-gpu/"),
        "A10G": Kind(35e12, 600e9, 24e9, "NVIDIA A10G datasheet for Amazon EC2 G5, 2022"),
        "L4": Kind(60e12, 300e9, 24e9, "https://www.nvidia.com/en-us/data-center/l4/"),
        "L40S": Kind(183e12, 864e9, 48e9, "https://www.nvidia.com/en-us/data-center/l40s/"),
        "A100": Kind(156e12, 1555e9, 40e9, "NVIDIA A100 (SXM4, 40 GB) datasheet, 2020"),
        "H100": Kind(494.5e12, 3350e9, 80e9, "NVIDIA H100 (SXM5) datasheet, 2023: half of the figure with sparsity"),
        "H200": Kind(494.5e12, 4800e9, 141e9, "https://www.nvidia.com/en-us/data-center/h200/"),
        "B200": Kind(
            1100e12, 7700e9, 180e9, "NVIDIA Blackwell datasheet: a GPU of HGX B200, half of that with sparsity"
        ),
        # AMD: float32 on matrix cores. TensorFlow sees an MI250 as two devices: each is one of its two dies
        "MI250": Kind(45.3e12, 1638.4e9, 64e9, f"{_INSTINCT}/mi200/mi250.html"),
        "MI250X": Kind(47.9e12, 1638.4e9, 64e9, f"{_INSTINCT}/mi200/mi250x.html"),
        "MI300X": Kind(163.4e12, 5300e9, 192e9, f"{_INSTINCT}/mi300/mi300x.html"),
        # Apple: the GPU, through tensorflow-metal
        "Apple-M1": Kind(2.61e12, 67e9, 8e9, _APPLE),
        "Apple-M2": Kind(3.57e12, 100e9, 8e9, _APPLE),
        "Apple-M3": Kind(3.53e12, 100e9, 8e9, _APPLE),
        "Apple-M4": Kind(4.26e12, 120e9, 16e9, _APPLE),
        # CPUs of laptops and desktops
        "i7-1165G7": _cpu(4, 2.8, _AVX2, 2, 3200, 16, _ARK),  # AVX-512 with one unit
        "i7-13700H": _cpu(6, 2.4, _AVX2, 2, 5200, 32, _ARK),  # its 6 performance cores
        "Ryzen-7-5800H": _cpu(8, 3.2, _AVX2, 2, 3200, 16, _AMD),
        "Ryzen-7-7840U": _cpu(8, 3.3, _AVX2, 2, 5600, 32, _AMD),
        "Ryzen-9-7950X": _cpu(16, 4.5, _AVX2, 2, 5200, 64, _AMD),
        # CPUs of servers
        "EPYC-7742": Kind(4.6e12, 204.8e9, 256e9, _AMD),  # 64 cores, 2.25 GHz, 8 x DDR4-3200
        "EPYC-7763": _cpu(64, 2.45, _AVX2, 8, 3200, 256, _AMD),
        "EPYC-9654": _cpu(96, 2.4, _AVX2, 12, 4800, 384, _AMD),  # AVX-512 in two halves
        "Xeon-6148": Kind(2.0e12, 128e9, 192e9, _ARK),  # 20 cores, 1.6 GHz with AVX-512, 6 x DDR4-2666
        "Xeon-8380": _cpu(40, 2.3, _AVX512, 8, 3200, 256, _ARK),
        "Xeon-8480": _cpu(56, 2.0, _AVX512, 8, 4800, 512, _ARK),
    }
)


def _plain(name: str) -> str:
    """Return what distinguishes a name from others: without its maker and its family.

    Example:
      >>> _plain("NVIDIA GeForce RTX 3060"), _plain("rtx-3060")
      ('3060', '3060')
    """
    return _MAKERS.sub("", name.lower())


_BY_PLAIN_NAME = {_plain(name): name for name in KINDS}
_BY_PLAIN_NAME |= {f"{_plain(name)}{kind.memory_bytes / 1e9:.0f}gb": name for name, kind in KINDS.items()}


class KindName(Text):
    """The name of a kind in any usual spelling; `read` returns the spelling of the table."""

    def read(self, value: object, name: str = "") -> str:
        text = super().read(value, name)
        if (plain := _plain(text)) in _BY_PLAIN_NAME:
            return _BY_PLAIN_NAME[plain]
        similar = difflib.get_close_matches(text.upper(), {known.upper(): known for known in KINDS}, n=2)
        near = [known for known in KINDS if known.upper() in similar]
        nearest = f"; the nearest {'are' if len(near) > 1 else 'is'} {' and '.join(near)}" if near else ""
        raise ValueError(
            f"{name or 'kind'} is {shorten(text)}, which is not a known kind{nearest}; `mtf-hetero plan --kinds` "
            "lists all; for another device, give peak_flops_per_second, peak_bytes_per_second and memory_bytes of its "
            "data sheet"
        )


def listing() -> str:
    """Return the table of all kinds, for people."""
    rows = [("kind", "TFLOP/s", "GB/s", "memory")]
    for name, kind in KINDS.items():
        rates = f"{kind.flops_per_second / 1e12:.4g}", f"{kind.bytes_per_second / 1e9:.4g}"
        rows.append((name, *rates, bytes_text(kind.memory_bytes)))
    note = (
        f"Peaks from data sheets. A step is assumed to reach {EFFICIENCY:.0%} of the arithmetic\n"
        "and all of the memory's GB/s. A devices file may correct each figure."
    ).replace("%", " %")
    return "\n".join([*tables.lines(rows, "<>>>"), "", note])
