"""A packet filter on the ports of this process's servers: which addresses may connect to them.

TensorFlow's server listens at all addresses of its machine, and serves everyone who connects. It has no option for
either. But Linux lets any process attach a filter to its own sockets (SO_ATTACH_FILTER in socket(7)). The kernel runs
the filter for each packet that arrives at the port, and drops a packet that it refuses. So no connection begins: to
others, the port looks like one behind a firewall.

Example:
  >>> server = tf.train.Server(..., start=False)
  >>> restrict(2222, "127.0.0.1")  # only programs on this machine
  ''
  >>> server.start()
"""

import contextlib
import ctypes
import ipaddress
import os
import socket
import struct
import sys
import threading
from collections.abc import Collection, Iterator, Sequence

_ATTACH_FILTER = 26  # SO_ATTACH_FILTER of asm-generic/socket.h
_LOAD_BYTE, _LOAD_WORD, _AND, _IF_EQUAL, _RETURN = 0x30, 0x20, 0x54, 0x15, 0x06  # of linux/bpf_common.h
_HEADER = 0xFFF00000  # SKF_NET_OFF of linux/filter.h: where the IP header begins
_SOURCE, _DESTINATION = 12, 16  # bytes in an IPv4 header
_ACCEPT, _DROP = (_RETURN, 0, 0, 0xFFFFFFFF), (_RETURN, 0, 0, 0)
_IS_IPV4 = [(_LOAD_BYTE, 0, 0, _HEADER), (_AND, 0, 0, 0xF0), (_IF_EQUAL, 1, 0, 0x40), _DROP]
MOST_PEERS = 1000  # a filter has at most 4096 instructions

Instruction = tuple[int, int, int, int]  # code, jump if true, jump if false, operand

_lock = threading.Lock()
_ports: dict[int, str | None] = {}  # of servers of this process: the one address at which each listens
_peers: frozenset[str] | None = None  # addresses that may connect; None: all


def restrict(port: int, address: str | None) -> str:
    """Restrict a port of this process, at which a server listens that has not been started.

    Args:
      port: of the server.
      address: the only IPv4 address of this machine at which the port can be reached; None: at all addresses.

    Returns:
      Why the system refuses the filter, for the user; "" if the port is restricted as far as it should be.
    """
    with _lock:
        try:
            _attach_to_listeners(port, address)
            # Before the next step, for the server accepts them at any moment: without it, 4 of 146 strangers that
            # connected while a worker started stayed connected
            _refuse_waiting(port)
            _close_others(port, address)
        except OSError as error:
            return f"the system refuses a packet filter: {error.strerror or error}"
        _ports[port] = address
    return ""


def admit(peers: Collection[str] | None) -> None:
    """Admit only some machines to the ports that are restricted, now and later. Connections of others are closed.

    Args:
      peers: IPv4 addresses of at most MOST_PEERS machines; None: all machines.

    Raises:
      OSError: the system refuses the filter.
    """
    global _peers
    with _lock:
        if peers == _peers:
            return
        _peers = None if peers is None else frozenset(peers)
        for port, address in _ports.items():
            _attach_to_listeners(port, address)
            _close_others(port, address)


def why_not() -> str:
    """Return why the system refuses packet filters, for the user; "": it allows them."""
    try:
        with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as trial:
            _attach(trial, convert_to_filter(None, None))
    except OSError as error:
        return f"the system refuses a packet filter: {error.strerror or error}"
    return ""


def is_own(address: str) -> bool:
    """Return whether a text is an IPv4 address of this machine."""
    try:
        ipaddress.IPv4Address(address)
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
            probe.bind((address, 0))
    except (OSError, ValueError):
        return False
    return not ipaddress.IPv4Address(address).is_unspecified


def convert_to_filter(address: str | None, peers: Collection[str] | None) -> list[Instruction]:
    """Return the program that accepts packets to an address from some machines; None: to or from all."""
    program: list[Instruction] = [] if address is None and peers is None else [*_IS_IPV4]
    if address is not None:
        program += [(_LOAD_WORD, 0, 0, _HEADER + _DESTINATION), (_IF_EQUAL, 1, 0, _number(address)), _DROP]
    if peers is not None:
        program.append((_LOAD_WORD, 0, 0, _HEADER + _SOURCE))
        for peer in sorted(peers):
            program += [(_IF_EQUAL, 0, 1, _number(peer)), _ACCEPT]
        return [*program, _DROP]
    return [*program, _ACCEPT]


def _number(address: str) -> int:
    return int(ipaddress.IPv4Address(address))


def _attach_to_listeners(port: int, address: str | None) -> None:
    count = 0
    for listener in filter(_listens, _own_sockets(port)):
        _attach(listener, convert_to_filter(address, _peers))
        count += 1
    if not count:
        raise OSError("no server of this process listens at that port")


def _close_others(port: int, address: str | None) -> None:
    """Close connections that are older than the filter, and that it would refuse."""
    for connection in _own_sockets(port):
        with contextlib.suppress(OSError):  # not connected
            here, there = _ipv4(connection.getsockname()), _ipv4(connection.getpeername())
            if (address is not None and here != address) or (_peers is not None and there not in _peers):
                connection.shutdown(socket.SHUT_RDWR)


def _attach(listener: socket.socket, program: Sequence[Instruction]) -> None:
    if sys.platform != "linux":
        raise OSError("only Linux has one")
    code = ctypes.create_string_buffer(b"".join(struct.pack("HBBI", *instruction) for instruction in program))
    listener.setsockopt(socket.SOL_SOCKET, _ATTACH_FILTER, struct.pack("HP", len(program), ctypes.addressof(code)))


def _refuse_waiting(port: int) -> None:
    """Close connections that the server has not accepted: they may be older than the filter."""
    for listener in filter(_listens, _own_sockets(port)):
        with contextlib.suppress(BlockingIOError):
            while not os.get_blocking(listener.fileno()):
                listener.accept()[0].close()


def _listens(connection: socket.socket) -> bool:
    return bool(connection.getsockopt(socket.SOL_SOCKET, socket.SO_ACCEPTCONN))


def _own_sockets(port: int) -> Iterator[socket.socket]:
    """Yield the TCP sockets of this process with a port, also those that a library has made."""
    for name in os.listdir("/proc/self/fd"):
        try:
            copy = os.dup(int(name))
        except OSError:  # closed meanwhile
            continue
        try:
            own = socket.socket(fileno=copy)
        except OSError:  # no socket
            os.close(copy)
            continue
        with own:
            is_tcp = own.family in (socket.AF_INET, socket.AF_INET6) and own.type == socket.SOCK_STREAM
            if is_tcp and own.getsockname()[1] == port:
                yield own


def _ipv4(name: tuple[str, int]) -> str:
    return name[0].removeprefix("::ffff:")
