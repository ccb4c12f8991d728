"""Names of the package are imported when they are first asked for: what needs no TensorFlow does not wait for it."""

import importlib
import json
import os
import subprocess
import sys
import types

import pytest

import mtf_hetero
from mtf_hetero._support import lazy, start_up

WITHOUT_TENSORFLOW = (
    "",
    ".__main__",
    "._support.command_line",
    "._support.extras",
    ".cli.after.evaluate",
    ".cli.after.export",
    ".cli.after.predict",
    ".cli.plan",
    ".cli.profile",
    ".cli.train.config_file",
    ".cluster.emulation.guard",
    ".cost.machines",
    ".layout",
    ".layout.blocks",
    ".layout.partition",
    ".models",
)


def run(program):
    """Return what a program prints; TensorFlow's start must not add a line to its errors."""
    environment = {name: value for name, value in os.environ.items() if name != start_up.LEVEL}
    command = [sys.executable, "-c", program]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=True)
    assert not any(map(start_up.is_chatter, done.stderr.splitlines())), done.stderr
    return done.stdout


def test_what_is_pure_loads_no_tensorflow():
    imports = "\n".join(f"import mtf_hetero{module}" for module in WITHOUT_TENSORFLOW)
    said = run(
        f"import sys\n{imports}\nmtf_hetero.split_by_share, mtf_hetero.Layout, dir(mtf_hetero)\nprint(*sys.modules)"
    )
    assert not {"tensorflow", "mesh_tensorflow"} & set(said.split())


@pytest.mark.full
def test_tensorflow_is_imported_without_keras():
    said = run(
        "import sys\nfrom mtf_hetero import tf\nprint(*sys.modules)\n"
        "from tensorflow.keras import layers\nprint(layers.Dense is tf.keras.layers.Dense)"
    )
    modules, same = said.splitlines()
    assert "tensorflow" in modules.split() and not {"keras", "sklearn", "pandas", "matplotlib"} & set(modules.split())
    assert same == "True"


@pytest.mark.full
def test_keras_is_imported_without_what_few_programs_use():
    said = run(
        "import sys\nimport mtf_hetero.keras.networks\nprint(*sys.modules)\nimport keras\n"
        "print(keras.visualization.plot_image_gallery.__module__, keras.wrappers.SKLearnClassifier.__name__)"
    )
    modules, names = said.splitlines()
    assert "keras" in modules.split() and not {"sklearn", "matplotlib"} & set(modules.split())
    assert names == "keras.src.visualization.plot_image_gallery SKLearnClassifier"


def test_public_names_are_there():
    for name in mtf_hetero.__all__:
        assert getattr(mtf_hetero, name) is getattr(mtf_hetero, name)
        assert name in dir(mtf_hetero)


def test_a_former_name_warns(monkeypatch):
    package = types.ModuleType("package")
    get, _ = lazy.attach("package", {}, renamed={"former": "present"})
    vars(package).update(present=1, __getattr__=get)
    monkeypatch.setitem(sys.modules, "package", package)
    with pytest.warns(DeprecationWarning, match=r"package\.former is now called present"):
        assert package.former == 1


@pytest.mark.parametrize(
    ("before", "now"),
    [
        ("mtf_hetero.checkpoints", "mtf_hetero.checkpoint"),
        ("mtf_hetero.hooks", "mtf_hetero.estimator.hooks"),
        ("mtf_hetero.partition", "mtf_hetero.layout.partition"),
        ("mtf_hetero.trace", "mtf_hetero.cost.trace"),
    ],
)
def test_names_of_before_are_the_same_modules(monkeypatch, before, now):
    monkeypatch.delitem(sys.modules, before, raising=False)
    with pytest.warns(DeprecationWarning, match=f"^{before} is now called {now}; the former name will be removed$"):
        module = importlib.import_module(before)
    assert module is importlib.import_module(now)
    assert module.__name__ == now
    parent, _, name = before.rpartition(".")
    assert getattr(importlib.import_module(parent), name) is module


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


WORKER, DATA, PROFILE = "worker", "data", "profile"
MISTAKES = {
    WORKER: [
        (["--port=many"], "invalid int value: 'many'; see mtf-hetero worker --help"),
        (["--port=70000"], "--port is 70000; it must be from 1 to 65535"),
        ([], "--port is missing"),
        (["--port=0", "--cpus=0"], "--cpus is 0"),
        (["--port=0", "--threads=-1"], "--threads is -1"),
        (["--port=0", "--gpus=0,one"], "--gpus is '0,one'; give all, none or numbers such as 0,2"),
        (["--speed=3"], "--speed is unknown"),
        (["--join=here"], "--join is 'here'; write host:port of the training, such as 10.0.0.7:2300"),
        (["--port=0", "--host=a:1"], "--host is 'a:1'; write a host name or an IPv4 address"),
    ],
    DATA: [
        ([], "required: prepare|list"),
        (["make"], "invalid choice: 'make'"),
        (["list", "--verbose"], "--verbose is unknown"),
        (["prepare", "mnist"], "required: --from"),
        (["prepare", "imagenet", "--from=/"], "'imagenet' cannot be prepared from files"),
        (["simulate", "no/such/set", "--train=0"], "train is 0; it must be a whole number, 1 or more"),
        (["simulate", "no/such/set", "--train=1", "--size=2"], "size is 2"),
        (["simulate", "no/such/set", "--train=1", "--cell=0"], "cell is 0.0; it must be a positive length"),
        (["simulate", "no/such/set", "--train=1", "--cell=nan"], "cell is nan; it must be a positive length"),
        (["simulate", "/", "--train=1"], "/ already exists; remove it or choose another"),
        (["convert", "no/such/set", "--from=no.h5"], "no.h5 does not exist; give .h5, .npy"),
    ],
    PROFILE: [
        ([], "one of the arguments --model --step --graph is required"),
        (["--graph=no_such:f"], "cannot be imported: No module named 'no_such'"),
        (["--graph=sys:exit", "--save=/"], "--save is '/'"),
    ],
}
RUN_EACH = """
import contextlib, io, json, os, sys
import mtf_hetero.__main__
from mtf_hetero._support import command_line
sys.modules["tensorflow"] = None
command_line.leave = os._exit = sys.exit  # the programs end so
command, each = sys.argv[1], json.loads(sys.argv[2])
done = []
for flags in each:
    sys.argv = ["mtf-hetero", command, *flags]
    out, err = io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        try:
            mtf_hetero.__main__.main()
            code = 0
        except SystemExit as stop:
            code = stop.code
    done.append((code, out.getvalue(), err.getvalue()))
print(json.dumps(done))
"""


def run_each(program, each):
    """(exit code, stdout, stderr) of the program with each of these flags, where TensorFlow cannot be imported."""
    environment = {
        name: value for name, value in os.environ.items() if name not in ("TF_CONFIG", "SLURM_STEP_NUM_TASKS")
    }
    command = [sys.executable, "-W", "ignore::RuntimeWarning", "-c", RUN_EACH, program, json.dumps(each)]
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True, env=environment, check=True)
    return json.loads(done.stdout)


@pytest.mark.parametrize("program", MISTAKES)
def test_wrong_flags_do_not_wait_for_tensorflow(program):
    """One line and exit code 2, where TensorFlow cannot even be imported."""
    flags = [flags for flags, _ in MISTAKES[program]]
    for (code, out, err), (given, message) in zip(run_each(program, flags), MISTAKES[program], strict=True):
        assert (code, out) == (2, ""), given
        assert err.startswith("error: ") and err.count("\n") == 1, (given, err)
        assert message in err, given


@pytest.mark.parametrize("program", MISTAKES)
def test_help_does_not_wait_for_tensorflow(program):
    ((code, out, err),) = run_each(program, [["--help"]])
    assert (code, err) == (0, "")
    assert out.startswith(f"usage: mtf-hetero {program} ")


def test_mesh_tensorflow_is_one_module_however_it_is_imported():
    _ = mtf_hetero.mtf
    transformer = importlib.import_module("mesh_tensorflow.transformer.transformer")
    mtf, ops = sys.modules["mesh_tensorflow"], importlib.import_module("mesh_tensorflow.ops")
    assert mtf is transformer.mtf is mtf_hetero.mtf
    assert mtf.__spec__ is not None and mtf.__spec__.origin == mtf.__file__
    assert mtf.Lowering is ops.Lowering
