"""The page of operations is current."""

import pathlib

import operations_page
import pytest

from mtf_hetero import tf
from mtf_hetero._compat import NEWEST_TENSORFLOW

PAGE = pathlib.Path(__file__).parents[2] / "docs" / "operations.md"


@pytest.mark.skipif(
    tf.version.VERSION.split(".")[:2] != [str(number) for number in NEWEST_TENSORFLOW],
    reason="the page is of the newest TensorFlow",
)
def test_the_page_is_current():
    assert PAGE.read_text() == operations_page.page(), f"write it: {operations_page.__doc__}"


def test_the_classes():
    found = operations_page.classes()
    expected = {"Exp": 0, "MatMul": 1, "While": 2, "ResourceApplyAdam": 2, "RandomUniform": 3, "Diag": 4}
    sections = list(found)
    assert {name: next(i for i, s in enumerate(sections) if name in found[s]) for name in expected} == expected
    assert {"LookupTableFindV2", "StringLength", "BatchDataset"} <= set(found[""])
