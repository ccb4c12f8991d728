"""A program in the place of ssh, for which each host is a network namespace of its own on this machine.

python fake_ssh.py [-o OPTION] [-L FORWARD] [-R FORWARD] HOST COMMAND: carries out COMMAND there, and forwards ports
python fake_ssh.py --enter PROGRAM ...: runs a program, such as sshd, in a new network namespace

FAKE_SSH_HOSTS may be {"HOST": PID, ...}: a host is then the network namespace of that process.
"""

import contextlib
import ctypes
import json
import os
import signal
import socket
import subprocess
import sys
import threading

from mtf_hetero.cluster.emulation import isolation

DIES_WITH_PARENT = 1  # PR_SET_PDEATHSIG of linux/prctl.h


def listen(forwards):
    """Return {listening socket: where its connections lead}, of forwards such as 127.0.0.1:2222:127.0.0.1:2222."""
    places = {}
    for forward in forwards:
        host, port, to_host, to_port = forward.split(":")
        try:
            places[socket.create_server((host, int(port)))] = (to_host, int(to_port))
        except OSError:
            print(f"Error: remote port forwarding failed for listen port {port}", flush=True)
            os._exit(255)
    return places


def copy(source, target):
    with contextlib.suppress(OSError):
        while data := source.recv(1 << 16):
            target.sendall(data)
    for connection in (source, target):
        with contextlib.suppress(OSError):
            connection.shutdown(socket.SHUT_RDWR)


def accept(listener, place):
    while True:
        incoming = listener.accept()[0]
        try:
            outgoing = socket.create_connection(place)
        except OSError:
            incoming.close()
            continue
        for pair in ((incoming, outgoing), (outgoing, incoming)):
            threading.Thread(target=copy, args=pair, daemon=True).start()


def forward(listeners, places):
    for listener, place in zip(listeners, places, strict=True):
        threading.Thread(target=accept, args=(listener, place), daemon=True).start()


def enter(host):
    pid = json.loads(os.environ.get("FAKE_SSH_HOSTS", "{}")).get(host)
    if pid is None:
        isolation._unshare()
        return
    with open(f"/proc/{pid}/ns/net") as namespace:
        if ctypes.CDLL(None).setns(namespace.fileno(), 0):
            raise PermissionError(f"the namespace of process {pid} cannot be entered")


def main():
    if sys.argv[1] == "--enter":
        isolation._unshare()
        os.execv(sys.argv[2], sys.argv[2:])
    options, rest = {"-L": [], "-R": [], "-o": []}, sys.argv[1:]
    while rest[0] in options:
        options[rest[0]].append(rest[1])
        rest = rest[2:]
    here = listen(options["-L"])
    ends = socket.socketpair(socket.AF_UNIX)
    child = os.fork()
    if child == 0:  # the host
        ctypes.CDLL(None).prctl(DIES_WITH_PARENT, signal.SIGKILL)
        enter(rest[0])
        there = listen(options["-R"])
        socket.send_fds(ends[1], [b"."], [listener.fileno() for listener in there])
        forward(here, here.values())
        os._exit(subprocess.call(["sh", "-c", " ".join(rest[1:])]))
    ends[1].close()
    _, descriptors, _, _ = socket.recv_fds(ends[0], 1, 99)
    places = [(to_host, int(to_port)) for _, _, to_host, to_port in (text.split(":") for text in options["-R"])]
    if descriptors:
        forward([socket.socket(fileno=descriptor) for descriptor in descriptors], places)
    os._exit(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) & 255)


if __name__ == "__main__":
    main()
