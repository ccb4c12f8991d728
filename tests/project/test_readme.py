"""The README's program runs when it is pasted into a file, and the README is short."""

import os
import subprocess
import sys

import tiers
from documents import BLOCKS, ROOT

from mtf_hetero._support import start_up

README = ROOT / "README.md"
(PROGRAM,) = [block for block in BLOCKS if block.page == README and block.language == "python"]
MAX_LINES = 150


def test_the_program_trains_in_a_process_of_its_own(tmp_path):
    (tmp_path / "program.py").write_text(PROGRAM.text, encoding="utf-8")
    environment = os.environ | {"PYTHONPATH": str(ROOT)}
    environment.pop(start_up.LEVEL, None)
    command = [sys.executable, "program.py"]
    done = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert not any(map(start_up.is_chatter, done.stderr.splitlines())), done.stderr
    lines = done.stdout.splitlines()
    assert lines[0] == "Epoch 1/5"
    loss, accuracy = lines[-1].strip("[]").split(", ")
    assert float(loss) < 0.3
    assert float(accuracy) > 0.9


def test_it_is_short():
    assert len(README.read_text(encoding="utf-8").splitlines()) <= MAX_LINES


AFTER_OURS = [  # what a program imports first after mtf_hetero.keras
    "mtf_hetero.keras.fit",
    "import tensorflow, keras",
    "import keras, tensorflow",
    "from keras import layers",
    "import keras.layers",
    "from mtf_hetero import tf\nimport keras",
    "from mtf_hetero.cluster import LocalCluster\nimport keras",
    "import mesh_tensorflow, keras",
    "import tf_keras",
]


@tiers.parametrize("code", AFTER_OURS, first=AFTER_OURS[:2])
def test_the_order_of_imports(code):
    code = f"import mtf_hetero.keras\n{code}\nmtf_hetero.keras.fit"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
