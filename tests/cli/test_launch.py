"""The launcher: workers over ssh and without it, their ends, and mistakes."""

import contextlib
import os
import queue
import re
import shlex
import signal
import subprocess
import sys
import time

import psutil
import pytest
from ports import free_port
from training_runs import ROOT, Reader, check_mistake

from mtf_hetero.cli import launch
from mtf_hetero.cluster import launcher

FAKE = f"{sys.executable} {ROOT / 'tests' / 'programs' / 'fake_worker.py'}"
SSH = """\
#!/bin/sh
echo "$@" >> "$SSH_LOG"
while case "$1" in -*) true;; *) false;; esac; do shift 2; done
if [ "$1" = nobody@127.0.0.1 ]; then echo "ssh: Permission denied (publickey)."; exit 255; fi
shift
exec sh -c "$*"
"""


@pytest.fixture
def ssh(tmp_path, monkeypatch):
    """A program `ssh` on PATH, which runs the command here; the file of its arguments."""
    program = tmp_path / "bin" / "ssh"
    program.parent.mkdir()
    program.write_text(SSH)
    program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{program.parent}{os.pathsep}{os.environ['PATH']}")
    monkeypatch.setenv("SSH_LOG", str(tmp_path / "ssh.log"))
    return tmp_path / "ssh.log"


def begin(*arguments, **options):
    """Start the launcher."""
    streams = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE} | options
    return subprocess.Popen([sys.executable, "-m", "mtf_hetero", "launch", *arguments], text=True, cwd=ROOT, **streams)


def await_end(pids, seconds=20):
    """Wait until no process has one of these numbers."""
    end = time.monotonic() + seconds
    while left := [pid for pid in pids if psutil.pid_exists(pid) and psutil.Process(pid).status() != "zombie"]:
        assert time.monotonic() < end, f"{left} are left behind"
        time.sleep(0.05)


def pids_in(text):
    return [int(pid) for pid in re.findall(r"pid (\d+)", text)]


def test_a_local_worker_and_one_over_ssh(ssh):
    ports = free_port(), free_port()
    hosts = f"--hosts=localhost:{ports[0]},me@127.0.0.1:{ports[1]}"
    with begin(hosts, f"--python={FAKE}", "--ssh=ssh -p 2200", "--", "devices", "--help") as process:
        out, err = process.communicate(timeout=60)
    assert process.returncode == 0, err
    assert out.startswith("usage: python -m mtf_hetero devices")
    width = max(map(len, [f"localhost:{ports[0]}", f"me@127.0.0.1:{ports[1]}"])) + 2
    for label, port in ((f"[localhost:{ports[0]}]", ports[0]), (f"[me@127.0.0.1:{ports[1]}]", ports[1])):
        assert re.search(rf"^{re.escape(label):{width}}\s+worker listens on 127.0.0.1:{port}, pid \d+$", err, re.M), err
    assert "\x1b" not in err
    assert max(map(len, err.splitlines())) <= 80
    assert ssh.read_text().startswith("-p 2200 me@127.0.0.1 exec env PYTHONUNBUFFERED=1 ")
    await_end(pids_in(err))


def test_a_dry_run_shows_the_commands(capsys, monkeypatch):
    monkeypatch.setenv("LD_LIBRARY_PATH", "/opt/lib")
    flags = ["--python=/opt/venv/bin/python", "--port=2300", "--worker_flags=--threads=2", "--env=LD_LIBRARY_PATH"]
    assert launch.main(["--hosts=127.0.0.1,me@127.0.0.2:7", *flags, "--dry_run", "--", "train", "--seed=3"]) == 0
    here, there, train = capsys.readouterr().out.splitlines()
    worker = "/opt/venv/bin/python -m mtf_hetero worker --until_eof"
    read = shlex.join(launcher.with_variables(["env", "PYTHONUNBUFFERED=1"]))
    assert here == f"{read} {worker} --port=2300 --host=127.0.0.1 --threads=2"
    remote = f"exec {read} {worker} --port=7 --host=127.0.0.2 --threads=2"
    assert shlex.split(there) == ["ssh", "-o", "BatchMode=yes", "me@127.0.0.2", remote]
    assert train == "mtf-hetero train --seed=3 --workers=127.0.0.1:2300,127.0.0.2:7"


def test_a_file_of_hosts_and_a_log_per_worker(ssh, tmp_path):
    ports = free_port(), free_port()
    (tmp_path / "hosts.txt").write_text(f"localhost:{ports[0]}  # here\n\nme@127.0.0.1:{ports[1]}\n")
    flags = [f"--hostfile={tmp_path / 'hosts.txt'}", f"--log_dir={tmp_path / 'logs'}", f"--python={FAKE}"]
    with begin(*flags, "--", "devices", "--help") as process:
        err = process.communicate(timeout=60)[1]
    assert process.returncode == 0, err
    for host, port in zip(("localhost", "127.0.0.1"), ports, strict=True):
        log = (tmp_path / "logs" / f"{host}_{port}.log").read_text()
        assert re.fullmatch(rf"worker listens on 127.0.0.1:{port}, pid \d+\n", log), log
        assert f"[{'me@' if host != 'localhost' else ''}{host}:{port}]" in err


def test_a_file_without_hosts(tmp_path, capsys):
    path = tmp_path / "hosts.txt"
    for text, message in (
        ("# none", "the file has none; write one host per line"),
        ("a slots=4", "'a slots=4' is not a"),
    ):
        path.write_text(text)
        check_mistake(capsys, message, lambda: launch.main([f"--hostfile={path}", "--", "train"]))


def test_a_worker_that_ends_is_started_again(monkeypatch):
    monkeypatch.setattr(launcher, "_RESTART_SECONDS", 0.0)
    host, said = launcher.Host.parse(f"localhost:{free_port()}", 0), queue.Queue()
    commands = [[*FAKE.split(), "--host=127.0.0.1", f"--port={host.port}", "--show=KEY"]]
    workers = launcher.LaunchedWorkers(
        [host], commands, lambda number, line: said.put(line), first_input=b"", restarts=2
    )
    monkeypatch.setenv("KEY", "1")
    with workers as launched:
        assert launched.wait(60) == []
        for again in ("; start 1 of 2 follows", "; start 2 of 2 follows", ""):
            (pid,) = pids_in(said.get(timeout=60))
            assert said.get(timeout=60).startswith("KEY is '1'")
            os.kill(pid, signal.SIGKILL)
            assert said.get(timeout=60) == f"the worker ended with exit code -9{again}"
    assert said.empty()


def test_the_value_of_a_variable_is_no_argument(ssh, monkeypatch):
    monkeypatch.setenv("TOKEN", "of this machine")
    ports = free_port(), free_port()
    flags = ["--env=KEY=a 'b' $c \\", "--env=TOKEN", f"--python={FAKE}", "--worker_flags=--show=KEY,TOKEN"]
    with begin(f"--hosts=localhost:{ports[0]},me@127.0.0.1:{ports[1]}", *flags, "--", "devices", "--help") as process:
        err = process.communicate(timeout=60)[1]
    assert process.returncode == 0, err
    for line in ("KEY is \"a 'b' $c \\\\\"", "TOKEN is 'of this machine'"):
        assert err.count(line) == 2, err
    arguments = [ssh.read_text(), *re.findall(r"its arguments are (.*)", err)]
    assert len(arguments) == 5
    assert not [text for text in arguments if "$c" in text or "of this machine" in text]


@pytest.mark.parametrize(
    ("value", "message"),
    [
        ("KEY=a\nb", "the environment variable KEY has several lines; save it in a file, and name that file"),
        (f"KEY={40_000 * 'a'}", "the environment variables have 40005 bytes; at most 32000 can be sent"),
        ("MY-KEY=b", "--env names 'MY-KEY'; write NAME=VALUE"),
    ],
)
def test_a_variable_that_cannot_be_sent_is_refused_without_its_value(value, message, capsys):
    check_mistake(capsys, message, lambda: launch.main(["--hosts=a", f"--env={value}", "--", "train"]))


def test_workers_that_do_not_start_are_a_line_each(ssh):
    ports = [free_port() for _ in range(3)]
    hosts = f"--hosts=localhost:{ports[0]},nobody@127.0.0.1:{ports[1]},127.0.0.1:{ports[2]}"
    with begin(hosts, f"--python={FAKE}", "--worker_flags='--fail=no room'", "--", "devices") as process:
        out, err = process.communicate(timeout=60)
    assert (process.returncode, out) == (2, "")
    failed = "the worker did not start (exit code"
    assert [line for line in err.splitlines() if line.startswith("error: ")] == [
        f"error: localhost:{ports[0]}: {failed} 2): no room",
        f"error: nobody@127.0.0.1:{ports[1]}: {failed} 255): ssh: Permission denied (publickey).",
        f"error: 127.0.0.1:{ports[2]}: {failed} 2): no room",
    ]


def test_a_host_without_that_python_and_one_that_does_not_answer(ssh):
    with begin("--hosts=me@127.0.0.1", "--python=/nowhere/python", "--", "devices") as process:
        err = process.communicate(timeout=60)[1]
    assert process.returncode == 2
    assert re.search(
        r"^error: me@127.0.0.1: the worker did not start \(exit code 127\): .*; name the Python of", err, re.M
    )
    port = free_port()
    flags = [f"--python={FAKE}", "--worker_flags=--deaf", "--start_seconds=0.5"]
    with begin(f"--hosts=localhost:{port}", *flags, "--", "devices") as process:
        err = process.communicate(timeout=60)[1]
    assert process.returncode == 2
    message = f"localhost:{port}: the worker did not answer at 127.0.0.1:{port}: connection refused; check the network"
    assert message in err
    await_end(pids_in(err))


def test_a_worker_that_another_user_started_is_not_taken():
    port = free_port()
    command = [*FAKE.split(), "worker", f"--port={port}", "--host=a"]
    options = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
    with subprocess.Popen(command, **options) as other:
        assert other.stdout.readline().startswith("worker listens")
        with begin(f"--hosts=localhost:{port}", "--", "devices") as process:
            out, err = process.communicate(timeout=60)
        other.stdin.close()
    assert (process.returncode, out) == (2, "")
    assert f"error: localhost:{port}: the worker did not start (exit code 2): --port is {port}, which is in use" in err


MISTAKES = [
    ("--hosts=, -- train", "no host is named; give hosts with commas between them, such as a,b or localhost"),
    ("--hosts=a:b -- train", "host 'a:b' is not a host; write one such as b, user@b or b:2223"),
    ("--hosts=-oProxyCommand=x -- train", "is not a host"),
    ("--hosts=a;touch -- train", "host 'a;touch' is not a host; write one such as b, user@b or b:2223"),
    ("--hosts=$(reboot)@a -- train", "host '$(reboot)@a' is not a host"),
    ("--hosts=`id` -- train", "host '`id`' is not a host"),
    ("--hosts=a,me@a -- train", "host 'a' comes twice; give each worker its port, as in a:2223"),
    ("--hosts=localhost,no.such.host.invalid -- train", "host no.such.host.invalid:2222 is not known here: "),
    ("--hosts=a --port=0 -- train", "--port is 0; it must be from 1 to 65535"),
    ("--hosts=a --start_seconds=0 -- train", "--start_seconds is 0; it must be a positive number"),
    ("--hosts=a --restarts=-1 -- train", "--restarts is -1; it must be 0 or more"),
    ("--hosts=a --log_dir=/dev/null -- train", "--log_dir is '/dev/null': File exists; name another directory"),
    ("--hosts=a --hostfile=b -- train", "argument --hostfile: not allowed with argument --hosts"),
    ("-- train", "one of the arguments --hosts --hostfile is required"),
    (
        "--hostss=a,b -- train",
        "--hostss is unknown; the nearest are --hosts and --hostfile; see mtf-hetero launch --help",
    ),
    ("--hosts=a --ssh= -- train", "--ssh is empty; give a command, or leave it out"),
    ("--hosts=a --env=2x=3 -- train", "--env names '2x'; write NAME=VALUE, or NAME for its value here"),
    ("--hosts=a --env=NO_NAME -- train", "--env names 'NO_NAME', which is not set here; write NO_NAME=VALUE"),
    ("--hosts=a --ssh=/nowhere/ssh -- train", "'/nowhere/ssh' cannot be run: No such file or directory"),
    ("--hosts=a", "no command is given; write it after --, as in mtf-hetero launch --hosts=a,b -- train"),
    ("--hosts=a --", "no command is given"),
    ("--hosts=a -- python", "the command is 'python'; it must be one of train, evaluate, predict, profile, devices"),
    ("--hosts=a -- train --workers=a:1", "the command has '--workers=a:1', but launch names the workers; remove it"),
    ("--hosts=a -- train --local_cluster 1", "the command has '--local_cluster'"),
    ("--hosts=a -- train --modl=x", "Unknown command line flag 'modl'. Did you mean: model"),
    ("--hosts=a -- train --batch_size=none", "flag --batch_size=none: invalid literal for int() with base 10: 'none'"),
    ("--hosts=a -- train --batch_size=0", "--batch_size is 0; it must be"),
    ("--hosts=a -- train --max_steps=3 lenet", "'lenet' is not a flag; write --name=value"),
    ("--hosts=a -- train --config=no.yaml", "--config is 'no.yaml', which cannot be read"),
]


@pytest.mark.parametrize(("arguments", "message"), MISTAKES)
def test_a_mistake_gives_one_line_and_exit_code_2(arguments, message, capsys):
    check_mistake(capsys, message, lambda: launch.main(arguments.split()))


def test_a_host_of_two_lines_is_refused(capsys):
    message = "host 'a\\nreboot' is not a host"
    check_mistake(capsys, message, lambda: launch.main(["--hosts=a\nreboot", "--", "train"]))


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_before_the_workers_answer_leaves_nothing_behind(number):
    flags = [f"--python={FAKE}", "--worker_flags=--deaf"]
    with begin(f"--hosts=localhost:{free_port()}", *flags, "--", "devices", preexec_fn=_heed_interrupts) as process:
        reader = Reader(process.stderr)
        line = reader.lines[reader.await_line("worker listens")]
        process.send_signal(number)
        assert process.wait(30) == 128 + number
        assert reader.lines[reader.await_line("stopped")] == "stopped: the workers had not started\n"
        reader.join()
    await_end(pids_in(line))


@contextlib.contextmanager
def training(model_dir):
    """A training on two workers, one over ssh: the launcher, what it prints as errors, and {pid: process}."""
    hosts = f"localhost:{free_port()},me@127.0.0.1:{free_port()}"
    flags = ["--model=lenet", "--layout=batch", "--train_epochs=1000", "--log_steps=1", f"--model_dir={model_dir}"]
    options = {"stdout": subprocess.DEVNULL, "preexec_fn": _heed_interrupts}
    with begin(f"--hosts={hosts}", "--", "train", *flags, **options) as launcher:
        err = Reader(launcher.stderr)
        try:
            err.await_line(r"step 2\d")
            processes = {process.pid: process for process in psutil.Process(launcher.pid).children(recursive=True)}
            commands = [process.cmdline() for process in processes.values()]
            assert sum("worker" in command for command in commands) == 2, (commands, err.lines)
            yield launcher, err, processes
        finally:
            launcher.terminate()
            err.join()


@pytest.mark.full
def test_a_signal_saves_and_ends_everything(ssh, tmp_path):
    with training(tmp_path) as (launcher, err, processes):
        launcher.send_signal(signal.SIGINT)
        assert launcher.wait(60) == 130
        err.await_line(r"^stopped: .*resume")
        assert not [line for line in err.lines if "is gone" in line or "Traceback" in line]
    await_end(processes)


@pytest.mark.full
@pytest.mark.parametrize("killed", ["launcher", "train"])
def test_a_killed_process_leaves_nothing_behind(killed, ssh, tmp_path):
    with training(tmp_path) as (launcher, _, processes):
        if killed == "launcher":
            launcher.kill()
        else:
            next(process for process in processes.values() if "train" in process.cmdline()).kill()
        assert launcher.wait(60) == (-signal.SIGKILL if killed == "launcher" else 128 + signal.SIGKILL)
        await_end(processes, 60)


def _heed_interrupts():
    signal.signal(signal.SIGINT, signal.SIG_DFL)
