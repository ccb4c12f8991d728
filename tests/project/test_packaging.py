"""The installation: a wheel that is complete without the checkout, and an editable install that adds one name."""

import os
import re
import subprocess
import sys
import sysconfig
import tarfile
import zipfile
from email import message_from_string

import pytest
from packages import ROOT, build, copy_of_checkout

import mtf_hetero

LINKS = ("layouts", "models")
INFO = f"mtf_hetero-{mtf_hetero.__version__}.dist-info"


def test_the_citation_and_the_changelog_have_the_version():
    changelog = (ROOT / "CHANGELOG.md").read_text(encoding="utf-8")
    assert re.findall(r"^## (\S+)", changelog, re.MULTILINE)[0] == mtf_hetero.__version__
    citation = (ROOT / "CITATION.cff").read_text(encoding="utf-8")
    assert re.findall(r"^version: (.*)$", citation, re.MULTILINE) == [mtf_hetero.__version__]


def functions_of_setup():
    """setup.py's functions, without its setup()."""
    source = (ROOT / "setup.py").read_text(encoding="utf-8").partition("\nTRAIN = ")[0]
    names = {"__file__": str(ROOT / "setup.py")}
    exec(compile(source, "setup.py", "exec"), names)
    return names


def test_a_package_index_shows_no_link_that_leads_nowhere():
    names = functions_of_setup()
    assert names["version"]() == mtf_hetero.__version__
    page = "![a picture](docs/a.svg)\n\nSee [the `docs`](docs/a.md#b), [Mesh](https://mesh) and `LAYOUTS[name](graph)`."
    assert names["without_files"](page) == "See the `docs`, [Mesh](https://mesh) and `LAYOUTS[name](graph)`."


@pytest.fixture(scope="module")
def built(tmp_path_factory):
    """The sdist, the wheel that is built from what it holds, and that of a copy of the checkout."""
    directory = tmp_path_factory.mktemp("built")
    checkout = copy_of_checkout(directory / "checkout")
    sdist = build("sdist", checkout, directory)
    with tarfile.open(sdist) as archive:
        archive.extractall(directory / "unpacked", filter="data")
    (source,) = (directory / "unpacked").iterdir()
    return sdist, build("wheel", source, directory), build("wheel", checkout, directory / "direct")


def test_an_editable_install_makes_only_mtf_hetero_importable(tmp_path):
    """A user's own folder models/ is imported as `models`, and without it there is no such module."""
    checkout = copy_of_checkout(tmp_path / "checkout")
    with zipfile.ZipFile(build("editable", checkout, tmp_path / "editable")) as archive:
        archive.extractall(tmp_path / "site-packages")

    def run(code):
        """Runs code in a file, where Python has its own modules and the editable install alone."""
        (tmp_path / "own" / "program.py").write_text(
            f"import importlib.util, site; site.addsitedir({str(tmp_path / 'site-packages')!r}); {code}"
        )
        command = [sys.executable, "-S", "program.py"]
        process = subprocess.run(command, cwd=tmp_path / "own", env=environment(), capture_output=True, text=True)
        assert process.returncode == 0, process.stderr
        return process.stdout.strip()

    (tmp_path / "own").mkdir()
    tops = ("models", "layouts", "benchmarks", "tests", "examples", "setup")
    assert run(f"print([name for name in {tops} if importlib.util.find_spec(name)])") == "[]"
    for name in ("layouts", "models"):
        place = checkout / "mtf_hetero" / name / "__init__.py"
        assert run(f"print(importlib.util.find_spec('mtf_hetero.{name}').origin)") == str(place)
    (tmp_path / "own" / "models").mkdir()
    (tmp_path / "own" / "models" / "__init__.py").write_text("NAME = 'their own'")
    assert run("import mtf_hetero.models, models; print(models.NAME)") == "their own"


def read_wheel(wheel):
    with zipfile.ZipFile(wheel) as archive:
        return {name: archive.read(name) for name in archive.namelist()}


def sources():
    """Return the place of each file of the package in a wheel."""
    for top in ("mtf_hetero", *LINKS):
        for path in (ROOT / top).rglob("*.py"):
            place = path.relative_to(ROOT)
            yield f"mtf_hetero/{place}" if top in LINKS else str(place)


@pytest.mark.slow
def test_the_wheel_is_complete_and_has_one_top_level_name(built):
    sdist, wheel, of_checkout = built
    files = read_wheel(wheel)
    assert {name.split("/")[0] for name in files} == {"mtf_hetero", INFO}
    assert files[f"{INFO}/top_level.txt"].split() == [b"mtf_hetero"]
    assert {name for name in files if not name.startswith(INFO)} == {*sources(), "mtf_hetero/py.typed"}
    assert files == read_wheel(of_checkout)
    with tarfile.open(sdist) as archive:
        names = {member.name.partition("/")[2] for member in archive if member.isfile()}
        assert not [member.name for member in archive if member.issym() or member.islnk()]
    assert {"LICENSE", "CHANGELOG.md", "README.md", "pyproject.toml", "tests/project/test_packaging.py"} <= names


@pytest.mark.slow
def test_the_metadata(built):
    files = read_wheel(built[1])
    metadata = message_from_string(files[f"{INFO}/METADATA"].decode())
    assert (metadata["Name"], metadata["Version"]) == ("mtf_hetero", mtf_hetero.__version__)
    extras = {"benchmarks", "docs", "gpu", "plan", "test", "train", "volumes"}
    assert set(metadata.get_all("Provides-Extra", [])) == extras
    links = re.findall(r"\]\(([^)\s]*)\)", re.sub(r"```.*?```|`[^`]+`", "", metadata.get_payload(), flags=re.DOTALL))
    assert links and all(link.startswith("https://") for link in links)
    requires = metadata.get_all("Requires-Dist", [])
    core = [line for line in requires if "extra ==" not in line]
    names = {re.split(r"[<>=]", line)[0] for line in core}
    assert names == {"absl-py", "grpcio", "mesh-tensorflow", "numpy", "tensorflow"}
    unbound = {re.sub(r"[<>=][^;]*;", ";", line) for line in requires}
    assert {'tensorboard; extra == "train"', 'tensorflow[and-cuda]; extra == "gpu"'} <= unbound
    pythons = {line.rpartition(" ")[2] for line in metadata.get_all("Classifier", []) if ":: Python :: 3." in line}
    assert (pythons, metadata["Requires-Python"]) == ({"3.11", "3.12", "3.13"}, ">=3.11")
    assert b"mtf-hetero = mtf_hetero.__main__:main" in files[f"{INFO}/entry_points.txt"]


def environment():
    """The environment's variables, without the path on which the checkout may be."""
    return {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}


@pytest.fixture(scope="module")
def installed(built, tmp_path_factory):
    """The bin of an environment of its own, where the wheel is installed; its requirements are those of this one."""
    directory = tmp_path_factory.mktemp("installed")
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", directory], check=True)
    python = directory / "bin" / "python"
    install = [sys.executable, "-m", "pip", "--python", python, "install", "--quiet", "--no-index", "--no-deps"]
    subprocess.run([*install, built[1]], env=environment(), check=True, capture_output=True)
    (site_packages,) = (directory / "lib").glob("python*/site-packages")
    (site_packages / "requirements.pth").write_text(sysconfig.get_path("purelib"))  # without its own .pth files
    return python.parent


@pytest.mark.slow
def test_the_command_trains_on_an_uneven_layout_outside_the_checkout(installed, tmp_path):
    def run(*command):
        return subprocess.run(command, cwd=tmp_path, env=environment(), capture_output=True, text=True)

    code = "import mtf_hetero, mtf_hetero.layouts, mtf_hetero.cli.train.config as c; print(c.__file__)"
    place = run(installed / "python", "-c", code)
    assert place.stdout.startswith(str(installed.parent)), place.stderr
    assert run(installed / "python", "-c", "import models").returncode == 1
    flags = ["--model=lenet", "--devices=cpu:0,cpu:1,cpu:2", "--list_speed=70,25,5", "--batch_size=20", "--max_steps=3"]
    process = run(installed / "mtf-hetero", "train", *flags, "--model_dir=model")
    assert process.returncode == 0, process.stderr
    assert re.search(r"dense1/units +120 over all: 84, 30, 6\n", process.stdout)
    assert process.stdout.splitlines()[-1] == "checkpoint: model/model.ckpt-3"
