"""A proxy that forwards so many connections to a port, and accepts the others without a word. Prints its own port."""

import contextlib
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator


@contextlib.contextmanager
def silent_after(count: int, address: str) -> Iterator[str]:
    """Yield the address of a proxy of a worker, in a process of its own, that forwards so many connections."""
    command = [sys.executable, __file__, address.split(":")[1], str(count)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        try:
            yield f"127.0.0.1:{process.stdout.readline().strip()}"
        finally:
            process.kill()


def pipe(source: socket.socket, target: socket.socket) -> None:
    while data := source.recv(65536):
        target.sendall(data)
    target.close()


def main() -> None:
    port, forwarded = map(int, sys.argv[1:])
    listener = socket.create_server(("127.0.0.1", 0))
    print(listener.getsockname()[1], flush=True)
    silent = []
    while True:
        client, _ = listener.accept()
        if forwarded <= 0:
            silent.append(client)
            continue
        forwarded -= 1
        server = socket.create_connection(("127.0.0.1", port))
        for ends in ((client, server), (server, client)):
            threading.Thread(target=pipe, args=ends, daemon=True).start()


if __name__ == "__main__":
    main()
