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
from mtf_hetero._support.schema import Text, nearest_text, shorten
from mtf_hetero._support.units import bytes_text

EFFICIENCY = 0.4  # the part of the peak that convolutions reach, about
_AVX2, _AVX512 = 32, 64  # float32 operations per cycle: two fused multiply-adds of 8 or 16 numbers
_MAKERS = re.compile(
    r"\((?:r|tm)\)|nvidia|geforce|tesla|(?<!titan.)(?<!quadro.)[rg]tx|blackwell|workstation edition|amd|radeon|\brx|"
    r"instinct|ryzen|apple|intel|xeon|platinum|gold|silver|\d+th gen|\d+-core|core|cpu|gpu|processor|generation|"
    r"sxm\d?|hbm\d?e?|@.*|[^a-z0-9]"
)
_MEMORY = re.compile(r"(?<![a-z0-9])(\d+) ?gb")


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


def _gpu(cores: int, megahertz: int, gigabytes_per_second: float, gigabytes: float, source: str) -> Kind:
    """Return a GPU by cores x boost clock x 2: each core ends one fused multiply-add per cycle."""
    return Kind(cores * megahertz * 1e6 * 2, gigabytes_per_second * 1e9, gigabytes * 1e9, source)


_GEFORCE10 = "https://www.nvidia.com/en-us/geforce/10-series/"  # cores x boost clock x 2
_TITAN = "https://www.nvidia.com/en-us/titan/"  # likewise
_GEFORCE16 = "https://www.nvidia.com/en-us/geforce/graphics-cards/16-series/"  # likewise
_GEFORCE20 = "https://www.nvidia.com/en-us/geforce/20-series/"  # likewise
_LAPTOPS = "https://www.nvidia.com/en-us/geforce/laptops/compare/"  # likewise, by the highest boost clock of the range
_GA102 = "https://www.nvidia.com/content/PDF/nvidia-ampere-ga-102-gpu-architecture-whitepaper-v2.pdf"
_GEFORCE30 = "https://www.nvidia.com/en-us/geforce/graphics-cards/30-series/"  # likewise
_ADA = "https://images.nvidia.com/aem-dam/Solutions/geforce/ada/nvidia-ada-gpu-architecture.pdf"
_GEFORCE40 = "https://www.nvidia.com/en-us/geforce/graphics-cards/40-series/"  # likewise
_BLACKWELL = "https://images.nvidia.com/aem-dam/Solutions/geforce/blackwell/nvidia-rtx-blackwell-gpu-architecture.pdf"
_GEFORCE50 = "https://www.nvidia.com/en-us/geforce/graphics-cards/50-series/"  # likewise
_INSTINCT = "https://www.amd.com/en/products/accelerators/instinct"
_RTX_A = "https://www.nvidia.com/en-us/products/workstations/"  # TF32: a quarter of their sparse float16
_RTX_ADA = "https://www.nvidia.com/en-us/products/workstations/"  # TF32: an eighth of their sparse float8
_TESLA = "https://www.nvidia.com/en-us/data-center/"
_APPLE = "https://arxiv.org/abs/2502.05317"  # table 1: the largest GPU of the base chip; smallest memory sold
_APPLE_PRO = "https://support.apple.com/en-us/docs/mac"  # largest GPU of the chip: cores x those of table 1 above
_ARK = "https://www.intel.com/content/www/us/en/ark.html"
_RADEON = "https://www.amd.com/en/products/graphics/desktops/radeon.html"
_GRAVITON = "https://github.com/aws/aws-graviton-getting-started"  # operations per cycle by its vector units
_AMD = "https://www.amd.com/en/products/specifications/processors.html"

KINDS: Mapping[str, Kind] = MappingProxyType(
    {
        # NVIDIA before Ampere: float32. A K80 and an M60 are two devices: each is one of two dies
        "GTX-1050-Ti": _gpu(768, 1392, 112, 4, _GEFORCE10),
        "GTX-1060": _gpu(1280, 1708, 192, 6, _GEFORCE10),
        "GTX-1060-3GB": _gpu(1152, 1708, 192, 3, _GEFORCE10),
        "GTX-1070": _gpu(1920, 1683, 256, 8, _GEFORCE10),
        "GTX-1070-Ti": _gpu(2432, 1683, 256, 8, _GEFORCE10),
        "GTX-1080": Kind(8.9e12, 320e9, 8e9, "NVIDIA GeForce GTX 1080 whitepaper, 2016"),
        "GTX-1080-Ti": Kind(11.3e12, 484e9, 11e9, "NVIDIA GeForce GTX 1080 Ti product page, 2017"),
        "GTX-1650": _gpu(896, 1665, 128, 4, _GEFORCE16),
        "GTX-1660": _gpu(1408, 1785, 192, 6, _GEFORCE16),
        "GTX-1660-Super": _gpu(1408, 1785, 336, 6, _GEFORCE16),
        "GTX-1660-Ti": _gpu(1536, 1770, 288, 6, _GEFORCE16),
        "RTX-2060": _gpu(1920, 1680, 336, 6, _GEFORCE20),
        "RTX-2060-12GB": _gpu(2176, 1650, 336, 12, _GEFORCE20),
        "RTX-2060-Super": _gpu(2176, 1650, 448, 8, _GEFORCE20),
        "RTX-2070": _gpu(2304, 1620, 448, 8, _GEFORCE20),
        "RTX-2070-Super": _gpu(2560, 1770, 448, 8, _GEFORCE20),
        "RTX-2080": _gpu(2944, 1710, 448, 8, _GEFORCE20),
        "RTX-2080-Super": _gpu(3072, 1815, 496, 8, _GEFORCE20),
        "RTX-2080-Ti": Kind(13.4e12, 616e9, 11e9, "NVIDIA Turing architecture whitepaper, 2018"),
        "Titan-X-Pascal": _gpu(3584, 1531, 480, 12, _TITAN),
        "Titan-Xp": _gpu(3840, 1582, 547.7, 12, _TITAN),
        "Titan-V": _gpu(5120, 1455, 652.8, 12, _TITAN),
        "Titan-RTX": _gpu(4608, 1770, 672, 24, _TITAN),
        "Quadro-RTX-4000": Kind(7.1e12, 416e9, 8e9, "NVIDIA Quadro RTX 4000 datasheet, 2018"),
        "Quadro-RTX-5000": Kind(11.2e12, 448e9, 16e9, "NVIDIA Quadro RTX 5000 datasheet, 2018"),
        "Quadro-RTX-6000": Kind(16.3e12, 672e9, 24e9, "NVIDIA Quadro RTX 6000 datasheet, 2018"),
        "Quadro-RTX-8000": Kind(16.3e12, 672e9, 48e9, "NVIDIA Quadro RTX 8000 datasheet, 2018"),
        "K80": Kind(4.37e12, 240e9, 12e9, "NVIDIA Tesla K80 datasheet, 2014, with boost"),
        "M60": Kind(4.82e12, 160e9, 8e9, "NVIDIA Tesla M60 datasheet, 2015"),
        "P4": Kind(5.5e12, 192e9, 8e9, "NVIDIA Tesla P4 datasheet, 2016"),
        "P40": Kind(12e12, 346e9, 24e9, "NVIDIA Tesla P40 datasheet, 2016"),
        "P100": Kind(10.6e12, 732e9, 16e9, "NVIDIA Tesla P100 (SXM2) datasheet, 2016"),
        "P100-PCIe": Kind(9.3e12, 732e9, 16e9, "NVIDIA Tesla P100 (PCIe) datasheet, 2016"),
        "P100-PCIe-12GB": Kind(9.3e12, 549e9, 12e9, "NVIDIA Tesla P100 (PCIe) datasheet, 2016"),
        "V100": Kind(15.7e12, 900e9, 16e9, "NVIDIA V100 (SXM2) datasheet, 2018"),
        "V100-32GB": Kind(15.7e12, 900e9, 32e9, "NVIDIA V100 (SXM2) datasheet, 2018"),
        "V100-PCIe": Kind(14e12, 900e9, 16e9, "NVIDIA V100 (PCIe) datasheet, 2018"),
        "V100-PCIe-32GB": Kind(14e12, 900e9, 32e9, "NVIDIA V100 (PCIe) datasheet, 2018"),
        "T4": Kind(8.1e12, 320e9, 16e9, "NVIDIA T4 datasheet, 2018"),
        # NVIDIA from Ampere on: TF32. A GeForce computes TF32 as fast as float32
        "RTX-3050": _gpu(2560, 1777, 224, 8, _GEFORCE30),
        "RTX-3050-6GB": _gpu(2304, 1470, 168, 6, _GEFORCE30),
        "RTX-3060": Kind(12.7e12, 360e9, 12e9, _GEFORCE30),
        "RTX-3060-8GB": _gpu(3584, 1777, 240, 8, _GEFORCE30),
        "RTX-3060-Ti": _gpu(4864, 1665, 448, 8, _GEFORCE30),
        "RTX-3070": Kind(20.3e12, 448e9, 8e9, _GA102),
        "RTX-3070-Ti": _gpu(6144, 1770, 608, 8, _GEFORCE30),
        "RTX-3080": Kind(29.8e12, 760e9, 10e9, _GA102),
        "RTX-3080-12GB": _gpu(8960, 1710, 912, 12, _GEFORCE30),
        "RTX-3080-Ti": _gpu(10240, 1665, 912, 12, _GEFORCE30),
        "RTX-3090": Kind(35.6e12, 936e9, 24e9, _GA102),
        "RTX-3090-Ti": _gpu(10752, 1860, 1008, 24, _GEFORCE30),
        "RTX-4060": Kind(15.1e12, 272e9, 8e9, _GEFORCE40),
        "RTX-4060-Ti": _gpu(4352, 2535, 288, 8, _GEFORCE40),
        "RTX-4060-Ti-16GB": _gpu(4352, 2535, 288, 16, _GEFORCE40),
        "RTX-4070": Kind(29.1e12, 504e9, 12e9, _GEFORCE40),
        "RTX-4070-Super": _gpu(7168, 2475, 504, 12, _GEFORCE40),
        "RTX-4070-Ti": _gpu(7680, 2610, 504, 12, _GEFORCE40),
        "RTX-4070-Ti-Super": _gpu(8448, 2610, 672, 16, _GEFORCE40),
        "RTX-4080": Kind(48.7e12, 716.8e9, 16e9, _ADA),
        "RTX-4080-Super": _gpu(10240, 2550, 736, 16, _GEFORCE40),
        "RTX-4090": Kind(82.6e12, 1008e9, 24e9, _ADA),
        "RTX-5060": Kind(19.2e12, 448e9, 8e9, _GEFORCE50),
        "RTX-5060-Ti": _gpu(4608, 2572, 448, 8, _GEFORCE50),
        "RTX-5060-Ti-16GB": _gpu(4608, 2572, 448, 16, _GEFORCE50),
        "RTX-5070": Kind(30.9e12, 672e9, 12e9, _BLACKWELL),
        "RTX-5070-Ti": _gpu(8960, 2452, 896, 16, _GEFORCE50),
        "RTX-5080": Kind(56.3e12, 960e9, 16e9, _BLACKWELL),
        "RTX-5090": Kind(104.8e12, 1792e9, 32e9, _BLACKWELL),
        "RTX-3050-Laptop": _gpu(2048, 1740, 192, 4, _LAPTOPS),
        "RTX-3060-Laptop": _gpu(3840, 1703, 336, 6, _LAPTOPS),
        "RTX-3070-Laptop": _gpu(5120, 1620, 448, 8, _LAPTOPS),
        "RTX-3070-Ti-Laptop": _gpu(5888, 1485, 448, 8, _LAPTOPS),
        "RTX-3080-Laptop": _gpu(6144, 1710, 448, 8, _LAPTOPS),
        "RTX-3080-Laptop-16GB": _gpu(6144, 1710, 448, 16, _LAPTOPS),
        "RTX-3080-Ti-Laptop": _gpu(7424, 1590, 512, 16, _LAPTOPS),
        "RTX-4050-Laptop": _gpu(2560, 2370, 192, 6, _LAPTOPS),
        "RTX-4060-Laptop": _gpu(3072, 2370, 256, 8, _LAPTOPS),
        "RTX-4070-Laptop": _gpu(4608, 2175, 256, 8, _LAPTOPS),
        "RTX-4080-Laptop": _gpu(7424, 2280, 432, 12, _LAPTOPS),
        "RTX-4090-Laptop": _gpu(9728, 2040, 576, 16, _LAPTOPS),
        "RTX-A2000": Kind(16e12, 288e9, 6e9, f"{_RTX_A}rtx-a2000/"),
        "RTX-A2000-12GB": Kind(16e12, 288e9, 12e9, f"{_RTX_A}rtx-a2000/"),
        "RTX-A4000": Kind(38.3e12, 448e9, 16e9, f"{_RTX_A}rtx-a4000/"),
        "RTX-A4500": Kind(47.3e12, 640e9, 20e9, f"{_RTX_A}rtx-a4500/"),
        "RTX-A5000": Kind(55.5e12, 768e9, 24e9, f"{_RTX_A}rtx-a5000/"),
        "RTX-A5500": Kind(68.2e12, 768e9, 24e9, f"{_RTX_A}rtx-a5500/"),
        "RTX-A6000": Kind(77.4e12, 768e9, 48e9, _GA102),
        "RTX-2000-Ada": Kind(24e12, 224e9, 16e9, f"{_RTX_ADA}rtx-2000/"),
        "RTX-4000-Ada": Kind(53.4e12, 360e9, 20e9, f"{_RTX_ADA}rtx-4000/"),
        "RTX-4500-Ada": Kind(79.2e12, 432e9, 24e9, f"{_RTX_ADA}rtx-4500/"),
        "RTX-5000-Ada": Kind(130.5e12, 576e9, 32e9, f"{_RTX_ADA}rtx-5000/"),
        "RTX-6000-Ada": Kind(182.1e12, 960e9, 48e9, _ADA),
        "RTX-PRO-6000": Kind(251.9e12, 1792e9, 96e9, "NVIDIA RTX Blackwell PRO GPU architecture whitepaper, 2025"),
        "A2": Kind(9e12, 200e9, 16e9, f"{_TESLA}products/a2/"),
        "A10": Kind(62.5e12, 600e9, 24e9, "https://www.nvidia.com/en-us/data-center/products/a10-gpu/"),
        "A10G": Kind(35e12, 600e9, 24e9, "NVIDIA A10G datasheet for Amazon EC2 G5, 2022"),
        "A16": Kind(9e12, 200e9, 16e9, f"{_TESLA}products/a16-gpu/"),  # one of its four dies, each a device
        "A30": Kind(82e12, 933e9, 24e9, f"{_TESLA}products/a30-gpu/"),
        "A40": Kind(74.8e12, 696e9, 48e9, f"{_TESLA}a40/"),
        "L4": Kind(60e12, 300e9, 24e9, "https://www.nvidia.com/en-us/data-center/l4/"),
        "L40": Kind(90.5e12, 864e9, 48e9, f"{_TESLA}l40/"),
        "L40S": Kind(183e12, 864e9, 48e9, "https://www.nvidia.com/en-us/data-center/l40s/"),
        "A100": Kind(156e12, 1555e9, 40e9, "NVIDIA A100 (SXM4, 40 GB) datasheet, 2020"),
        "A100-80GB": Kind(156e12, 2039e9, 80e9, "NVIDIA A100 (SXM4, 80 GB) datasheet, 2021"),
        "A100-PCIe": Kind(156e12, 1555e9, 40e9, "NVIDIA A100 (PCIe, 40 GB) datasheet, 2020"),
        "A100-PCIe-80GB": Kind(156e12, 1935e9, 80e9, "NVIDIA A100 (PCIe, 80 GB) datasheet, 2021"),
        "H100": Kind(494.5e12, 3350e9, 80e9, "NVIDIA H100 (SXM5) datasheet, 2023: half of the figure with sparsity"),
        "H100-PCIe": Kind(378e12, 2000e9, 80e9, "NVIDIA H100 (PCIe) datasheet, 2023: likewise"),
        "H100-NVL": Kind(417.5e12, 3900e9, 94e9, "NVIDIA H100 (NVL) datasheet, 2024: likewise"),
        "GH200": Kind(494.5e12, 4000e9, 96e9, "NVIDIA GH200 (HBM3) datasheet, 2023: likewise"),
        "H200": Kind(494.5e12, 4800e9, 141e9, "https://www.nvidia.com/en-us/data-center/h200/"),
        "B200": Kind(
            1100e12, 7700e9, 180e9, "NVIDIA Blackwell datasheet: a GPU of HGX B200, half of that with sparsity"
        ),
        # AMD: float32 on matrix cores. TensorFlow sees an MI250 as two devices: each is one of its two dies
        "MI100": Kind(46.1e12, 1228.8e9, 32e9, f"{_INSTINCT}/mi100.html"),
        "MI210": Kind(45.3e12, 1638.4e9, 64e9, f"{_INSTINCT}/mi200/mi210.html"),
        "MI250": Kind(45.3e12, 1638.4e9, 64e9, f"{_INSTINCT}/mi200/mi250.html"),
        "MI250X": Kind(47.9e12, 1638.4e9, 64e9, f"{_INSTINCT}/mi200/mi250x.html"),
        "MI300X": Kind(163.4e12, 5300e9, 192e9, f"{_INSTINCT}/mi300/mi300x.html"),
        "MI325X": Kind(163.4e12, 6000e9, 256e9, f"{_INSTINCT}/mi300/mi325x.html"),
        "RX-6900-XT": Kind(23.0e12, 512e9, 16e9, _RADEON),
        "RX-7900-XT": Kind(51.5e12, 800e9, 20e9, _RADEON),
        "RX-7900-XTX": Kind(61.4e12, 960e9, 24e9, _RADEON),
        # Apple: the GPU, through tensorflow-metal
        "Apple-M1": Kind(2.61e12, 67e9, 8e9, _APPLE),
        "Apple-M1-Pro": Kind(2 * 2.61e12, 200e9, 16e9, _APPLE_PRO),
        "Apple-M1-Max": Kind(4 * 2.61e12, 400e9, 32e9, _APPLE_PRO),
        "Apple-M1-Ultra": Kind(8 * 2.61e12, 800e9, 64e9, _APPLE_PRO),
        "Apple-M2": Kind(3.57e12, 100e9, 8e9, _APPLE),
        "Apple-M2-Pro": Kind(1.9 * 3.57e12, 200e9, 16e9, _APPLE_PRO),
        "Apple-M2-Max": Kind(3.8 * 3.57e12, 400e9, 32e9, _APPLE_PRO),
        "Apple-M2-Ultra": Kind(7.6 * 3.57e12, 800e9, 64e9, _APPLE_PRO),
        "Apple-M3": Kind(3.53e12, 100e9, 8e9, _APPLE),
        "Apple-M3-Pro": Kind(1.8 * 3.53e12, 150e9, 18e9, _APPLE_PRO),
        "Apple-M3-Max": Kind(4 * 3.53e12, 400e9, 48e9, _APPLE_PRO),
        "Apple-M4": Kind(4.26e12, 120e9, 16e9, _APPLE),
        "Apple-M4-Pro": Kind(2 * 4.26e12, 273e9, 24e9, _APPLE_PRO),
        "Apple-M4-Max": Kind(4 * 4.26e12, 546e9, 48e9, _APPLE_PRO),
        # CPUs of laptops and desktops
        "i5-12400": _cpu(6, 2.5, _AVX2, 2, 4800, 32, _ARK),
        "i5-13600K": _cpu(6, 3.5, _AVX2, 2, 5600, 32, _ARK),  # its 6 performance cores
        "i7-1165G7": _cpu(4, 2.8, _AVX2, 2, 3200, 16, _ARK),  # AVX-512 with one unit
        "i7-8700K": _cpu(6, 3.7, _AVX2, 2, 2666, 32, _ARK),
        "i7-10700K": _cpu(8, 3.8, _AVX2, 2, 2933, 32, _ARK),
        "i7-12700K": _cpu(8, 3.6, _AVX2, 2, 4800, 32, _ARK),  # its 8 performance cores, as in the next ones
        "i7-13700H": _cpu(6, 2.4, _AVX2, 2, 5200, 32, _ARK),  # 6
        "i7-14700K": _cpu(8, 3.4, _AVX2, 2, 5600, 32, _ARK),
        "i9-9900K": _cpu(8, 3.6, _AVX2, 2, 2666, 32, _ARK),  # all of one sort
        "i9-12900K": _cpu(8, 3.2, _AVX2, 2, 4800, 64, _ARK),
        "i9-13900K": _cpu(8, 3.0, _AVX2, 2, 5600, 64, _ARK),
        "i9-14900K": _cpu(8, 3.2, _AVX2, 2, 5600, 64, _ARK),
        "Ryzen-5-3600": _cpu(6, 3.6, _AVX2, 2, 3200, 16, _AMD),
        "Ryzen-5-5600X": _cpu(6, 3.7, _AVX2, 2, 3200, 32, _AMD),
        "Ryzen-5-7600X": _cpu(6, 4.7, _AVX2, 2, 5200, 32, _AMD),
        "Ryzen-7-5800H": _cpu(8, 3.2, _AVX2, 2, 3200, 16, _AMD),
        "Ryzen-7-5800X": _cpu(8, 3.8, _AVX2, 2, 3200, 32, _AMD),
        "Ryzen-7-7700X": _cpu(8, 4.5, _AVX2, 2, 5200, 32, _AMD),
        "Ryzen-7-7840U": _cpu(8, 3.3, _AVX2, 2, 5600, 32, _AMD),
        "Ryzen-9-5900X": _cpu(12, 3.7, _AVX2, 2, 3200, 64, _AMD),
        "Ryzen-9-5950X": _cpu(16, 3.4, _AVX2, 2, 3200, 64, _AMD),
        "Ryzen-9-7950X": _cpu(16, 4.5, _AVX2, 2, 5200, 64, _AMD),
        "Ryzen-9-9950X": _cpu(16, 4.3, _AVX512, 2, 5600, 64, _AMD),
        # CPUs of servers
        "EPYC-7302": _cpu(16, 3.0, _AVX2, 8, 3200, 128, _AMD),
        "EPYC-7742": Kind(4.6e12, 204.8e9, 256e9, _AMD),  # 64 cores, 2.25 GHz, 8 x DDR4-3200
        "EPYC-7763": _cpu(64, 2.45, _AVX2, 8, 3200, 256, _AMD),
        "EPYC-9654": _cpu(96, 2.4, _AVX2, 12, 4800, 384, _AMD),  # AVX-512 in two halves
        "Xeon-E5-2680-v4": _cpu(14, 2.4, _AVX2, 4, 2400, 128, _ARK),
        "Xeon-4214": _cpu(12, 2.2, _AVX2, 6, 2400, 96, _ARK),  # AVX-512 with one unit
        "Xeon-6148": Kind(2.0e12, 128e9, 192e9, _ARK),  # 20 cores, 1.6 GHz with AVX-512, 6 x DDR4-2666
        "Xeon-6248": _cpu(20, 1.6, _AVX512, 6, 2933, 192, _ARK),  # likewise 1.6 GHz
        "Xeon-8380": _cpu(40, 2.3, _AVX512, 8, 3200, 256, _ARK),
        "Xeon-8480": _cpu(56, 2.0, _AVX512, 8, 4800, 512, _ARK),
        "Graviton2": _cpu(64, 2.5, 16, 8, 3200, 256, _GRAVITON),
        "Graviton3": _cpu(64, 2.6, _AVX2, 8, 4800, 128, _GRAVITON),
    }
)


def _plain(name: str) -> str:
    """Return what distinguishes a name from others: without its maker and its family, with a size of memory last.

    Example:
      >>> _plain("NVIDIA GeForce RTX 3060"), _plain("rtx-3060"), _plain("A100 80GB PCIe")
      ('3060', '3060', 'a100pcie 80gb')
    """
    name = name.lower().replace("mobile", "laptop")
    memory = _MEMORY.search(name)
    plain = _MAKERS.sub("", _MEMORY.sub("", name))
    return f"{plain} {memory[1]}gb" if memory else plain


_BY_PLAIN_NAME = {f"{_plain(name)} {kind.memory_bytes / 1e9:.0f}gb": name for name, kind in KINDS.items()}
_BY_PLAIN_NAME |= {_plain(name): name for name in KINDS}


def find_kind(name: str) -> str | None:
    """Return the kind that a name in any usual spelling means, or None.

    Example:
      >>> find_kind("NVIDIA A100-SXM4-40GB"), find_kind("AMD EPYC 7742 64-Core Processor")
      ('A100', 'EPYC-7742')
      >>> find_kind("NVIDIA GeForce GT 1030")
    """
    return _BY_PLAIN_NAME.get(_plain(name))


def _parts(name: str) -> tuple[str, int, str]:
    """Return the letters before the first number of a plain name, this number, and the rest."""
    parts = re.fullmatch(r"([a-z]*)(\d*)(.*)", _plain(name))
    return (parts[1], int(parts[2][:9] or 0), parts[3]) if parts else ("", 0, "")


def _nearest(text: str) -> list[str]:
    """Return up to two kinds: those of the nearest number in the same family, or those of similar names."""
    family, number, rest = _parts(text)
    distances = {}
    for name in KINDS:
        its_family, its_number, its_rest = _parts(name)
        if its_family == family and number <= 3 * its_number <= 9 * number:
            is_foreign = name.split("-")[0].lower() not in text.lower()  # such as a Xeon's number, for "RTX"
            similarity = difflib.SequenceMatcher(None, rest, its_rest).ratio()
            distances[name] = (is_foreign, abs(number - its_number), -similarity)
    near = sorted(distances, key=lambda name: distances[name])[:2]
    if near and not distances[near[0]][0]:
        return near
    by_capitals = {name.upper(): name for name in KINDS}
    return [by_capitals[name] for name in difflib.get_close_matches(text.upper(), by_capitals, n=2)] or near


class KindName(Text):
    """The name of a kind in any usual spelling; `read` returns the spelling of the table."""

    def read(self, value: object, name: str = "") -> str:
        text = super().read(value, name)
        if kind := find_kind(text):
            return kind
        raise ValueError(
            f"{name or 'kind'} is {shorten(text)}, which is not a known kind{nearest_text(_nearest(text))}; "
            "`mtf-hetero plan --kinds` lists all; for another device, give peak_flops_per_second, "
            "peak_bytes_per_second and memory_bytes of its data sheet"
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
