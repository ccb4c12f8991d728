"""Port forwards of ssh, through which the workers and the training process reach each other.

Each process listens at 127.0.0.1 of its machine, at a port that no other one has. On every machine, ssh listens at the
ports of the others. So an address such as 127.0.0.1:2223 leads to the same worker from every machine, as TensorFlow
needs it. Data between two workers pass through the machine of the training process.
"""

import dataclasses
from collections.abc import Sequence

from mtf_hetero.cluster.launcher import Host
from mtf_hetero.cluster.probe import PORTS, is_free

HERE = "127.0.0.1"
# A shared connection would keep its forwards after the training
_OPTIONS = ("-o", "ExitOnForwardFailure=yes", "-o", "ControlPath=none")


def assign_ports(hosts: Sequence[Host], port: int) -> tuple[Host, ...]:
    """Return the hosts with a port for each worker: its own, or the next free one of the list.

    Args:
      hosts: of the workers. A host without a port of its own has port 0.
      port: of the first worker without one.

    Raises:
      ValueError: two workers have one port, or there are no more ports.
    """
    fixed: dict[int, Host] = {}
    for host in hosts:
        if host.port in fixed:
            raise ValueError(
                f"hosts {fixed[host.port].text!r} and {host.text!r} have the same port; with --tunnel, give each "
                "worker its own"
            )
        if host.port:
            fixed[host.port] = host
    assigned = []
    for host in hosts:
        while not host.port and port in fixed:
            port += 1
        if not host.port:
            host, port = dataclasses.replace(host, port=port), port + 1
        if host.port not in PORTS:
            raise ValueError(f"host {host.text!r} would have port {host.port}; the highest is 65535, so lower --port")
        assigned.append(host)
    return tuple(assigned)


def find_port(hosts: Sequence[Host]) -> int:
    """Return a port of the training process: the first one above those of the workers that is free here."""
    for port in range(max(host.port for host in hosts) + 1, PORTS.stop):
        if is_free(port, HERE):
            return port
    raise ValueError("no port above those of the workers is free on this machine; lower --port")


def check_ports(hosts: Sequence[Host], own: int) -> None:
    """Raise ValueError unless ssh and the training process can listen here at the ports of a tunnel."""
    for port in [*(host.port for host in hosts), own]:
        if not is_free(port, HERE):
            raise ValueError(
                f"port {port} of this machine is in use; with --tunnel, the ports of all workers must be free here: "
                "choose others with --port"
            )
    if own in {host.port for host in hosts}:
        raise ValueError(f"the training process and a worker have port {own}; with --tunnel, give each its own")


def forwards(hosts: Sequence[Host], own: int) -> list[list[str]]:
    """Return ssh's options for each host; the worker's port leads there, and those of others lead back.

    Args:
      hosts: of the workers, each with its port.
      own: port of the training process.
    """
    options: list[list[str]] = []
    names: set[str] = set()
    for host in hosts:
        if host.is_local:
            options.append([])
            continue
        others = [] if host.name in names else [other.port for other in hosts if other.name != host.name] + [own]
        names.add(host.name)
        back = [option for port in others for option in ("-R", _forward(port))]
        options.append([*_OPTIONS, "-L", _forward(host.port), *back])
    return options


def _forward(port: int) -> str:
    return f"{HERE}:{port}:{HERE}:{port}"
