"""The launcher's tunnel: workers at 127.0.0.1 of their machines, which reach each other through ssh."""

import getpass
import os
import re
import shutil
import socket
import subprocess
import sys
import threading

import pytest
from ports import free_port
from training_runs import ROOT, check_mistake

from mtf_hetero.cli import launch
from mtf_hetero.cluster.launcher import LaunchedWorkers

PROGRAMS = ROOT / "tests" / "programs"
FAKE_WORKER, FAKE_SSH = (f"{sys.executable} {PROGRAMS / name}.py" for name in ("fake_worker", "fake_ssh"))
IN_NAMESPACE = [*FAKE_SSH.split(), "--enter"]
HAS_NAMESPACES = not subprocess.run([*IN_NAMESPACE, "/bin/true"], capture_output=True, check=False).returncode
SSHD = shutil.which("sshd", path=os.pathsep.join([os.environ["PATH"], "/usr/sbin", "/usr/local/sbin"]))
needs_namespaces = pytest.mark.skipif(not HAS_NAMESPACES, reason="the kernel refuses network namespaces")


def test_a_dry_run_shows_the_forwards(capsys):
    hosts = "--hosts=localhost,me@node7,node8:2300,node8"
    assert launch.main([hosts, "--tunnel=ssh", "--port=22220", "--python=python3", "--dry_run", "--", "train"]) == 0
    here, seven, eight, eight_again, train = capsys.readouterr().out.splitlines()
    worker = "env PYTHONUNBUFFERED=1 python3 -m mtf_hetero worker --until_eof"
    assert here == f"{worker} --port=22220 --host=127.0.0.1"
    own = int(re.search(r"--port=(\d+)$", train)[1])
    assert own > 22222 and train == (
        f"mtf-hetero train --workers=127.0.0.1:22220,127.0.0.1:22221,127.0.0.1:2300,127.0.0.1:22222 --port={own}"
    )
    ssh = "ssh -o BatchMode=yes -o ExitOnForwardFailure=yes -o ControlPath=none"
    to = {port: f"127.0.0.1:{port}:127.0.0.1:{port}" for port in (22220, 22221, 22222, 2300, own)}
    back = " ".join(f"-R {to[port]}" for port in (22220, 2300, 22222, own))
    assert seven == f"{ssh} -L {to[22221]} {back} me@node7 'exec {worker} --port=22221 --host=127.0.0.1'"
    back = " ".join(f"-R {to[port]}" for port in (22220, 22221, own))
    assert eight == f"{ssh} -L {to[2300]} {back} node8 'exec {worker} --port=2300 --host=127.0.0.1'"
    assert eight_again == f"{ssh} -L {to[22222]} node8 'exec {worker} --port=22222 --host=127.0.0.1'"


def test_the_port_of_the_command_is_forwarded(capsys):
    port = free_port()
    for flags in (["--port", str(port)], [f"--port={port}"]):
        assert launch.main(["--hosts=node7", "--tunnel=ssh", "--dry_run", "--", "train", *flags]) == 0
        ssh, train = capsys.readouterr().out.splitlines()
        assert f" -R 127.0.0.1:{port}:127.0.0.1:{port} " in ssh
        assert train == f"mtf-hetero train {' '.join(flags)} --workers=127.0.0.1:2222"


MISTAKES = [
    ("--hosts=a:2300,b:2300 -- train", "hosts 'a:2300' and 'b:2300' have the same port; with --tunnel, give each"),
    ("--hosts=a,b --port=65535 -- train", "host 'b' would have port 65536; the highest is 65535, so lower --port"),
    ("--hosts=a --port=65535 -- train", "no port above those of the workers is free on this machine; lower --port"),
    ("--hosts=a:2300 -- train --port=2300", "the training process and a worker have port 2300; with --tunnel, give"),
]


@pytest.mark.parametrize(("arguments", "message"), MISTAKES)
def test_a_mistake_gives_one_line_and_exit_code_2(arguments, message, capsys):
    check_mistake(capsys, message, lambda: launch.main(["--tunnel=ssh", *arguments.split()]))


def test_another_tunnel_is_refused(capsys):
    with pytest.raises(SystemExit) as stop:
        launch.main(["--hosts=a", "--tunnel=vpn", "--", "train"])
    assert stop.value.code == 2 and "--tunnel: invalid choice: 'vpn'" in capsys.readouterr().err


def test_a_port_in_use_here_is_refused(capsys):
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        message = f"port {port} of this machine is in use; with --tunnel, the ports of all workers must be free here"
        check_mistake(capsys, message, lambda: launch.main([f"--hosts=a:{port}", "--tunnel=ssh", "--", "train"]))


def write_sshd(directory):
    """Return an ssh command whose hosts are network namespaces with OpenSSH's own server."""
    for name in ("host", "user"):
        key = ["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", str(directory / name)]
        subprocess.run(key, check=True)
    settings = {
        "HostKey": directory / "host",
        "AuthorizedKeysFile": directory / "user.pub",
        "PidFile": "none",
        "StrictModes": "no",
        "UsePAM": "no",
        "PermitRootLogin": "yes",
        "LogLevel": "ERROR",
    }
    config = directory / "sshd_config"
    config.write_text("".join(f"{name} {value}\n" for name, value in settings.items()))
    server = " ".join([*IN_NAMESPACE, str(SSHD), "-i", "-f", str(config)])
    options = {
        "ProxyCommand": f"'{server}'",
        "UserKnownHostsFile": "/dev/null",
        "StrictHostKeyChecking": "no",
        "IdentitiesOnly": "yes",
        "LogLevel": "ERROR",
    }
    return f"ssh -F none -i {directory / 'user'} " + " ".join(f"-o {name}={value}" for name, value in options.items())


@pytest.fixture(params=["fake", pytest.param("sshd", marks=pytest.mark.skipif(not SSHD, reason="there is no sshd"))])
def ssh(request, tmp_path, monkeypatch):
    """A command in the place of ssh, for which each host is a network namespace."""
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(ROOT), *filter(None, [os.environ.get("PYTHONPATH")])]))
    return FAKE_SSH if request.param == "fake" else write_sshd(tmp_path)


def three_ports():
    """Three free ports in a row."""
    while True:
        first = free_port()
        if all(launch.tunnel.is_free(port, launch.tunnel.HERE) for port in (first + 1, first + 2, first + 3)):
            return [first, first + 1, first + 2]


@needs_namespaces
def test_a_port_in_use_on_a_host_is_named(ssh):
    first, second, _ = three_ports()
    hosts = f"{getpass.getuser()}@a:{first},localhost:{second}"
    takes = f"-R 127.0.0.1:{second}:127.0.0.1:9"  # before the tunnel does
    flags = [f"--hosts={hosts}", "--tunnel=ssh", f"--ssh={ssh} {takes}", f"--python={FAKE_WORKER}"]
    command = [sys.executable, "-m", "mtf_hetero", "launch", *flags, "--", "devices"]
    run = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert run.returncode == 2
    failure = f"Error: remote port forwarding failed for listen port {second}"
    remedy = "another program uses that port there, so choose others with --port"
    assert f"the worker did not start (exit code 255): {failure}; {remedy}\n" in run.stderr


@pytest.mark.full
@needs_namespaces
def test_a_training_through_a_tunnel(ssh, tmp_path):
    """The workers send each other parts of tensors, which the layout splits by filters."""
    ports = three_ports()
    hosts = f"{getpass.getuser()}@a:{ports[0]},{getpass.getuser()}@b:{ports[1]}"
    flags = [f"--hosts={hosts}", "--tunnel=ssh", f"--ssh={ssh}", "--env=PYTHONPATH", "--worker_flags=--gpus=none"]
    train = ["train", "--model=lenet", "--layout=filters", "--max_steps=20", f"--model_dir={tmp_path / 'run'}"]
    command = [sys.executable, "-m", "mtf_hetero", "launch", *flags, "--", *train]
    run = subprocess.run(command, capture_output=True, text=True, timeout=300, check=False)
    assert run.returncode == 0, run.stderr
    assert len(re.findall(r"reached by programs on this machine only", run.stderr)) == 2, run.stderr
    assert f"worker 0 at 127.0.0.1:{ports[0]}, worker 1 at 127.0.0.1:{ports[1]}" in run.stdout


@needs_namespaces
def test_all_workers_reach_each_other_at_the_same_addresses(ssh):
    ports = three_ports()
    hosts = f"--hosts=localhost,{getpass.getuser()}@a,{getpass.getuser()}@b"
    flags = [f"--port={ports[0]}", f"--ssh={ssh}", f"--python={FAKE_WORKER}", "--env=PYTHONPATH", "--tunnel=ssh"]
    arguments = launch._parser("launch").parse_args(
        [hosts, *flags, f"--worker_flags=--reach={','.join(map(str, ports))}"]
    )
    plan, lines, done = launch._plan(arguments, ["devices"]), set(), threading.Event()

    def say(number, line):
        lines.add((number, line))
        if all((worker, f"reaches {port}") in lines for worker in range(3) for port in ports):
            done.set()

    variables = launch.launcher.convert_to_input(launch._variables(arguments))
    commands = launch._worker_commands(arguments, plan)
    with LaunchedWorkers(plan.hosts, commands, say, addresses=plan.addresses, first_input=variables) as launched:
        assert launched.wait(60) == [], lines
        assert done.wait(60), lines
