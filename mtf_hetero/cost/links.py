"""Links between devices: their figures, and the words that a user may write for them, such as "pcie4" or "10Gbit/s"."""

import dataclasses
import math
import numbers
import re
from collections.abc import Mapping
from types import MappingProxyType

from mtf_hetero._support.schema import Number, OrWords, Record, near_text, shorten

REACHED = 0.8  # of a link's rate, by messages
_NETWORK_SECONDS = 5e-5  # latency of a message through TensorFlow's gRPC between two hosts of a wired network
_BUS_SECONDS = 1e-5  # between two devices of one machine: a launch of a copy
_RATE = re.compile(r"(\d+(?:\.\d+)?)([kmgt]?)(bits?/s|bps|b/s|bytes?/s)")
_PREFIXES = {"": 1.0, "k": 1e3, "m": 1e6, "g": 1e9, "t": 1e12}


def is_number(x: object) -> bool:
    """Return whether something is a finite real number, and no bool."""
    return isinstance(x, numbers.Real) and not isinstance(x, bool) and math.isfinite(x)


@dataclasses.dataclass(frozen=True)
class Link:
    """A link from one device to another.

    Args:
      latency_seconds: of a message, before any byte.
      bytes_per_second: bandwidth.

    Raises:
      ValueError: a latency below zero, or a bandwidth that is not positive.
    """

    latency_seconds: float
    bytes_per_second: float

    def __post_init__(self) -> None:
        if not (is_number(self.latency_seconds) and self.latency_seconds >= 0):
            raise ValueError(f"latency_seconds of a link is {self.latency_seconds!r}; it must be zero or more")
        if not (is_number(self.bytes_per_second) and self.bytes_per_second > 0):
            raise ValueError(f"bytes_per_second of a link is {self.bytes_per_second!r}; it must be greater than zero")

    def seconds(self, message_bytes: float) -> float:
        """Return the seconds of a message."""
        return self.latency_seconds + message_bytes / self.bytes_per_second


def _bus(bytes_per_second: float) -> Link:
    return Link(_BUS_SECONDS, REACHED * bytes_per_second)


LINKS: Mapping[str, Link] = MappingProxyType(  # {name: what messages reach, one way}
    {
        # 16 lanes of 8, 16 and 32 GT/s, 128 of 130 bits: https://pcisig.com/specifications
        "pcie3": _bus(15.75e9),
        "pcie4": _bus(31.5e9),
        "pcie5": _bus(63e9),
        # Half of the sum of both directions: https://www.nvidia.com/en-us/data-center/nvlink/. The bridge joins two
        # RTX 3090: https://www.nvidia.com/content/PDF/nvidia-ampere-ga-102-gpu-architecture-whitepaper-v2.pdf
        "nvlink2": _bus(150e9),
        "nvlink3": _bus(300e9),
        "nvlink4": _bus(450e9),
        "nvlink5": _bus(900e9),
        "nvlink-bridge": _bus(56.25e9),
        # Thunderbolt 3 and 4: 32 of 40 Gbit/s are for PCIe, by Intel's technology brief of 2020
        "thunderbolt": _bus(4e9),
        # IEEE 802.11ac, two streams of 80 MHz: 867 Mbit/s on the air, about half of it by TCP
        "wifi": Link(3e-3, 0.5 * 867e6 / 8),
    }
)
_OTHER_NAMES = {"nvlink": "nvlink3", "thunderbolt3": "thunderbolt", "thunderbolt4": "thunderbolt", "wi-fi": "wifi"}


def parse_link(text: str) -> Link:
    """Return the link that a user means: a name of LINKS, or a rate such as "10Gbit/s", "400 Mbit/s" or "12 GB/s".

    Messages reach 80 % of a rate, with the latency of a wired network.

    Raises:
      ValueError: it is neither; the nearest names.
    """
    plain = text.strip().lower().replace(" ", "").replace("_", "-")
    name = _OTHER_NAMES.get(plain, plain)
    if name in LINKS:
        return LINKS[name]
    rate = _RATE.fullmatch(plain)
    if rate and float(rate[1]) > 0:
        is_bytes = "byte" in rate[3] or text.strip()[-3] == "B"  # "12 GB/s" is of bytes, "10 Gb/s" of bits
        return Link(_NETWORK_SECONDS, REACHED * float(rate[1]) * _PREFIXES[rate[2]] / (1 if is_bytes else 8))
    nearest = near_text(plain, (*LINKS, *_OTHER_NAMES))
    raise ValueError(
        f"{shorten(text)} is not a known link{nearest}; write {', '.join(LINKS)}, or a rate such as 10Gbit/s"
    )


SECONDS, RATE = Number(least=0, most=1e6, of_text=True), Number(least=1, of_text=True)  # in a file of devices
LINK_FIELDS = {"latency_seconds": SECONDS, "bytes_per_second": RATE}
LINK_VALUE = OrWords(Record(LINK_FIELDS), lambda text: dataclasses.asdict(parse_link(text)), "pcie4 or 10Gbit/s")
