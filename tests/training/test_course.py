"""Decisions of a Course about the workers of a training, with sites that no device has."""

import dataclasses
import types
from typing import Any

import pytest

from mtf_hetero import Layout
from mtf_hetero.training import Course, course, elastic
from mtf_hetero.training.changes import Split

HOSTS = {0: "a:1", 1: "b:1", 2: "c:1"}


@dataclasses.dataclass(frozen=True)
class Site:
    """A site on the devices of some workers, of which a plan may leave one unused."""

    workers: tuple[int, ...]
    unused: tuple[int, ...] = ()
    layout = Layout([("all", 1)], [])

    @property
    def placed(self):
        return self

    @property
    def devices(self):
        return tuple(f"worker:{i}/cpu:0" for i in self.workers if i not in self.unused)

    @property
    def cluster(self):
        used = {i: HOSTS[i] for i in self.workers if i not in self.unused}
        unused = {i: host for i, host in HOSTS.items() if i not in used}
        return types.SimpleNamespace(
            workers=tuple(HOSTS.values()), workers_in_use=used, workers_not_in_use=unused, devices=self.devices
        )

    @property
    def split(self):
        return Split(self.layout, self.devices, {"batch": [4] * len(self.devices)})


@pytest.fixture
def answering(monkeypatch):
    """The indices of lost workers that answer again."""
    found = set()
    monkeypatch.setattr(course, "find_free", lambda lost: {i: host for i, host in lost.items() if i in found})
    monkeypatch.setattr(course, "ask_all", lambda asked, seconds: {})
    return found


def make_course(unused=(), **options) -> tuple[Any, list]:
    lines = []
    made = Course(
        Site((0, 1, 2), unused),
        lambda lost: Site(tuple(i for i in HOSTS if i not in lost), unused),
        lambda line, step, row: lines.append((line, row)),
        **options,
    )
    return made, lines


def go(made, stage):
    stage.begin()
    made.elastic.end_step(3)


@pytest.mark.parametrize("unused", [(), (1,)], ids=["used again", "left unused by the plan"])
def test_a_worker_that_answers_again_is_taken_in_once(answering, unused):
    made, lines = make_course(unused)
    made.elastic.end_step(2)
    move = made.elastic.leave({1: "b:1"}, None)
    go(made, move.place)
    assert made.site == Site((0, 2), unused) and made._within() is None
    answering.add(1)
    stage, why = made._within()
    assert why == "worker 1 (b:1) answers again"
    made.elastic.move(stage, why)
    go(made, made.elastic.begin_move(None, elastic.MEMORY).place)
    assert made.site == Site((0, 1, 2), unused) and made._within() is None
    assert [row["why"] for _, row in lines] == ["worker 1 (b:1) was lost", "worker 1 (b:1) answers again"]
    used = [f"worker:{i}/cpu:0" for i in (0, 1, 2) if i not in unused]
    assert lines[1][1]["devices"] == ", ".join(used)


def test_a_worker_that_answers_again_is_taken_in_without_another_one(answering):
    made, _ = make_course()
    go(made, made.without({1: "b:1"}))
    go(made, made.without({2: "c:1"}))
    assert made.site == Site((0,))
    answering.add(2)
    stage, _ = made._within()
    go(made, stage)
    assert made.site == Site((0, 2))
    answering.add(1)
    stage, _ = made._within()
    assert stage.site == Site((0, 1, 2))


def test_a_training_that_began_without_a_worker_takes_it_in(answering):
    made, _ = make_course()
    made.begin_without({1: "b:1"}, Site((0, 2)))
    assert made._within() is None
    answering.add(1)
    stage, why = made._within()
    assert (stage.site, why) == (Site((0, 1, 2)), "worker 1 (b:1) answers again")


def test_training_that_waits_stays_where_it_is(answering):
    made, lines = make_course(min_workers=3)
    assert not made.elastic.may_leave({1}, HOSTS)
    go(made, made.stay())
    assert made.site == Site((0, 1, 2)) and not lines


@pytest.mark.parametrize(("outlives", "expected"), [(True, Site((0, 2))), (False, None)])
def test_a_loss_is_an_error_if_nobody_outlives_it(outlives, expected):
    made, _ = make_course(outlives=outlives)
    move = made.elastic.leave({1: "b:1"}, None)
    assert (move and move.place.site) == expected
