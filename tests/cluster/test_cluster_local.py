"""Emulated workers: their limits, and that nothing is left of them however a run ends."""

import errno
import json
import os
import pathlib
import shutil
import socket
import subprocess
import sys
import time

import psutil
import pytest
from ports import free_port

from mtf_hetero.cluster.emulation import guard, isolation
from mtf_hetero.cluster.emulation.local import LocalCluster, assign_cores

ROOT = str(pathlib.Path(__file__).resolve().parents[2])


def is_running(pid):
    return psutil.pid_exists(pid) and psutil.Process(pid).status() != psutil.STATUS_ZOMBIE


def await_end(pids, seconds=20):
    end = time.monotonic() + seconds
    while any(is_running(pid) for pid in pids) and time.monotonic() < end:
        time.sleep(0.05)
    return [pid for pid in pids if is_running(pid)]


BUSY = [sys.executable, "-S", "-c", "while True: pass"]


def cpu_seconds(pid):
    times = psutil.Process(pid).cpu_times()
    return times.user + times.system


def measure_limit(guard, cores):
    """Return the limit of a busy process, and the number of cores whose time it got."""
    core = min(os.sched_getaffinity(0))
    pid = guard.start(0, BUSY, [core], os.devnull)["pid"]
    try:
        by = guard.limit(0, cores)["by"]
        before, begin = cpu_seconds(pid), time.monotonic()
        while time.monotonic() < begin + 1.0:
            time.sleep(min(guard.cycle(), 0.01))
        return by, (cpu_seconds(pid) - before) / (time.monotonic() - begin)
    finally:
        guard.close()


def test_a_process_that_is_stopped_and_continued_gets_its_fraction():
    by, fraction = measure_limit(guard.Guard("test", []), 0.2)
    assert by == guard.DUTY_CYCLE
    assert 0 < fraction < 0.5


def test_a_process_under_a_quota_gets_its_fraction():
    text = [pathlib.Path(f"/proc/self/{name}").read_text() for name in ("mountinfo", "cgroup")]
    by, fraction = measure_limit(guard.Guard(f"mtf_hetero_test_{os.getpid()}", [*guard.parent_groups(*text)]), 0.2)
    if by == guard.DUTY_CYCLE:
        pytest.skip("no control group can be made here")
    assert 0 < fraction < 0.5


V1 = """31 23 0:28 / /sys/fs/cgroup rw,relatime - tmpfs tmpfs rw,mode=755
32 31 0:29 / /sys/fs/cgroup/cpu,cpuacct rw,relatime - cgroup cgroup rw,cpu,cpuacct
34 31 0:31 / /sys/fs/cgroup/cpuset rw,relatime - cgroup cgroup rw,cpuset
"""
V2 = "30 23 0:26 / /sys/fs/cgroup rw,nosuid shared:4 - cgroup2 cgroup2 rw,nsdelegate\n"


def parent_groups(*text):
    return [(group.version, group.directory) for group in guard.parent_groups(*text)]


def test_where_control_groups_may_be_made():
    root = "/sys/fs/cgroup"
    v1 = parent_groups(V1, "4:memory:/other\n2:cpuset:/\n1:cpu,cpuacct:/user/me\n0::/else\n")
    assert v1 == [(1, f"{root}/cpu,cpuacct{end}") for end in ("/user/me", "/user", "")]
    v2 = parent_groups(V2, "0::/user.slice/app.scope\n")
    assert v2 == [(2, f"{root}{end}") for end in ("/user.slice/app.scope", "/user.slice", "")]
    assert parent_groups("", "0::/\n") == []


@pytest.fixture
def kernel(monkeypatch, tmp_path):
    """A directory tree that behaves as the kernel's: a new group has its files, where the parent allows it."""
    make = os.mkdir

    def mkdir(path, *args):
        make(path, *args)
        parent = pathlib.Path(path).parent
        v2 = (parent / "cgroup.subtree_control").exists()
        if v2 and "cpu" not in (parent / "cgroup.subtree_control").read_text():
            return
        for name in ["cpu.max"] if v2 else ["cpu.cfs_period_us", "cpu.cfs_quota_us"]:
            (pathlib.Path(path) / name).touch()
        (pathlib.Path(path) / "cgroup.procs").touch()

    monkeypatch.setattr(os, "mkdir", mkdir)
    return tmp_path


def join(version, directory, cores):
    return guard.join_new_group([guard.ParentGroup(version, str(directory))], "new", cores, 4321)


def test_a_group_of_version_1(kernel):
    assert join(1, kernel, 0.25) == (str(kernel / "new"), 1)
    assert (kernel / "new/cpu.cfs_quota_us").read_text() == "5000"
    assert (kernel / "new/cpu.cfs_period_us").read_text() == "20000"
    assert (kernel / "new/cgroup.procs").read_text() == "4321"


def test_a_group_of_version_2(kernel):
    (kernel / "cgroup.subtree_control").write_text("cpu memory")
    assert join(2, kernel, 1.5) == (str(kernel / "new"), 2)
    assert (kernel / "new/cpu.max").read_text() == "30000 20000"


def test_a_group_that_may_not_be_made_is_none(kernel):
    assert join(1, "/no/such/directory", 0.25) is None
    assert join(1, "/proc", 0.25) is None


@pytest.mark.parametrize(
    ("version", "quotas"), [(1, ["5000", "6600", "-1"]), (2, ["5000 20000", "6600 20000", "max 20000"])]
)
def test_a_quota_that_changes(kernel, version, quotas):
    if version == 2:
        (kernel / "cgroup.subtree_control").write_text("cpu")
    held = guard.Guard("new", [guard.ParentGroup(version, str(kernel))])
    held.start(0, BUSY, [min(os.sched_getaffinity(0))], os.devnull)
    file, seen = {1: "cpu.cfs_quota_us", 2: "cpu.max"}[version], []
    try:
        for cores in (0.25, 0.33, 1.0):
            group = pathlib.Path(held.limit(0, cores)["group"])
            seen.append((group / file).read_text()[: len(quotas[len(seen)])])
            (group / file).write_text("")
    finally:
        shutil.rmtree(group)
        held.close()
    assert seen == quotas


def test_a_stopped_process_is_continued_without_its_limit():
    held = guard.Guard("test", [])
    pid = held.start(0, BUSY, [min(os.sched_getaffinity(0))], os.devnull)["pid"]
    try:
        held.limit(0, 0.01)
        held.cycle()
        assert held.limit(0, 1.0) == {"by": guard.AFFINITY, "group": None}
        assert psutil.Process(pid).status() != psutil.STATUS_STOPPED
    finally:
        held.close()


def test_a_small_fraction_has_a_longer_period():
    assert guard.quota_us(0.5) == (10_000, 20_000)
    assert guard.quota_us(0.01) == (1_000, 100_000)


def test_the_largest_worker_has_a_core_to_itself():
    assert assign_cores([1.0, 0.5, 0.25], [0, 1]) == [[0], [1], [1]]
    assert assign_cores([0.25, 1.0], [4, 7]) == [[7], [4]]
    assert assign_cores([0.5, 2.5], [0, 1, 2, 3]) == [[3], [0, 1, 2]]


@pytest.mark.parametrize(
    ("fractions", "message"),
    [
        ("1.0,fast", "'fast' is not a number of cores"),
        ("1.0,0", "'0' is not a number of cores"),
        ("-1", "'-1' is not a number"),
        ("nan", "'nan' is not a number"),
        ("1.0,", "'' is not a number"),
        ([], "LocalCluster is empty; give"),
        ([100000.0], "asks for 100000 cores for worker 0, but there are"),
    ],
)
def test_wrong_figures(fractions, message):
    with pytest.raises(ValueError, match=message):
        LocalCluster(fractions)


@pytest.fixture
def fake_worker(tmp_path):
    """A directory in which `python -m mtf_hetero.cluster.worker` is something else."""
    (tmp_path / "mtf_hetero/cluster").mkdir(parents=True)
    (tmp_path / "mtf_hetero/__init__.py").touch()
    (tmp_path / "mtf_hetero/cluster/__init__.py").touch()
    return tmp_path


def test_a_worker_that_ends_at_its_start_is_reported(monkeypatch, fake_worker):
    (fake_worker / "mtf_hetero/cluster/worker.py").write_text("raise SystemExit('no luck today')")
    monkeypatch.setattr("mtf_hetero.cluster.emulation.local._import_path", lambda: str(fake_worker))
    monkeypatch.chdir(fake_worker)
    local = LocalCluster([0.5])
    with pytest.raises(RuntimeError, match="worker 0 of LocalCluster ended with exit code 1 .*no luck today"):
        local.__enter__()
    assert await_end(local.pids) == []


PARENT = """
import os, signal, sys, time, types
sys.path.insert(0, ROOT)
# to do without TensorFlow, which loads slowly
for name in ("mtf_hetero", "mtf_hetero._compat", "mtf_hetero.cluster.cluster"):
    sys.modules[name] = types.ModuleType(name)
sys.modules["mtf_hetero"].__path__ = [ROOT + "/mtf_hetero"]
sys.modules["mtf_hetero._compat"].tf = None
sys.modules["mtf_hetero.cluster.cluster"].Cluster = types.SimpleNamespace(from_workers=lambda *args, **kwargs: None)
from mtf_hetero.cluster.emulation import local
local._import_path = os.getcwd
local.ask = lambda *args: types.SimpleNamespace(failure="")
local = local.LocalCluster([1.0, 0.4], report=lambda line: None, allow_groups=GROUPS)
with local:
    print(*local.pids, local._guard.pid, local._directory, *filter(None, local.groups), flush=True)
    HOW
"""
ENDS = {
    "exit": "sys.exit(3)",
    "exception": "raise RuntimeError",
    "left": "os._exit(0)",
    "killed": "os.kill(os.getpid(), signal.SIGKILL)",
    "terminated": "os.kill(os.getpid(), signal.SIGTERM)",
    "interrupted": "os.kill(os.getpid(), signal.SIGINT)",
    "stopped workers": "time.sleep(0.2); os.kill(os.getpid(), signal.SIGKILL)",
}


@pytest.mark.parametrize("name", ENDS)
def test_nothing_is_left_however_the_parent_ends(name, fake_worker):
    (fake_worker / "mtf_hetero/cluster/worker.py").write_text(
        "import time\nprint('worker listens on 127.0.0.1:1', flush=True)\ntime.sleep(1000)"
    )
    text = (
        PARENT.replace("HOW", ENDS[name]).replace("GROUPS", str(name != "stopped workers")).replace("ROOT", repr(ROOT))
    )
    parent = subprocess.run(
        [sys.executable, "-c", text], cwd=fake_worker, capture_output=True, text=True, timeout=60, check=False
    )
    words = parent.stdout.split()
    pids, paths = [int(word) for word in words if word.isdigit()], [word for word in words if not word.isdigit()]
    assert len(pids) == 3, parent.stderr
    assert await_end(pids) == []
    assert not [path for path in paths if os.path.exists(path)]


def test_a_guard_that_is_killed_takes_its_workers_along(tmp_path):
    command = [sys.executable, "-I", "-S", guard.__file__, str(tmp_path)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        start = {"do": "start", "index": 0, "command": BUSY, "cpus": [0], "log": os.devnull}
        process.stdin.write(json.dumps(start).encode() + b"\n")
        process.stdin.flush()
        pid = json.loads(process.stdout.readline())["pid"]
        assert is_running(pid)
        process.kill()
        assert await_end([pid]) == []


IN_A_NETWORK_OF_ITS_OWN = """
import socket, sys
sys.path.insert(0, sys.argv[1])
from mtf_hetero.cluster.emulation import isolation
reason = isolation.enter()
port = int(sys.argv[2])
with socket.create_server(("", port)):
    socket.create_connection(("127.0.0.1", port)).close()
    print(reason, flush=True)
    sys.stdin.read()
"""


def test_ports_in_a_network_of_its_own_are_reached_by_nobody_else():
    address = ("127.0.0.1", free_port())
    command = [sys.executable, "-c", IN_A_NETWORK_OF_ITS_OWN, ROOT, str(address[1])]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdin is not None and process.stdout is not None
        reason = process.stdout.readline().strip()
        if reason or not isolation.why_not():  # the kernel refuses it, or all of this machine is one such network
            assert not reason or "network namespace" in reason
            socket.create_connection(address, 10).close()
        else:
            with pytest.raises(ConnectionRefusedError):
                socket.create_connection(address, 10)
        process.stdin.close()


TURNS = """
import ctypes, platform, threading
from mtf_hetero.cluster import worker

def read():
    attributes = worker._SchedAttr()
    number = {"x86_64": 315, "aarch64": 275}[platform.machine()]  # sched_getattr
    ctypes.CDLL(None).syscall(number, 0, ctypes.byref(attributes), ctypes.sizeof(attributes), 0)
    turns.append(attributes.runtime)
    return attributes

turns = []
attributes = read()
number = worker._SCHED_SETATTR[platform.machine()]
is_forbidden = ctypes.CDLL(None).syscall(number, 0, ctypes.byref(attributes), 0)
worker._take_short_turns()
thread = threading.Thread(target=read)
thread.start()
thread.join()
print(*turns, is_forbidden)
"""


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux has turns that a thread can choose")
def test_threads_of_a_worker_take_short_turns():
    done = subprocess.run([sys.executable, "-c", TURNS], capture_output=True, text=True, cwd=ROOT, check=True)
    before, after, is_forbidden = (int(word) for word in done.stdout.split())
    if not before or is_forbidden:
        pytest.skip("this kernel is older than 6.12, or a thread may not choose its turns here")
    assert after == 100_000 <= before


def test_a_kernel_that_refuses_a_private_network_is_named(monkeypatch):
    def refuse():
        raise OSError(errno.EPERM, "Operation not permitted")

    monkeypatch.setattr(isolation, "_unshare", refuse)
    with pytest.raises(OSError, match="^the kernel refuses a network namespace here: operation not permitted$"):
        isolation._try_in_child()
