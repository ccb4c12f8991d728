"""Starts workers on several hosts over ssh, trains on them, and ends them.

    mtf-hetero launch --hosts=a,b,c -- train --model=vgg11 --layout=batch
    mtf-hetero launch --hosts=localhost:2222,localhost:2223 -- train

It runs `mtf-hetero worker` on each host, waits until all workers answer, and runs the command after `--` here, with
--workers. What the workers print is shown with the name of the host. The workers end with the command, even if this
program is killed.

ssh must not ask for a password. mtf_hetero must be installed on each host. The hosts and this machine must reach each
other by these names, or only ssh must reach the hosts: with --tunnel=ssh, all data pass through it.

Exit codes: that of the command; 2 for a wrong flag or a worker that does not start (a line for each says why).
"""

import argparse
import contextlib
import dataclasses
import itertools
import os
import shlex
import signal
import subprocess
import sys
import threading
from collections.abc import Sequence
from types import FrameType

from mtf_hetero._support import command_line, files
from mtf_hetero.cli.train import __main__ as train
from mtf_hetero.cli.train import leaving
from mtf_hetero.cluster import launcher, tunnel
from mtf_hetero.cluster.launcher import Host, LaunchedWorkers
from mtf_hetero.cluster.probe import PORTS, is_port

PROGRAM = "mtf-hetero launch"
_COMMANDS = ("train", "evaluate", "predict", "profile", "devices")
_COLORS = (36, 33, 32, 35, 34)  # cyan, yellow, green, magenta, blue
_FORWARDED = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


def _parser(program: str) -> command_line.Parser:
    parser = command_line.Parser(
        prog=program,
        usage="%(prog)s --hosts=HOST,... [--FLAG=VALUE ...] --\n       COMMAND [--FLAG=VALUE ...]",
        description="Starts workers on several hosts over ssh, trains on them, and ends them.",
        epilog=f"COMMAND is one of {', '.join(_COMMANDS)}. It runs on this machine, with --workers.",
    )
    hosts = parser.add_mutually_exclusive_group(required=True)
    hosts.add_argument(
        "--hosts",
        metavar="HOST,...",
        help="hosts of the workers: b, user@b or b:2223 with a port; localhost needs no ssh, and with ports it has "
        "several workers: localhost:2222,localhost:2223",
    )
    hosts.add_argument("--hostfile", metavar="FILE", help="file with one such host per line")
    parser.add_argument(
        "--port", type=int, default=2222, help="port of each worker whose host has none (default: 2222)"
    )
    parser.add_argument(
        "--ssh",
        default="ssh -o BatchMode=yes",
        metavar="COMMAND",
        help="command that gets a host and a shell command, such as 'ssh -p 2200 -i key' "
        "(default: ssh -o BatchMode=yes)",
    )
    parser.add_argument(
        "--tunnel",
        choices=["ssh"],
        help="ssh: the workers and the training process listen at 127.0.0.1 only, and all data pass through ssh; each "
        "worker has a port of its own on all machines: --port, the next one, ...",
    )
    parser.add_argument(
        "--python",
        default=sys.executable,
        metavar="COMMAND",
        help="command that runs Python on each host, such as /opt/venv/bin/python, or 'conda run -n tf python' "
        "(default: the path of this Python)",
    )
    parser.add_argument(
        "--env",
        action="append",
        default=[],
        metavar="NAME[=VALUE]",
        help="environment variable of the workers, sent through the standard input; without a value, as it is here; "
        "may be given several times",
    )
    parser.add_argument(
        "--worker_flags",
        default="",
        metavar="FLAGS",
        help="flags of mtf-hetero worker, such as '--threads=4 --gpus=none'",
    )
    parser.add_argument(
        "--start_seconds", type=float, default=60.0, help="seconds within which all workers must answer (default: 60)"
    )
    parser.add_argument(
        "--restarts",
        type=int,
        default=0,
        metavar="N",
        help="how often to start a worker again that ends during the training (default: 0)",
    )
    parser.add_argument(
        "--log_dir", metavar="DIR", help="directory of a log per worker, HOST_PORT.log, with all lines that it prints"
    )
    parser.add_argument("--dry_run", action="store_true", help="print the commands, and stop")
    return parser


def _check(arguments: argparse.Namespace, command: Sequence[str]) -> None:
    if arguments.port not in PORTS:
        raise ValueError(f"--port is {arguments.port}; it must be from 1 to 65535")
    if not arguments.start_seconds > 0:
        raise ValueError(f"--start_seconds is {arguments.start_seconds:g}; it must be a positive number")
    if arguments.restarts < 0:
        raise ValueError(f"--restarts is {arguments.restarts}; it must be 0 or more")
    for name in ("ssh", "python"):
        if not shlex.split(getattr(arguments, name)):
            raise ValueError(f"--{name} is empty; give a command, or leave it out")
    _check_command(command)


def _check_command(command: Sequence[str]) -> None:
    """Find mistakes in the command before any worker starts."""
    if not command:
        raise ValueError("no command is given; write it after --, as in mtf-hetero launch --hosts=a,b -- train")
    if command[0] not in _COMMANDS:
        raise ValueError(f"the command is {command[0]!r}; it must be one of {', '.join(_COMMANDS)}")
    for flag in command[1:]:
        if flag.lstrip("-").partition("=")[0] in ("workers", "local_cluster"):
            raise ValueError(f"the command has {flag!r}, but launch names the workers; remove it")


def _variables(arguments: argparse.Namespace) -> dict[str, str]:
    """Return the environment variables of the workers."""
    variables = {}
    for text in arguments.env:
        name, equals, value = text.partition("=")
        if not (name.isascii() and name.isidentifier()):
            raise ValueError(f"--env names {name!r}; write NAME=VALUE, or NAME for its value here")
        if not equals and name not in os.environ:
            raise ValueError(f"--env names {name!r}, which is not set here; write {name}=VALUE")
        variables[name] = value if equals else os.environ[name]
    return variables


@dataclasses.dataclass(frozen=True)
class _Plan:
    """Describes how the workers are started and reached."""

    hosts: Sequence[Host]
    addresses: Sequence[str]
    ssh_options: Sequence[Sequence[str]]
    flags: Sequence[str]


def _hosts(arguments: argparse.Namespace, port: int) -> tuple[Host, ...]:
    """Return the hosts of the flags; `port` is that of each worker whose host names none."""
    if arguments.hostfile is not None:
        return launcher.read_hosts(arguments.hostfile, port)
    return launcher.convert_to_hosts(arguments.hosts.split(","), port)


def _plan(arguments: argparse.Namespace, command: Sequence[str]) -> _Plan:
    if arguments.tunnel is None:
        hosts = _hosts(arguments, arguments.port)
        addresses = launcher.host_addresses(hosts)
        return _Plan(hosts, addresses, [[] for _ in hosts], [f"--workers={','.join(addresses)}"])
    hosts = tunnel.assign_ports(_hosts(arguments, 0), arguments.port)
    own, flags = _own_port(command), []
    if own is None:
        own = tunnel.find_port(hosts)
        flags = [f"--port={own}"] if command[0] != "devices" else []  # devices starts no server
    tunnel.check_ports(hosts, own)
    addresses = [f"{tunnel.HERE}:{host.port}" for host in hosts]
    return _Plan(hosts, addresses, tunnel.forwards(hosts, own), [f"--workers={','.join(addresses)}", *flags])


def _own_port(command: Sequence[str]) -> int | None:
    """Return the port of the training process that the user's command names."""
    for flag, following in itertools.pairwise([*command[1:], ""]):
        name, equals, value = flag.partition("=")
        if name.lstrip("-") == "port" and is_port(value if equals else following):
            return int(value if equals else following)
    return None


def _worker_commands(arguments: argparse.Namespace, plan: _Plan) -> list[list[str]]:
    """Return the command that starts each worker."""
    program = ["env", "PYTHONUNBUFFERED=1", *shlex.split(arguments.python), "-m", "mtf_hetero", "worker"]
    program = [*(launcher.with_variables(program) if arguments.env else program), "--until_eof"]
    flags, ssh = shlex.split(arguments.worker_flags), shlex.split(arguments.ssh)
    commands = []
    for host, address, options in zip(plan.hosts, plan.addresses, plan.ssh_options, strict=True):
        worker = [*program, f"--port={host.port}", f"--host={address.rpartition(':')[0]}", *flags]
        commands.append(launcher.host_command(host, worker, [*ssh, *options]))
    return commands


class _Screen:
    """Shows the lines of workers on the standard error, each with the name of its host.

    Args:
      hosts: of the workers.
      log_dir: the directory of a log per worker; None: no logs are written.

    Raises:
      ValueError: no log can be written there.
    """

    def __init__(self, hosts: Sequence[Host], log_dir: str | None) -> None:
        self._logs: list[int] = []
        if log_dir is not None:
            try:
                os.makedirs(log_dir, exist_ok=True)
                for host in hosts:
                    path = os.path.join(log_dir, f"{host.name}_{host.port}.log")
                    self._logs.append(files.take_descriptor(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND))
            except OSError as error:
                raise ValueError(f"--log_dir is {log_dir!r}: {error.strerror}; name another directory") from error
        self._width = max(len(host.text) for host in hosts)
        self._hosts, self._lock = hosts, threading.Lock()
        self._is_terminal = sys.stderr.isatty()
        self._has_colors = self._is_terminal and not os.environ.get("NO_COLOR")

    def show(self, number: int, line: str) -> None:
        """Show a line of a worker, and write it to its log."""
        if self._logs:
            with contextlib.suppress(OSError):  # the disk is full: the training goes on
                os.write(self._logs[number], f"{line}\n".encode())
        prefix = f"[{self._hosts[number].text}]".ljust(self._width + 2)
        if self._has_colors:
            prefix = f"\x1b[{_COLORS[number % len(_COLORS)]}m{prefix}\x1b[0m"
        self.say(f"{prefix} {line}")

    def say(self, line: str) -> None:
        """Show a line, in place of a progress bar of the command, which comes again by itself."""
        with self._lock:
            leaving.say(f"\r\x1b[K{line}" if self._is_terminal else line)


def _run(command: Sequence[str]) -> int:
    """Run the command, which gets the signals that this process gets; returns its exit code."""
    arrived: list[int] = []
    running: list[subprocess.Popen[bytes]] = []

    def forward(number: int, frame: FrameType | None) -> None:
        if running:
            running[0].send_signal(number)
        else:
            arrived.append(number)

    def started(process: "subprocess.Popen[bytes]") -> None:
        running.append(process)
        for number in arrived:
            process.send_signal(number)

    for number in _FORWARDED:
        if signal.getsignal(number) is not signal.SIG_IGN:
            signal.signal(number, forward)
    return launcher.run_bound(command, started)


def _launch(arguments: argparse.Namespace, command: Sequence[str], program: str) -> int:
    _check(arguments, command)
    plan = _plan(arguments, command)
    commands, variables = _worker_commands(arguments, plan), launcher.convert_to_input(_variables(arguments))
    command = [*command, *plan.flags]
    if command[0] == "train":
        train.check(command[1:])
    if arguments.dry_run:
        here = f"{program.removesuffix(' launch')} {shlex.join(command)}"
        sys.stdout.write("".join(f"{line}\n" for line in [*map(shlex.join, commands), here]))
        return 0
    workers = LaunchedWorkers(
        plan.hosts,
        commands,
        _Screen(plan.hosts, arguments.log_dir).show,
        addresses=plan.addresses,
        first_input=variables,
        restarts=arguments.restarts,
    )
    with workers as launched:
        if failures := launched.wait(arguments.start_seconds):
            for failure in failures:
                command_line.say(failure)
            return command_line.WRONG_USAGE
        return _run(["-m", "mtf_hetero", *command])


def main(argv: Sequence[str] | None = None, program: str = PROGRAM) -> int:
    """Launch by the command line, and return the exit code."""
    argv = sys.argv[1:] if argv is None else list(argv)
    end = argv.index("--") if "--" in argv else len(argv)
    arguments = _parser(program).parse_args(argv[:end])
    try:
        with leaving.StopOnSignal():
            return _launch(arguments, argv[end + 1 :], program)
    except ValueError as error:
        command_line.say(error)
        return command_line.WRONG_USAGE
    except KeyboardInterrupt:
        code = 128 + signal.SIGINT
    except SystemExit as stop:
        code = int(stop.code or 0)
    leaving.say("stopped: the workers had not started")
    return code
