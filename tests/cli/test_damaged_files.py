"""A thousand damaged files and inputs: none a traceback, none longer than 20 s, none accepted that cannot be true."""

import itertools
import json
import time

import pytest
from damaged_files import EXAMPLES, MANIFEST, READERS, is_one_line, list_damages
from tiers import parametrize

from mtf_hetero.data import _volumes_files as volumes

MOST_SECONDS = 20.0


def read(kind, each, directory):
    """Reads a damaged file; returns what is wrong with how it was read, or ""."""
    path = directory / kind
    path.write_bytes(each.text)
    begin = time.monotonic()
    try:
        READERS[kind](str(path))
    except ValueError as error:
        wrong = "" if is_one_line(str(error)) else f"said {str(error)[:300]!r}"
    except Exception as error:
        wrong = f"raised {error!r}"
    else:
        wrong = "was accepted" if each.refused else ""
    seconds = time.monotonic() - begin
    return wrong or (f"took {seconds} s" if seconds > MOST_SECONDS else "")


@pytest.mark.parametrize("kind", READERS)
def test_the_examples_are_read_without_an_error(kind, tmp_path):
    (tmp_path / kind).write_text(json.dumps(EXAMPLES[kind]))
    READERS[kind](str(tmp_path / kind))
    volumes.Manifest.of_json(MANIFEST)


@parametrize(("kind", "every"), itertools.product(READERS, [1, 5]), first=[(kind, 5) for kind in READERS])
def test_damaged_files_are_one_line(kind, every, tmp_path):
    wrong = {each.what: found for each in list_damages(kind)[::every] if (found := read(kind, each, tmp_path))}
    assert not wrong


def test_there_are_a_thousand():
    counts = {kind: len(list_damages(kind)) for kind in READERS}
    assert sum(counts.values()) >= 1000, counts
