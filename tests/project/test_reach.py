"""Which tests a change can reach: those of the rooms above it, of the programs that it changes, and of its own file."""

import pytest
import tiers
from rooms import ONLY_OF, all_tests, reached_tests, this_landing


def paths(names):
    return {f"tests/{name}.py" for name in names.split()}


@pytest.mark.parametrize(
    ("changed", "reached", "others"),
    [
        (
            "mtf_hetero/layout/blocks.py",
            "layout/test_blocks lowering/test_operations cli/test_train",
            "_support/test_grouping",
        ),
        (
            "mtf_hetero/ops/conv.py",
            "lowering/test_operations keras/test_keras_fit",
            "layout/test_partition data/test_own",
        ),
        ("mtf_hetero/keras/fitting.py", "keras/test_keras_fit cli/test_train_keras", "lowering/test_operations"),
        ("mtf_hetero/importer/pieces.py", "importer/test_pieces keras/test_keras_fit", "planner/test_search"),
        ("layouts/filters.py", "layouts/test_layouts placement/test_placing", "layout/test_partition"),
        ("benchmarks/run.py", "benchmarks/test_run", "lowering/test_operations"),
        ("tests/programs/fit_oracle.py", "keras/test_keras_fit", "importer/test_function"),
        ("tests/mesh/test_commits.py", "mesh/test_commits", "mesh/test_collectives"),
        ("docs/planning.md", "project/test_docs", "planner/test_find"),
    ],
)
def test_a_change_reaches_the_tests_above_it(changed, reached, others):
    found = reached_tests([changed])
    assert paths(reached) <= found
    assert not paths(others) & found


@pytest.mark.parametrize(
    "changed", ["setup.py", "tests/conftest.py", "mtf_hetero/_compat.py", "mtf_hetero/__init__.py"]
)
def test_some_changes_reach_all_tests_of_the_library(changed):
    left = set(all_tests().values()) - reached_tests([changed])
    assert not {path for path in left if not path.startswith(tuple(ONLY_OF))}


def test_this_landing_begins_at_a_commit():
    landing = this_landing()
    assert landing.number >= 50
    assert landing.changed is None or all(isinstance(path, str) for path in landing.changed)


def test_three_landings_run_everything_that_runs_in_turn(tmp_path, monkeypatch):
    monkeypatch.delenv("TESTS_REACHED", raising=False)
    assert list(tiers.in_turn(range(10))) == list(range(10))  # the whole second tier
    monkeypatch.setenv("TESTS_REACHED", "57")
    monkeypatch.setattr(tiers, "LANDING", tmp_path / "landing")
    found = []
    for number in (57, 58, 59):
        tiers.LANDING.write_text(f"{number} 259a695\n", encoding="utf-8")
        found += tiers.in_turn(range(10))
    assert sorted(found) == list(range(10))
