"""Sdists, wheels and editable installs of a copy of the checkout."""

import pathlib
import shutil
import subprocess
import sys

ROOT = pathlib.Path(__file__).resolve().parents[2]


def copy_of_checkout(to):
    """Copies what the project has in version control; returns the copy."""
    ignored = shutil.ignore_patterns(".*", "__pycache__", "build", "dist", "runs", "*.egg-info")
    return shutil.copytree(ROOT, to, symlinks=True, ignore=ignored)


def build(kind, source, directory):
    """Calls the build backend as pip does, with the setuptools of this environment, which needs no network."""
    directory.mkdir(exist_ok=True)
    code = f"import sys; from setuptools import build_meta; print(build_meta.build_{kind}(sys.argv[1]))"
    process = subprocess.run([sys.executable, "-c", code, str(directory)], cwd=source, capture_output=True, text=True)
    assert process.returncode == 0, process.stderr
    return directory / process.stdout.splitlines()[-1]
