"""How fast each device is on the layers of a graph, and how fast the links between the devices are, by measuring.

`mtf-hetero profile` does it for a graph of one's own. What measures loads TensorFlow: a name is imported when
it is first asked for.
"""

from typing import TYPE_CHECKING

from mtf_hetero._support import lazy

if TYPE_CHECKING:
    from mtf_hetero.profile.effort import Effort
    from mtf_hetero.profile.hardware import cache_directory
    from mtf_hetero.profile.link import measure_link
    from mtf_hetero.profile.measurement import Measured, conclusion, measure, table

__all__ = ["Effort", "Measured", "cache_directory", "conclusion", "measure", "measure_link", "table"]

__getattr__, __dir__ = lazy.attach(
    __name__,
    {
        "Effort": "effort",
        "Measured": "measurement",
        "cache_directory": "hardware",
        "conclusion": "measurement",
        "measure": "measurement",
        "measure_link": "link",
        "table": "measurement",
    },
)
