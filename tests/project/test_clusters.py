"""The files of the page on starting workers: their flags, names and ports, and their commands run without a cluster."""

import contextlib
import dataclasses
import os
import re
import shlex
import signal
import subprocess
import sys

import pytest
import yaml
from documents import BLOCKS, ROOT
from ports import free_port
from training_runs import Reader

from mtf_hetero.cli.train.config import Config
from mtf_hetero.cluster import worker

PAGE = ROOT / "docs" / "clusters.md"
FLAGS = {field.name for field in dataclasses.fields(Config)}
SRUN = """\
#!/bin/bash
# srun of a job of two nodes
trap 'kill $(jobs -p); wait' TERM
while [[ $1 == --* ]]; do shift; done
for node in 1 2; do "$@" & done
wait
"""
PROGRAM = f'#!/bin/bash\nexec {sys.executable} -m mtf_hetero "$@"\n'


def find_file(first_line):
    """Return the file of the page that begins with a line."""
    (text,) = [block.text for block in BLOCKS if block.page == PAGE and block.text.startswith(f"{first_line}\n")]
    return text


def compose_commands():
    """Return {service: words of its command}."""
    services = yaml.safe_load(find_file("# compose.yaml"))["services"]
    return {name: shlex.split(service["command"]) for name, service in services.items()}


def test_compose_limits_the_workers_and_its_flags_exist():
    services = yaml.safe_load(find_file("# compose.yaml"))["services"]
    assert [services[name]["cpus"] for name in ("fast", "slow")] == [1.0, 0.5]
    check_commands(compose_commands().values(), "trainer")


def test_the_manifest_is_consistent_and_its_flags_exist():
    manifests = {f"{m['kind']} {m['metadata']['name']}": m for m in yaml.safe_load_all(find_file("# training.yaml"))}
    service, job = manifests["Service trainer"]["spec"], manifests["Job trainer"]["spec"]["template"]
    assert service["selector"].items() <= job["metadata"]["labels"].items()
    deployments = [manifest["spec"] for name, manifest in manifests.items() if name.startswith("Deployment")]
    for spec in deployments:
        assert spec["selector"]["matchLabels"] == spec["template"]["metadata"]["labels"]
    pods = [job, *(spec["template"] for spec in deployments)]
    allowed = manifests["NetworkPolicy mtf-hetero"]["spec"]["podSelector"]["matchLabels"]
    assert all(allowed.items() <= pod["metadata"]["labels"].items() for pod in pods)
    containers = [container for pod in pods for container in pod["spec"]["containers"]]
    assert len({container["image"] for container in containers}) == 1
    check_commands([container["args"] for container in containers], "trainer")
    (least,) = [flag for flag in containers[0]["args"] if flag.startswith("--min_workers=")]
    assert least == f"--min_workers={sum(spec['replicas'] for spec in deployments)}"
    assert f"--workers=:{service['ports'][0]['port']}" in containers[0]["args"]


def check_commands(commands, host):
    """Check the flags, and that workers join the training at a host's port."""
    (train,) = [words[1:] for words in commands if words[0] == "train"]
    workers = [words[1:] for words in commands if words[0] == "worker"]
    flags = dict(word.removeprefix("--").split("=", 1) for word in train)
    assert flags.keys() <= FLAGS
    assert len(workers) >= 2
    for words in workers:
        assert worker._parse(words, "worker").join == f"{host}{flags['workers']}"


def test_the_batch_script_has_flags_that_exist():
    script = find_file("#!/bin/bash")
    train = script.partition("exec mtf-hetero train ")[2].replace("\\\n", " ")
    assert {word.removeprefix("--").partition("=")[0] for word in shlex.split(train)} <= FLAGS
    subprocess.run(["bash", "-n", "-c", script], check=True)


@contextlib.contextmanager
def process(command, **options):
    """Run a command in a process group of its own, which ends with it; yields it and what it prints."""
    options |= {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT, "text": True, "start_new_session": True}
    with subprocess.Popen(command, **options) as started:
        reader = Reader(started.stdout)
        try:
            yield started, reader
        finally:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(started.pid, signal.SIGTERM)
            reader.join()


@pytest.mark.full
def test_the_batch_script_trains_on_all_nodes(tmp_path):
    for name, text in (("srun", SRUN), ("mtf-hetero", PROGRAM)):
        (tmp_path / name).write_text(text)
        (tmp_path / name).chmod(0o755)
    script = find_file("#!/bin/bash").replace("2300", str(free_port()))
    script = script.replace("--model=vgg11 --dataset=cifar10", "--model=lenet --max_steps=2")
    slurm = {"SLURMD_NODENAME": "127.0.0.1", "SLURM_JOB_NUM_NODES": "2", "SLURM_STEP_NUM_TASKS": "2"}
    environment = os.environ | slurm | {"PATH": f"{tmp_path}{os.pathsep}{os.environ['PATH']}", "PYTHONPATH": str(ROOT)}
    with process(["bash", "-c", script], cwd=tmp_path, env=environment) as (started, reader):
        reader.await_line("^checkpoint: runs/vgg/model.ckpt-2")
        assert started.wait(30) == 0
    joined = [re.search(r"joined the training at \S+ as (\S+)$", line) for line in reader.lines]
    assert len({match[1] for match in joined if match}) == 2


@pytest.mark.full
def test_the_commands_of_compose_train(tmp_path):
    port = str(free_port())

    def make_command(name):
        words = [word.replace("/runs", str(tmp_path)) for word in compose_commands()[name]]
        words = [word.replace("2300", port).replace("trainer:", "127.0.0.1:") for word in words]
        return [sys.executable, "-m", "mtf_hetero", *words]

    train = [*make_command("trainer"), "--max_steps=2"]
    with (
        process(make_command("fast"), cwd=ROOT),
        process(make_command("slow"), cwd=ROOT),
        process(train, cwd=ROOT) as (started, reader),
    ):
        reader.await_line(f"^checkpoint: {tmp_path}/lenet/model.ckpt-2")
        assert started.wait(30) == 0
