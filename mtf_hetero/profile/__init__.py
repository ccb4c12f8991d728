"""Measurements of devices: trial steps, traces of them, links, memory, and the work of a step.

`mtf-hetero profile` measures the devices of a cluster on a program; the planner does it for `auto`. What measures loads
TensorFlow: a name is imported when it is first asked for.
"""

from typing import TYPE_CHECKING

from mtf_hetero._support import lazy

if TYPE_CHECKING:
    from mtf_hetero.profile.hardware import cache_directory
    from mtf_hetero.profile.link import Link
    from mtf_hetero.profile.messages import measure_link

__all__ = ["Link", "cache_directory", "measure_link"]

__getattr__, __dir__ = lazy.attach(
    __name__, {"Link": "link", "cache_directory": "hardware", "measure_link": "messages"}
)
