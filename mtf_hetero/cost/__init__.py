"""The cost of a training step on unequal devices: time, memory and messages, predicted, measured and counted.

Example:
  >>> machines = Machines((Machine("gpu:0", 4e12, 3e11), Machine("cpu:0", 1e11, 2e10)), Link(5e-5, 1e9))
  >>> model = Model(graph, machines)  # of a training step's mtf.Graph
  >>> layout = Layout("all:2", "batch:all", sizes={"batch": [100, 28]})
  >>> round(model.seconds(layout), 6)  # of a step; infinity if the layout splits what cannot be split
  0.000279
  >>> model.bytes_held(layout)  # by each device
  (192768, 178944)
  >>> [(transfer.source, transfer.target, transfer.bytes) for transfer in model.sent(layout)]
  [(1, 0, 5376), (0, 1, 19200)]

`load` reads devices from a file, and `calibrate` measures those that are here. Modules: `memory` estimates and measures
a lowered graph, `trace` reads what a step did.
"""

from typing import TYPE_CHECKING

from mtf_hetero._support import lazy

if TYPE_CHECKING:
    from mtf_hetero.cost.calibration import calibrate
    from mtf_hetero.cost.devices_file import load
    from mtf_hetero.cost.links import Link
    from mtf_hetero.cost.machines import Machine, Machines
    from mtf_hetero.cost.model import Model

__all__ = ["Link", "Machine", "Machines", "Model", "calibrate", "load"]

__getattr__, __dir__ = lazy.attach(
    __name__,
    {
        "Link": "links",
        "Machine": "machines",
        "Machines": "machines",
        "Model": "model",
        "calibrate": "calibration",
        "load": "devices_file",
    },
)
