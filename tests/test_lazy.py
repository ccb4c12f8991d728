"""Names of the package are imported when they are first asked for: what needs no TensorFlow does not wait for it."""

import subprocess
import sys

import pytest

import mtf_hetero

WITHOUT_TENSORFLOW = ("", "._command_line", ".blocks", ".layout", ".partition", ".speeds")


def run(program):
    return subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True).stdout


def test_what_is_pure_loads_no_tensorflow():
    imports = "\n".join(f"import mtf_hetero{module}" for module in WITHOUT_TENSORFLOW)
    said = run(
        f"import sys\n{imports}\nmtf_hetero.split_by_share, mtf_hetero.Layout, dir(mtf_hetero)\nprint(*sys.modules)"
    )
    assert not {"tensorflow", "mesh_tensorflow"} & set(said.split())


@pytest.mark.parametrize("name", mtf_hetero.__all__)
def test_public_names_are_there(name):
    assert getattr(mtf_hetero, name) is getattr(mtf_hetero, name)
    assert name in dir(mtf_hetero)


@pytest.mark.parametrize(
    "name",
    [
        "blocks",
        "cluster",
        "collectives",
        "estimator",
        "hooks",
        "layers",
        "layout",
        "lowering",
        "mesh_impl",
        "partition",
        "saver",
        "variables",
        "data",
        "profile",
    ],
)
def test_modules_are_attributes(name):
    assert getattr(mtf_hetero, name).__name__ == f"mtf_hetero.{name}"
    assert name in dir(mtf_hetero)


def test_there_are_no_other_names():
    with pytest.raises(AttributeError, match="^module 'mtf_hetero' has no attribute 'no_such_name'$"):
        _ = mtf_hetero.no_such_name


def test_the_first_use_of_tensorflow_checks_its_version():
    said = run(
        "import sys, types\n"
        "sys.modules['tensorflow'] = types.ModuleType('tensorflow')\n"
        "sys.modules['tensorflow'].__version__ = '2.14.1'\n"
        "import mtf_hetero\n"
        "try:\n"
        "    from mtf_hetero import tf\n"
        "except ImportError as error:\n"
        "    print(error)\n"
    )
    assert said == "TensorFlow 2.14.1 is too old: mtf_hetero needs 2.15 or newer; pip install 'tensorflow>=2.15'\n"
