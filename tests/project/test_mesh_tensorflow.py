"""Mesh-TensorFlow's own tests, from the installed package, with this package's two names in them."""

import importlib.util
import pathlib
import re
import subprocess
import sys

from mtf_hetero import mtf

PACKAGE = pathlib.Path(mtf.__file__).parent
NEED_A_TPU = ["input_reader_test.py"]

# The tests say mtf.placement_mesh_impl.PlacementMeshImpl and mtf.Lowering: the two names that a user changes.
RUN = """
import sys
import types

import pytest

import mtf_hetero


class TwoNames:
    def pytest_collection_modifyitems(self, items):
        for item in items:
            names = types.SimpleNamespace(**vars(mtf_hetero.mtf))
            names.placement_mesh_impl = types.SimpleNamespace(PlacementMeshImpl=mtf_hetero.UnevenMeshImpl)
            names.Lowering = mtf_hetero.Lowering
            item.module.mtf = names


sys.exit(pytest.main(["-q", "-p", "no:cacheprovider", "-c", *sys.argv[1:]], plugins=[TwoNames()]))
"""


def test_mesh_tensorflows_own_tests_pass(tmp_path):
    configuration = tmp_path / "pytest.ini"
    configuration.write_text("[pytest]\n")
    files = [path for path in sorted(PACKAGE.rglob("*_test.py")) if path.name not in NEED_A_TPU]
    if importlib.util.find_spec("ortools") is None:
        files = [path for path in files if path.parent.name != "auto_mtf"]
    done = subprocess.run(
        [sys.executable, "-c", RUN, str(configuration), *map(str, files)],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=600,
        check=False,
    )
    assert done.returncode == 0, done.stdout[-5000:]
    passed = re.search(r"(\d+) passed", done.stdout)
    assert passed and int(passed[1]) >= 143, done.stdout[-500:]
