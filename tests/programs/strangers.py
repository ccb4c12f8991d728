"""Measures who reaches workers and a training process, for each way of starting them, and prints a table. For root.

    .venv/bin/python tests/programs/strangers.py

Machines are network namespaces. Workers and training are on two networks, and use one. A step runs over two workers,
which shows that each way works. Then strangers try to read a file of mode 600 through the servers, and to write one.
"""

import contextlib
import json
import os
import pathlib
import subprocess
import sys
import tempfile
import time

ROOT = pathlib.Path(__file__).resolve().parents[2]
HOSTS = {"a": "10.91.0.2", "b": "10.91.0.3", "training": "10.91.0.4", "stranger": "10.91.0.5"}
OTHER_NETWORK = {"a": "10.92.0.2", "b": "10.92.0.3", "training": "10.92.0.4", "outsider": "10.92.0.6"}
PORTS = {"a": 2222, "b": 2223, "training": 2229}
LOOPBACK = "127.0.0.1"
NOBODY = 65534
STRANGERS = {  # who: where
    "another user of a worker's machine": "a",
    "another user of the training's machine": "training",
    "another machine": "stranger",
    "a machine of another network": "outsider",
}
SECRET = {"MTF_HETERO_SECRET": "sixteen characters"}

# A step in which each worker reads from the other one
TRAINING = """
import sys
from mtf_hetero import tf
from mtf_hetero.cluster import Cluster, members
with members.Members(sys.argv[1]) as present:
    cluster = Cluster.from_workers(present.wait(2, print), chief=":2229", timeout_seconds=60.0)
    with tf.Graph().as_default():
        x = tf.ones([2])
        for task in (0, 1, 0):
            with tf.device(f"/job:worker/task:{task}"):
                x = x + tf.random.uniform([2], 1, 2)
        with tf.Session(cluster.target, config=cluster.session_config()) as session:
            assert session.run(x).min() >= 4
    print("trained", flush=True)
    sys.stdin.read()
"""

# Tells of each line of addresses what a nameless client can do at one of them
STRANGER = """
import json, os, socket, sys
from mtf_hetero import tf
with tf.Graph().as_default(), tf.Session() as session:
    session.run(tf.constant(1))  # loads what is loaded late
for change, value in ((os.setgroups, []), (os.setgid, int(sys.argv[1])), (os.setuid, int(sys.argv[1]))):
    change(value)
private, new = sys.argv[2:]
def attempt(address, make):
    config = tf.ConfigProto(operation_timeout_in_ms=10_000)
    with tf.Graph().as_default():
        operation = make()
        try:
            with tf.Session(f"grpc://{address}", config=config) as session:
                session.run(operation)
            return True
        except tf.errors.OpError:
            return False
def attack(address):
    host, port = address.split(":")
    try:
        socket.create_connection((host, int(port)), 1).close()
    except OSError:
        return "closed"
    reads = attempt(address, lambda: tf.io.read_file(private))
    writes = attempt(address, lambda: tf.raw_ops.WriteFile(filename=new, contents="x"))
    return "open" if reads and writes else "connects only"
print("ready", flush=True)
for line in sys.stdin:
    print(*{attack(address) for address in line.split()} - {"closed"} or {"closed"}, flush=True)
"""


class Machines:
    """Network namespaces on two networks. A context manager."""

    def __init__(self):
        self._stack = contextlib.ExitStack()

    def __enter__(self):
        names = dict.fromkeys([*HOSTS, *OTHER_NETWORK])
        self.pids = {name: self._hold() for name in ("switch", *names)}
        self._ip("switch", "link add bridge type bridge")
        self._ip("switch", "link set bridge up")
        for name in names:
            self._ip("switch", f"link add to_{name} type veth peer name eth0 netns {self.pids[name]}")
            self._ip("switch", f"link set to_{name} master bridge up")
            for addresses in (HOSTS, OTHER_NETWORK):
                if name in addresses:
                    self._ip(name, f"address add {addresses[name]}/24 dev eth0")
            self._ip(name, "link set eth0 up")
            self._ip(name, "link set lo up")
        return self

    def __exit__(self, *_):
        self._stack.close()

    def _hold(self):
        process = subprocess.Popen(["unshare", "-n", "sh", "-c", "echo; exec cat"], stdin=-1, stdout=-1)
        self._stack.callback(process.wait)
        self._stack.callback(process.stdin.close)
        process.stdout.readline()
        process.stdout.close()
        return process.pid

    def _ip(self, name, arguments):
        subprocess.run(["nsenter", "-t", str(self.pids[name]), "-n", "ip", *arguments.split()], check=True)

    @contextlib.contextmanager
    def run(self, name, command, begin, variables=()):
        """Run a command on a machine until it has printed a line that begins so; end it at the end."""
        environment = os.environ | {"PYTHONPATH": str(ROOT), "PYTHONUNBUFFERED": "1"} | dict(variables)
        command = ["nsenter", "-t", str(self.pids[name]), "-n", *command]
        options = {"stdin": -1, "stdout": -1, "stderr": subprocess.DEVNULL, "text": True, "env": environment}
        with subprocess.Popen(command, **options) as process:
            try:
                if not any(line.startswith(begin) for line in process.stdout or ()):
                    raise RuntimeError(f"{command} ended without {begin!r}")
                yield process
            finally:
                process.terminate()
                process.wait()


def start_workers(machines, stack, *flags, begin="worker listens", variables=()):
    for name in ("a", "b"):
        own = [flag.format(host=HOSTS[name]) for flag in flags]
        command = [sys.executable, "-m", "mtf_hetero", "worker", f"--port={PORTS[name]}", "--gpus=none", *own]
        stack.enter_context(machines.run(name, command, begin, variables))


def start_training(machines, stack, workers=None, variables=()):
    workers = workers or ",".join(f"{HOSTS[name]}:{PORTS[name]}" for name in ("a", "b"))
    command = [sys.executable, "-c", TRAINING, workers]
    stack.enter_context(machines.run("training", command, "trained", variables))


def start_at_all_addresses(machines, stack):
    start_workers(machines, stack)
    start_training(machines, stack)


def start_at_one_address(machines, stack):
    start_workers(machines, stack, "--host={host}")
    start_training(machines, stack)


def start_at_loopback(machines, stack):
    start_workers(machines, stack, f"--host={LOOPBACK}")


def start_with_a_secret(machines, stack):
    start_workers(machines, stack, "--join=10.91.0.4:2300", begin="worker waits", variables=SECRET)


def start_all_with_a_secret(machines, stack):
    start_with_a_secret(machines, stack)
    start_training(machines, stack, ":2300", SECRET)


def start_a_tunnel(machines, stack):
    ssh = f"{sys.executable} {ROOT / 'tests' / 'programs' / 'fake_ssh.py'}"
    hosts = ",".join(f"{name}:{PORTS[name]}" for name in ("a", "b"))
    launch = [sys.executable, "-m", "mtf_hetero", "launch", f"--hosts={hosts}", f"--ssh={ssh}", "--tunnel=ssh"]
    train = ["train", "--model=lenet", "--layout=filters", "--train_epochs=1000", "--quiet", "--port=2229"]
    variables = {"FAKE_SSH_HOSTS": json.dumps(machines.pids)}
    directory = stack.enter_context(tempfile.TemporaryDirectory())
    command = [*launch, "--worker_flags=--gpus=none", "--", *train, f"--model_dir={directory}/run"]
    stack.enter_context(
        machines.run("training", ["sh", "-c", 'exec "$@" 2>&1', "sh", *command], "[b:2223] reached", variables)
    )
    time.sleep(15)  # until it trains


WAYS = {
    "`worker --port=2222`": start_at_all_addresses,
    "`worker --host=` and its address": start_at_one_address,
    "`worker --host=127.0.0.1`": start_at_loopback,
    "`worker --join` with a secret, before a training": start_with_a_secret,
    "`worker --join` with a secret, during a training": start_all_with_a_secret,
    "`launch --tunnel=ssh`": start_a_tunnel,
}


WITHOUT_TRAINING = (start_at_loopback, start_with_a_secret)


def ask(machine, process, targets):
    """Return what a stranger can do with some processes: "closed", "open" or "connects only"."""
    hosts = OTHER_NETWORK if machine == "outsider" else HOSTS
    addresses = [f"{hosts[target]}:{PORTS[target]}" for target in targets]
    if machine in PORTS:
        addresses += [f"{LOOPBACK}:{PORTS[target]}" for target in targets]
    process.stdin.write(f"{' '.join(addresses)}\n")
    process.stdin.flush()
    return process.stdout.readline().strip()


def measure():
    """Yield the lines of the table."""
    yield f"| started by | {' | '.join(STRANGERS)} |"
    yield f"|{(len(STRANGERS) + 1) * '---|'}"
    with contextlib.ExitStack() as stack:
        directory = stack.enter_context(tempfile.TemporaryDirectory())
        private = pathlib.Path(directory) / "private"
        private.touch(mode=0o600)
        machines = stack.enter_context(Machines())
        attack = [sys.executable, "-c", STRANGER, str(NOBODY), str(private), f"{directory}/new"]
        strangers = [(name, stack.enter_context(machines.run(name, attack, "ready"))) for name in STRANGERS.values()]
        for way, begin in WAYS.items():
            with contextlib.ExitStack() as running:
                begin(machines, running)
                cells = [ask(*stranger, "ab") for stranger in strangers]
                if begin not in WITHOUT_TRAINING:
                    others = [ask(*stranger, ["training"]) for stranger in strangers]
                    pairs = zip(cells, others, strict=True)
                    cells = [cell if cell == other else f"worker {cell}, training {other}" for cell, other in pairs]
            yield f"| {way} | {' | '.join(cells)} |"


if __name__ == "__main__":
    for row in measure():
        print(row, flush=True)
