"""The README's program runs when it is pasted into a file, without lines of TensorFlow. The README is short."""

import contextlib
import os
import pty
import re
import subprocess
import sys

import pytest
from documents import BLOCKS, ROOT

from mtf_hetero._support import start_up

README = ROOT / "README.md"
(PROGRAM,) = [block for block in BLOCKS if block.page == README and block.language == "python"]
MAX_LINES = 150
NATIVE = re.compile(r"^[IWEF]\d{4} |^\S+ \S+: [IWEF] |absl::InitializeLog|To enable the following", re.MULTILINE)
ENVIRONMENT = {name: value for name, value in os.environ.items() if name != start_up.LEVEL} | {"PYTHONPATH": str(ROOT)}


def test_the_program_trains_in_a_process_of_its_own(tmp_path):
    (tmp_path / "program.py").write_text(PROGRAM.text, encoding="utf-8")
    command = [sys.executable, "program.py"]
    done = subprocess.run(command, cwd=tmp_path, env=ENVIRONMENT, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert not NATIVE.search(done.stderr), done.stderr
    lines = done.stdout.splitlines()
    assert lines[0] == "Epoch 1/5"
    loss, accuracy = lines[-1].strip("[]").split(", ")
    assert float(loss) < 0.3
    assert float(accuracy) > 0.9


def test_it_is_short():
    assert len(README.read_text(encoding="utf-8").splitlines()) <= MAX_LINES


AFTER_OURS = [  # what a program imports first after mtf_hetero.keras
    "mtf_hetero.keras.fit",
    "import tensorflow as tf, keras\ntf.constant(1)",
    "from keras import layers",
    "from mtf_hetero import tf\nimport keras",
    "from mtf_hetero.cluster import LocalCluster\nimport keras",
    "import mesh_tensorflow, keras",
    "import tf_keras",
]


@pytest.mark.full
@pytest.mark.parametrize("code", AFTER_OURS)
def test_the_order_of_imports(code):
    code = f"import mtf_hetero.keras\n{code}\nmtf_hetero.keras.fit"
    done = subprocess.run([sys.executable, "-c", code], env=ENVIRONMENT, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert not NATIVE.search(done.stderr), done.stderr


def run_on_terminal(command, directory):
    """Return the exit code of a command, and what it writes to its terminal."""
    terminal, end = pty.openpty()
    with subprocess.Popen(command, cwd=directory, env=ENVIRONMENT, stdout=end, stderr=end) as process:
        os.close(end)
        written = b""
        with contextlib.suppress(OSError), open(terminal, "rb", buffering=0) as output:  # EIO: the process has ended
            while part := output.read(65536):
                written += part
    return process.returncode, written.decode()


def run_in_pipe(command, directory):
    done = subprocess.run(command, cwd=directory, env=ENVIRONMENT, stdout=-1, stderr=subprocess.STDOUT, text=True)
    return done.returncode, done.stdout


@pytest.mark.full
@pytest.mark.parametrize("run", [run_on_terminal, run_in_pipe])
def test_training_on_workers_prints_no_line_of_tensorflow(run, tmp_path):
    text = PROGRAM.text.replace('devices=["cpu:0", "cpu:1"]', "workers=workers").replace("epochs=5", "epochs=2")
    clustered = (
        "from mtf_hetero.cluster import LocalCluster\nwith LocalCluster([1, 0.5]) as workers: mtf_hetero.keras.fit("
    )
    text = text.replace("mtf_hetero.keras.fit(", clustered)
    (tmp_path / "program.py").write_text(text, encoding="utf-8")
    code, text = run([sys.executable, "program.py"], tmp_path)
    assert (code, NATIVE.findall(text)) == (0, []), text
    assert "Epoch 2/2" in text
