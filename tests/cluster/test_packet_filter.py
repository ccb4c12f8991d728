"""The packet filter of a port: which addresses can connect, and to which address of this machine."""

import os
import socket
import subprocess
import sys
import threading

import pytest
from ports import free_port

from mtf_hetero.cluster import packet_filter

HERE, THERE, STRANGER = "127.0.0.1", "127.0.0.2", "127.0.0.3"  # addresses of loopback, as of three machines


@pytest.fixture
def listener(monkeypatch):
    """A socket that listens at all addresses, as TensorFlow's does."""
    monkeypatch.setattr(packet_filter, "_ports", {})
    monkeypatch.setattr(packet_filter, "_peers", None)
    with socket.create_server(("::", 0), family=socket.AF_INET6, dualstack_ipv6=True) as server:
        server.setblocking(False)
        yield server


def connect(listener, address=HERE, source=HERE):
    """Return the connection of a client; None: the kernel drops its packets."""
    try:
        return socket.create_connection((address, listener.getsockname()[1]), 0.3, source_address=(source, 0))
    except TimeoutError:
        return None


def is_open(*arguments):
    connection = connect(*arguments)
    if connection is not None:
        connection.close()
    return connection is not None


def test_only_one_address_is_reached(listener):
    assert is_open(listener, THERE)
    assert packet_filter.restrict(listener.getsockname()[1], HERE) == ""
    assert is_open(listener) and not is_open(listener, THERE)
    with pytest.raises(TimeoutError):
        socket.create_connection(("::1", listener.getsockname()[1]), 0.3)


def test_only_admitted_machines_connect(listener):
    packet_filter.admit([])
    assert packet_filter.restrict(listener.getsockname()[1], None) == ""
    assert not is_open(listener)
    packet_filter.admit([HERE, THERE])
    assert is_open(listener) and is_open(listener, HERE, THERE) and not is_open(listener, HERE, STRANGER)
    packet_filter.admit([THERE])
    assert is_open(listener, HERE, THERE) and not is_open(listener)
    packet_filter.admit(None)
    assert is_open(listener, STRANGER, STRANGER)


def test_as_many_machines_as_a_filter_has_room_for(listener):
    packet_filter.admit(
        [f"10.0.{number // 250}.{number % 250}" for number in range(packet_filter.MOST_PEERS - 1)] + [HERE]
    )
    assert packet_filter.restrict(listener.getsockname()[1], HERE) == ""
    assert is_open(listener) and not is_open(listener, HERE, STRANGER)


def test_older_connections_are_closed(listener):
    accepted = connect(listener, THERE)
    at_server = listener.accept()[0]
    waiting, kept = connect(listener, THERE), None
    assert packet_filter.restrict(listener.getsockname()[1], HERE) == ""
    assert accepted.recv(1) == b"" and waiting.recv(1) == b""
    kept = connect(listener)
    at_server_kept = listener.accept()[0]
    packet_filter.admit([HERE])
    kept.sendall(b"x")
    assert at_server_kept.recv(1) == b"x"
    packet_filter.admit([THERE])
    assert kept.recv(1) == b""
    for connection in (accepted, at_server, waiting, kept, at_server_kept):
        connection.close()


def test_a_port_without_a_server_is_refused(listener):
    port = listener.getsockname()[1]
    listener.close()
    message = "the system refuses a packet filter: no server of this process listens at that port"
    assert packet_filter.restrict(port, HERE) == message


def test_other_sockets_stay_as_they_are(listener):
    """A file descriptor may be closed or be another file at any moment."""
    stop = threading.Event()

    def churn():
        while not stop.is_set():
            os.close(os.open(os.devnull, os.O_RDONLY))

    thread = threading.Thread(target=churn)
    thread.start()
    try:
        for _ in range(50):
            assert packet_filter.restrict(listener.getsockname()[1], HERE) == ""
    finally:
        stop.set()
        thread.join()
    assert is_open(listener)


@pytest.mark.parametrize(
    ("address", "own"),
    [("127.0.0.1", True), ("203.0.113.77", False), ("0.0.0.0", False), ("localhost", False), ("::1", False)],
)
def test_addresses_of_this_machine(address, own):
    assert packet_filter.is_own(address) == own


PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + bytes([0, 0, 0, 4, 0, 0, 0, 0, 0])
PING = bytes([0, 0, 8, 6, 0, 0, 0, 0, 0]) + b"abcdefgh"


def connect_again_and_again(port, connections, stop):
    """Add connections to the other address of a worker, which accepts them until it has its filter."""
    while not stop.is_set():
        try:
            connections.append(socket.create_connection((THERE, port), 0.05))
            connections[-1].settimeout(1)
            connections[-1].sendall(PREFACE)
            connections[-1].recv(100)
        except OSError:
            continue


def answers(connection):
    try:
        connection.sendall(PING)
        while data := connection.recv(4096):
            if PING[-8:] in data:
                return True
    except OSError:
        pass
    return False


@pytest.mark.full
def test_no_connection_is_older_than_the_filter():
    """Strangers connect all the time while a worker starts: some come before the filter, and none of these stays."""
    early = []
    for _ in range(4):
        port, connections, stop = free_port(), [], threading.Event()
        arguments = (port, connections, stop)
        clients = [threading.Thread(target=connect_again_and_again, args=arguments) for _ in range(4)]
        command = [sys.executable, "-m", "mtf_hetero", "worker", f"--port={port}", f"--host={HERE}", "--gpus=none"]
        with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as worker:
            try:
                for client in clients:
                    client.start()
                assert any(line.startswith("reached by programs on this machine only") for line in worker.stdout or ())
                stop.set()
                for client in clients:
                    client.join()
                socket.create_connection((HERE, port), 1).close()
                assert not any(map(answers, connections))
            finally:
                stop.set()
                worker.terminate()
        early += connections
        for connection in connections:
            connection.close()
    assert early  # so the test is one
