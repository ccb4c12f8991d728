"""Strangers on the same machines and on another one: the page has the table that is measured here."""

import os
import shutil

import pytest
import strangers
from documents import ROOT

MAY_RUN = os.geteuid() == 0 and all(map(shutil.which, ("ip", "nsenter", "unshare")))


@pytest.mark.slow
@pytest.mark.skipif(not MAY_RUN, reason="machines of its own need root and iproute2")
def test_the_table_of_the_page_is_measured():
    page = (ROOT / "docs" / "machines.md").read_text(encoding="utf-8")
    assert "\n".join(strangers.measure()) in page
