"""A TensorFlow worker: offers this machine's devices to training runs on other machines.

    mtf-hetero worker --port=2222

It serves until Ctrl-C or SIGTERM. A training process names the worker: `--workers=this-machine:2222`. The worker does
not know the cluster: each session describes the cluster to it. Under TF_CONFIG and in a Slurm step, the worker finds
its port without --port. Or the worker names the training process, and registers with it:

    mtf-hetero worker --join=trainer:2300

TensorFlow's server has no authentication: anyone who reaches its port can run code here. The worker prints who can.
With --host=127.0.0.1, or another address of this machine, the port is closed at all other addresses.

Exit codes: 2 for a wrong flag or a port in use (one line says which), 130 after Ctrl-C and 143 after SIGTERM.
"""

import argparse
import contextlib
import ctypes
import getpass
import math
import os
import platform
import signal
import socket
import sys
import threading
from collections.abc import Sequence
from typing import TYPE_CHECKING

from mtf_hetero._support import command_line, cores
from mtf_hetero.cluster import granted, packet_filter, runtime, secret, versions
from mtf_hetero.cluster.devices import MOST_CPUS, listed_devices
from mtf_hetero.cluster.members import keep_registered
from mtf_hetero.cluster.probe import PORTS, is_free, split_address

if TYPE_CHECKING:
    from mtf_hetero._compat import tf

PROGRAM = "mtf-hetero worker"
LISTENS = "worker listens on "  # begins the line that is printed at the start
_LOOPBACK = "127.0.0.1"
_NAMES_THE_PORT = ("TF_CONFIG", "SLURM_STEP_NUM_TASKS")  # of the environment
_NO_PORT = "--port is missing, and neither TF_CONFIG nor Slurm gives one; write --port=2222"
_TURN_NS = 100_000  # the shortest that Linux grants
_SCHED_SETATTR = {"x86_64": 314, "aarch64": 274}  # numbers of the system call
_RETURNED_BYTES = 2**16  # least size of a block to return; gRPC receives in blocks of this size
_M_TRIM_THRESHOLD, _M_MMAP_THRESHOLD = -1, -3  # of mallopt, in glibc's malloc.h


def _parse(argv: Sequence[str] | None, program: str) -> argparse.Namespace:
    parser = command_line.Parser(
        prog=program,
        description="Offers this machine's devices to training runs on other machines.",
        epilog="TensorFlow's server has no authentication: anyone who reaches the port can run code here. "
        "With --host=ADDRESS, it can be reached at that address only.",
    )
    parser.add_argument(
        "--port", type=int, help="port to listen on; 0: any free port (default: the port in TF_CONFIG or Slurm's step)"
    )
    parser.add_argument(
        "--host",
        help="name of this machine for others (default: its host name; for --join, the address from which it calls); "
        "an IPv4 address of this machine also closes the port at all other addresses, so 127.0.0.1 admits only "
        "programs on this machine",
    )
    parser.add_argument(
        "--join",
        metavar="HOST:PORT",
        help="register with the training process there, which has the flag --workers=:PORT; --port is 0 by default; "
        f"if {secret.VARIABLE} is set here and there, the ports are closed to all other machines",
    )
    parser.add_argument("--cpus", type=int, default=1, help="number of logical CPU devices (default: 1)")
    parser.add_argument("--gpus", default="all", help="GPUs to offer: all, none, or numbers such as 0,2 (default: all)")
    parser.add_argument(
        "--threads", type=int, default=0, help="CPU threads; 0: one per core that it may use (default: 0)"
    )
    parser.add_argument(
        "--until_eof", action="store_true", help="end when the standard input closes, as mtf-hetero launch has it"
    )
    parser.add_argument(
        "--return_memory",
        action="store_true",
        help="return freed memory to the system at once, so that the worker uses the memory that --dry_run predicts; "
        "by default, TensorFlow keeps freed memory for the next step, which is faster",
    )
    return parser.parse_args(argv)


def _check(arguments: argparse.Namespace) -> None:
    """Check the flags before TensorFlow is loaded, which takes seconds."""
    if arguments.port is None and arguments.join is not None:
        arguments.port = 0
    if arguments.port is not None and arguments.port != 0 and arguments.port not in PORTS:
        raise ValueError(f"--port is {arguments.port}; it must be from 1 to 65535, or 0 for a free one")
    if arguments.port is None and not any(os.environ.get(name) for name in _NAMES_THE_PORT):
        raise ValueError(_NO_PORT)
    if arguments.host is not None:
        _check_address("host", arguments.host, f"{arguments.host}:1", "a host name or an IPv4 address")
    if arguments.join is not None:
        _check_address("join", arguments.join, arguments.join, "host:port of the training, such as 10.0.0.7:2300")
    if not 1 <= arguments.cpus <= MOST_CPUS:
        raise ValueError(f"--cpus is {arguments.cpus}; it must be from 1 to {MOST_CPUS}")
    if arguments.threads < 0:
        raise ValueError(f"--threads is {arguments.threads}; it must be 0 or a positive whole number")
    if arguments.gpus not in ("all", "none") and not all(gpu.isdecimal() for gpu in arguments.gpus.split(",")):
        raise ValueError(f"--gpus is {arguments.gpus!r}; give all, none or numbers such as 0,2")
    if arguments.port:
        _check_free(arguments.port)
    arguments.key = _read_secret(arguments.join)


def _read_secret(training: str | None) -> bytes | None:
    """Return the secret of the worker and the training that it joins; None: there is none."""
    key = None if training is None else secret.read()
    if key is not None:
        _check_filter(packet_filter.why_not())
    return key


def _check_filter(refusal: str) -> None:
    if refusal:
        raise ValueError(f"{secret.VARIABLE} is set, but {refusal}; unset it to admit every machine")


def _check_address(flag: str, value: str, address: str, right: str) -> None:
    try:
        split_address(address)
    except ValueError:
        raise ValueError(f"--{flag} is {value!r}; write {right}") from None


def _check_free(port: int) -> None:
    if not is_free(port):
        raise ValueError(
            f"--port is {port}, which is in use on this machine; choose another port, or end the program that uses it"
        )


def _port(arguments: argparse.Namespace) -> int:
    """Return the port to listen on: the flag's, or else the environment's."""
    if arguments.port is not None:
        return arguments.port
    from mtf_hetero.cluster.environment import task_of_environment  # loads TensorFlow

    task = task_of_environment()
    if task is None:
        raise ValueError(_NO_PORT)
    if task.job != "worker":
        raise ValueError(f"this process is {task.job} {task.index} of {task.source}, which trains; write --port=2222")
    port = int(task.address.rpartition(":")[2])
    _check_free(port)
    return port


def _session_config(arguments: argparse.Namespace) -> "tf.ConfigProto":
    """Return the configuration of the server's devices and threads."""
    tf = runtime.load()
    threads = arguments.threads or _granted_threads()
    config = tf.ConfigProto(
        device_count={"CPU": arguments.cpus},
        intra_op_parallelism_threads=threads,
        inter_op_parallelism_threads=max(threads, cores.OPERATIONS),
    )
    config.gpu_options.allow_growth = True
    if arguments.gpus == "none":
        config.device_count["GPU"] = 0
    elif arguments.gpus != "all":
        numbers, there = arguments.gpus.split(","), len(tf.config.list_physical_devices("GPU"))
        if not all(int(number) < there for number in numbers):
            gpus = ", ".join(str(number) for number in range(there)) or "none"
            raise ValueError(f"--gpus is {arguments.gpus!r}, but the GPUs here are: {gpus}; give all, none or numbers")
        config.gpu_options.visible_device_list = arguments.gpus
    return config


def _granted_threads() -> int:
    """Return one thread per core that this process may use.

    More threads than a container's quota use it up in a part of each period, for the rest of which all of them stand.
    """
    return math.ceil(min(len(cores.usable_cores()), granted.cores() or math.inf))


def _return_memory() -> None:
    """Make glibc's malloc return freed memory at once, and TensorFlow use malloc instead of its cache."""
    os.environ["TF_ONEDNN_USE_SYSTEM_ALLOCATOR"] = "1"  # read when TensorFlow first allocates a tensor
    with contextlib.suppress(AttributeError, OSError, TypeError):
        mallopt = ctypes.CDLL(None).mallopt
        for option in (_M_TRIM_THRESHOLD, _M_MMAP_THRESHOLD):
            mallopt(option, _RETURNED_BYTES)


class _SchedAttr(ctypes.Structure):
    """The first version of sched_setattr(2)'s argument."""

    _fields_ = (
        ("size", ctypes.c_uint32),
        ("policy", ctypes.c_uint32),
        ("flags", ctypes.c_uint64),
        ("nice", ctypes.c_int32),
        ("priority", ctypes.c_uint32),
        ("runtime", ctypes.c_uint64),
        ("deadline", ctypes.c_uint64),
        ("period", ctypes.c_uint64),
    )


def _take_short_turns() -> None:
    """Make Linux run a thread soon after a message wakes it; before Linux 6.12, does nothing.

    A thread that wakes waits for the end of the computing thread's turn: 1.4 to 3 ms, longer than most messages take.
    Threads inherit the length of their turns from the thread that starts them.
    """
    number = _SCHED_SETATTR.get(platform.machine()) if sys.platform == "linux" else None
    if number is None or os.sched_getscheduler(0) != os.SCHED_OTHER:
        return
    nice = os.getpriority(os.PRIO_PROCESS, 0)
    attributes = _SchedAttr(ctypes.sizeof(_SchedAttr), os.SCHED_OTHER, 0, nice, 0, _TURN_NS, 0, 0)
    with contextlib.suppress(AttributeError, OSError):
        ctypes.CDLL(None).syscall(number, 0, ctypes.byref(attributes), 0)  # an older kernel ignores the turn


def _start(arguments: argparse.Namespace) -> tuple["tf.train.Server", str]:
    """Start the server; returns it, and the line about who reaches it."""
    tf = runtime.load()
    port, config = _port(arguments), _session_config(arguments)
    address, jobs = _listening_address(arguments.host), {"server": [f"localhost:{port}"]}
    try:
        server = tf.train.Server(jobs, job_name="server", task_index=0, config=config, start=False)
    except tf.errors.OpError as error:
        raise ValueError(f"--port is {port}, where TensorFlow cannot start a server: {error.message}") from error
    port = int(server.target.rpartition(":")[2])
    refusal = ""
    if arguments.key is not None:
        packet_filter.admit(())
    if arguments.key is not None or address is not None:
        refusal = packet_filter.restrict(port, address)  # before it serves anyone
    if arguments.key is not None:
        _check_filter(refusal)
    server.start()
    return server, _describe_reach(port, address, refusal, arguments.join if arguments.key is not None else None)


def _listening_address(host: str | None) -> str | None:
    """Return the one address of this machine at which the worker can be reached; None: all of them."""
    host = _LOOPBACK if host == "localhost" else host
    return host if host and packet_filter.is_own(host) else None


def _describe_reach(port: int, address: str | None, refusal: str, training: str | None = None) -> str:
    """Return the line about who reaches the worker.

    Args:
      port: of the worker.
      address: the only one at which it should be reached; None: all addresses of this machine.
      refusal: why the system does not restrict the port; "": it does.
      training: the one that has to prove the secret; None: there is no secret.
    """
    harm = f"can run code as {_user()}, because TensorFlow's server has no authentication"
    if training is not None:
        return (
            f"reached by nobody until the training at {training} proves {secret.VARIABLE}, then by its machines only: "
            f"each user of them {harm}"
        )
    if os.environ.get(secret.VARIABLE):
        harm += f"; {secret.VARIABLE} has no effect without --join"
    if address is None or refusal:
        remedy = f"--host={address} has no effect: {refusal}" if refusal else "--host=ADDRESS opens one address only"
        return f"warning: anyone who reaches port {port} at any address of this machine {harm}; {remedy}"
    if address.startswith("127."):
        return f"reached by programs on this machine only: each of them, of any user, {harm}"
    return f"warning: anyone who reaches {address}:{port} {harm}; the port is closed at other addresses"


def _devices(server: "tf.train.Server") -> str:
    tf = runtime.load()
    with tf.Graph().as_default(), tf.Session(server.target) as session:
        devices = listed_devices([device.name for device in session.list_devices()])
    return ", ".join(sorted(device.short_name for device in devices))


def _end_with_input() -> None:
    """End the process, at any moment, when nobody can write to its standard input any more."""
    with contextlib.suppress(OSError):
        while os.read(0, 1 << 16):
            pass
    os._exit(0)


def _print(line: str) -> None:
    sys.stdout.write(f"{line}\n")
    sys.stdout.flush()


def _user() -> str:
    try:
        return getpass.getuser()
    except (KeyError, OSError):  # a container may run as a user without a name
        return f"user {os.getuid()}"


def main(argv: Sequence[str] | None = None, program: str = PROGRAM) -> int:
    """Serve as the command line says; returns the exit code."""
    arguments = _parse(argv, program)
    signals = (signal.SIGINT, signal.SIGTERM)
    signal.pthread_sigmask(signal.SIG_BLOCK, signals)  # before TensorFlow's threads begin, which inherit it
    if arguments.until_eof:
        threading.Thread(target=_end_with_input, name="input", daemon=True).start()
    if arguments.return_memory:
        _return_memory()
    try:
        _check(arguments)
        with command_line.capture_stderr():
            server, reach = _start(arguments)
            devices = _devices(server)
            versions.publish(server.target, versions.own())
    except ValueError as error:
        command_line.say(error)
        return command_line.WRONG_USAGE
    host, port = arguments.host or socket.gethostname(), int(server.target.rpartition(":")[2])
    _print(f"{LISTENS}{host}:{port} with {devices}")
    _print(reach)
    if arguments.join is not None:
        where = (arguments.join, arguments.host, port, _print, threading.Event())
        options = {"key": arguments.key}
        threading.Thread(target=keep_registered, args=where, kwargs=options, name="registration", daemon=True).start()
    number = signal.sigwait(signals)
    sys.stdout.write(f"worker stopped by {signal.Signals(number).name}\n")
    sys.stdout.flush()
    return 128 + number


def run(argv: Sequence[str] | None = None, program: str = PROGRAM) -> None:
    """Run the process and end it with the exit code of `main`."""
    command_line.begin_process()
    _take_short_turns()
    if not any(os.environ.get(name) for name in _NAMES_THE_PORT):  # TensorFlow's API reads these
        runtime.leave_out_api()
    code = main(argv, program)
    sys.stdout.flush()
    os._exit(code)  # TensorFlow cannot stop a server, and may wait for its sessions


if __name__ == "__main__":
    run()
