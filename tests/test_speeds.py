"""Time models and what follows from them: properties, brute force on small problems, JSON, and the error lines."""

import functools
import itertools
import json
import math

import pytest
from hypothesis import strategies as st
from tiers import given_in_tiers

from mtf_hetero import speeds
from mtf_hetero.partition import DoesNotFitError, split_by_time
from mtf_hetero.speeds import Layer, Link, Profile, TimeModel, Work

tiered = functools.partial(given_in_tiers, first=30, every=150)
SECONDS = st.floats(1e-6, 1e3)


@st.composite
def time_models(draw, largest=40):
    sizes = sorted(draw(st.sets(st.integers(1, largest), min_size=1, max_size=8)))
    return TimeModel(tuple((n, draw(SECONDS), draw(st.floats(0, 1))) for n in sizes))


def linear(units, seconds, fixed=0.0):
    """A device that takes `seconds` for the whole, `fixed` of it for any amount."""
    return TimeModel(((1, fixed + (seconds - fixed) / units, 0.0), (units, seconds, 0.0)))


def work_of(units=60, messages=(), whole=False, **kwargs):
    layers = [Layer("conv1", "conv", "filters", units, messages)]
    return Work(tuple(layers + [Layer("relu", "relu", None, 1)] * whole), {"filters": {"filters": units}}, **kwargs)


def profile_of(units=60, links=None, **seconds):
    return Profile({name: {"conv": linear(units, value)} for name, value in seconds.items()}, links or {})


class TestTimeModel:
    @tiered(time_models())
    def test_exact_at_the_points_and_between_them(self, model):
        assert model(0) == 0
        for n, seconds, _ in model.points:
            assert model(n) == pytest.approx(seconds, rel=1e-9)
        for (a, ta, _), (b, tb, _) in itertools.pairwise(model.points):
            for n in range(a, b + 1):
                assert min(ta, tb) * (1 - 1e-9) <= model(n) <= max(ta, tb) * (1 + 1e-9)

    @tiered(time_models(), st.integers(1, 100))
    def test_does_not_fall_outside_of_the_points(self, model, n):
        first, last = model.points[0], model.points[-1]
        if n < first[0]:
            assert model(n) <= model(n + 1) * (1 + 1e-9)
        if n >= last[0]:
            assert model(n) <= model(n + 1)
        assert model(n) > 0

    def test_a_staircase_stays(self):
        model = TimeModel(((32, 1.0, 0.01), (33, 2.0, 0.01), (64, 2.0, 0.01), (65, 3.0, 0.01)))
        assert [model(n) for n in (32, 33, 50, 64, 65)] == [1.0, 2.0, 2.0, 2.0, 3.0]
        assert model.settle() == model

    def test_one_point_is_what_any_smaller_amount_costs_and_the_rate_beyond(self):
        model = TimeModel(((10, 2.0, 0.0),))
        assert (model(1), model(10), model(20)) == (2.0, 2.0, 4.0)

    @tiered(time_models())
    def test_settled_falls_only_beyond_the_spreads(self, model):
        settled = model.settle()
        assert [p[0] for p in settled.points] == [p[0] for p in model.points]
        assert [p[2] for p in settled.points] == [p[2] for p in model.points]
        if all(a[1] <= b[1] for a, b in itertools.pairwise(model.points)):
            assert settled == model
        for a, b in itertools.pairwise(settled.points):
            assert a[1] <= b[1] or a[1] - b[1] > a[2] + b[2]
        total = math.fsum(p[1] for p in model.points)
        assert math.fsum(p[1] for p in settled.points) == pytest.approx(total)

    @pytest.mark.parametrize(
        ("points", "message"),
        [
            ((), "points of a time model are empty"),
            (((1, 2.0),), "give \\(units, seconds, spread\\)"),
            (((1.5, 2.0, 0.0),), "finite numbers"),
            (((0, 1.0, 0.0),), "units must be 1 or more"),
            (((1, 0.0, 0.0),), "seconds greater than zero"),
            (((1, 1.0, -1.0),), "spread zero or more"),
            (((1, math.nan, 0.0),), "finite numbers"),
            (((2, 1.0, 0.0), (1, 1.0, 0.0)), "sort them, each size once"),
        ],
    )
    def test_bad_points(self, points, message):
        with pytest.raises(ValueError, match=message) as error:
            TimeModel(points)
        assert "\n" not in str(error.value)

    def test_negative_size(self):
        with pytest.raises(ValueError, match="n is -1, but a number of units must be zero or more"):
            linear(4, 1.0)(-1)


class TestSizes:
    def test_shares_are_the_ratio_of_whole_steps(self):
        shares = speeds.shares_from(profile_of(a=1.0, b=2.0, c=4.0), work_of(), ["a", "b", "c"])
        assert shares == pytest.approx((400 / 7, 200 / 7, 100 / 7))

    def test_sizes_of_proportional_devices(self):
        sizes = speeds.sizes_from(profile_of(a=1 / 70, b=1 / 25, c=1 / 5), work_of(), ["a", "b", "c"])
        assert sizes == {"filters": (42, 15, 3)}

    @tiered(st.lists(time_models(12), min_size=2, max_size=3), st.lists(time_models(12), min_size=3, max_size=3))
    def test_no_split_is_better(self, models, others):
        devices = [str(i) for i in range(len(models))]
        pairs = zip(devices, models, others, strict=False)
        profile = Profile({d: {"conv": model, "pool": other} for d, model, other in pairs})
        layers = (Layer("conv1", "conv", "filters", 12), Layer("pool1", "pool", "filters", 12))
        work = Work(layers, {"filters": {"filters": 12}})
        sizes = speeds.sizes_from(profile, work, devices)

        def seconds(split):
            settled = [[m.settle() for m in models.values()] for models in profile.models.values()]
            return max(math.fsum(m(n) for m in ms) for ms, n in zip(settled, split, strict=True))

        splits = [s for s in itertools.product(range(1, 13), repeat=len(devices)) if sum(s) == 12]
        assert seconds(sizes["filters"]) == pytest.approx(min(map(seconds, splits)))
        assert speeds.predicted_step_seconds(profile, work, devices, sizes) == pytest.approx(seconds(sizes["filters"]))

    def test_a_model_is_a_time_function_of_split_by_time(self):
        assert split_by_time(60, [linear(60, 1 / 70), linear(60, 1 / 25), linear(60, 1 / 5)]) == (42, 15, 3)

    def test_every_name_of_a_dimension_is_divided_alike(self):
        work = Work(work_of().layers, {"filters": {"filters": 60, "channels": 60, "flat": 120}})
        sizes = speeds.sizes_from(profile_of(a=1.0, b=2.0), work, ["a", "b"])
        assert sizes == {"filters": (40, 20), "channels": (40, 20), "flat": (80, 40)}

    def test_granules(self):
        profile, work = profile_of(a=1.0, b=2.2), work_of(64)
        sizes = speeds.sizes_from(profile, work, ["a", "b"], multiple_of={"filters": 8})
        assert sizes == {"filters": (48, 16)}

    def test_granules_that_the_extent_is_no_multiple_of(self):
        profile, work = profile_of(a=1.0, b=2.2), work_of(61)
        sizes = speeds.sizes_from(profile, work, ["a", "b"], multiple_of={"filters": 8})["filters"]
        assert sum(sizes) == 61
        assert sum(n % 8 > 0 for n in sizes) == 1
        split = speeds.best_split(profile, work, ["a", "b"], multiple_of={"filters": 8})
        assert (split.is_worth, split.sizes["filters"]) == (True, sizes)

    def test_memory_caps(self):
        work = work_of(fixed_bytes=100, dim_bytes={"filters": 600})
        profile = profile_of(a=1.0, b=9.0)
        sizes = speeds.sizes_from(profile, work, ["a", "b"], memory_limits={"a": 400, "b": None})
        assert sizes == {"filters": (30, 30)}

    def test_communication(self):
        work = work_of(messages=(1000, 2000))
        profile = profile_of(a=1.0, b=1.0, c=1.0, links={("a", "b"): Link(0.5, 1e3), ("c", "a"): Link(0.25, 1e3)})
        assert speeds.communication_seconds(profile, work, ["a"]) == 0
        assert speeds.communication_seconds(profile, work, ["a", "b"]) == pytest.approx(0.5 + 1 + 0.5 + 2)
        assert speeds.communication_seconds(profile, work, ["a", "b", "c"]) == pytest.approx(
            2 * (0.5 + 2 / 3 + 0.5 + 4 / 3)
        )

    def test_what_is_done_whole_costs_what_the_slowest_takes(self):
        profile = Profile(
            {n: {"conv": linear(60, t), "relu": TimeModel(((1, t, 0.0),))} for n, t in (("a", 1.0), ("b", 2.0))}
        )
        work = work_of(whole=True)
        assert speeds.alone_seconds(profile, work, "a") == pytest.approx(2.0)
        assert speeds.predicted_step_seconds(profile, work, ["a", "b"]) == pytest.approx(2.0 + 2 / 3)

    def test_sizes_that_do_not_fit(self):
        with pytest.raises(ValueError, match=r"sizes of dimension 'filters' are \(50, 5\); give 2 numbers"):
            speeds.predicted_step_seconds(profile_of(a=1.0, b=1.0), work_of(), ["a", "b"], {"filters": (50, 5)})

    def test_unknown_device(self):
        with pytest.raises(ValueError, match="no times of device 'z' for layer 'conv'; measure it anew"):
            speeds.shares_from(profile_of(a=1.0), work_of(), ["a", "z"])


class TestBestSplit:
    def test_splits_where_it_pays(self):
        split = speeds.best_split(profile_of(a=1.0, b=2.0), work_of(), ["a", "b"])
        assert split.is_worth
        assert split.sizes == {"filters": (40, 20)}
        assert split.alone == ("a", pytest.approx(1.0))
        assert not split.left_out
        assert split.reason == "split over a, b: 667 ms a step are predicted, and 1 s on a alone"

    def test_a_split_that_would_lose_is_not_taken(self):
        profile = profile_of(a=1.0, b=2.0, links={("a", "b"): Link(0.5, 1e9)})
        split = speeds.best_split(profile, work_of(messages=(4,)), ["a", "b"])
        assert (split.devices, split.sizes, split.is_worth) == (("a",), {}, False)
        assert split.predicted_seconds == pytest.approx(1.0)
        assert split.reason == (
            "not split: a alone takes 1 s a step, and the best split, over a, b, 1.17 s, 500 ms of it communication"
        )
        assert split.left_out == {"b": "b is left out: with it a step would take 1.17 s, without it 1 s"}

    def test_a_small_gain_is_not_worth_it(self):
        split = speeds.best_split(profile_of(a=1.0, b=58.0), work_of(), ["a", "b"])
        assert split.devices == ("a",)
        assert "a gain of less than 5%" in split.reason
        assert speeds.best_split(profile_of(a=1.0, b=58.0), work_of(), ["a", "b"], least_gain=0.0).is_worth

    @pytest.mark.parametrize("count", [3, 10])
    def test_a_device_that_slows_the_others_down_is_left_out(self, count):
        names = [f"d{i}" for i in range(count)]
        models = {name: {"conv": linear(60, 1.0)} for name in names}
        models["slow"] = {"conv": linear(60, 9.0, fixed=5.0)}
        split = speeds.best_split(Profile(models), work_of(), [*names[:1], "slow", *names[1:]])
        assert split.devices == tuple(names)
        assert list(split.left_out) == ["slow"]
        assert split.left_out["slow"].startswith("slow is left out: with it a step would take 5")

    def test_memory_leaves_a_device_out(self):
        work = work_of(fixed_bytes=10**9, dim_bytes={"filters": 10**9})
        split = speeds.best_split(profile_of(a=1.0, b=1.0, c=1.0), work, "abc", memory_limits={"b": 5 * 10**8})
        assert split.devices == ("a", "c")
        assert split.left_out["b"].startswith("b is left out: its memory of 0.50 GB is less than the 1.00 GB")

    def test_what_no_device_can_hold_alone_is_split(self):
        work = work_of(fixed_bytes=100, dim_bytes={"filters": 600})
        split = speeds.best_split(profile_of(a=1.0, b=1.0), work, "ab", memory_limits={"a": 500, "b": 500})
        assert split.alone is None
        assert split.reason == "split over a, b: no device alone can hold the step"

    def test_what_no_set_of_devices_can_hold(self):
        work = work_of(fixed_bytes=100, dim_bytes={"filters": 600})
        with pytest.raises(
            DoesNotFitError, match="the step fits on no set of the devices a, b: .*make the batch smaller"
        ):
            speeds.best_split(profile_of(a=1.0, b=1.0), work, "ab", memory_limits={"a": 200, "b": 200})

    @pytest.mark.parametrize(
        ("granule", "message"), [(0, "multiple_of is 0, but must be"), (2.5, "multiple_of is 2.5")]
    )
    def test_what_is_no_lack_of_memory_is_not_told_as_such(self, granule, message):
        with pytest.raises(ValueError, match=message) as caught:
            speeds.best_split(profile_of(a=1.0, b=1.0), work_of(), "ab", multiple_of={"filters": granule})
        assert not isinstance(caught.value, DoesNotFitError)

    @pytest.mark.parametrize("count", [3, 10])
    def test_more_devices_than_units(self, count):
        names = [f"d{i}" for i in range(count)]
        split = speeds.best_split(profile_of(2, **dict.fromkeys(names, 1.0)), work_of(2), names)
        assert len(split.devices) == 2
        assert split.sizes["filters"] == (1, 1)
        assert len(split.left_out) == count - 2

    def test_devices_are_named_once(self):
        with pytest.raises(ValueError, match="name at least one, and each once"):
            speeds.best_split(profile_of(a=1.0), work_of(), "aa")

    @tiered(st.lists(SECONDS, min_size=2, max_size=4), st.floats(0, 10), st.integers(4, 60))
    def test_never_slower_than_the_fastest_alone(self, seconds, latency, units):
        names = [str(i) for i in range(len(seconds))]
        links = dict.fromkeys(itertools.combinations(names, 2), Link(latency, 1e9))
        profile = profile_of(units, links, **dict(zip(names, seconds, strict=True)))
        split = speeds.best_split(profile, work_of(units, (8, 8)), names)
        assert split.predicted_seconds <= min(seconds) * (1 + 1e-9)
        assert {*split.devices, *split.left_out} == set(names)
        for sizes in split.sizes.values():
            assert (sum(sizes), len(sizes)) == (units, len(split.devices))


PROFILE = Profile(
    {"gpu:0": {"conv": linear(60, 0.1)}, "cpu:0": {"conv": TimeModel(((3, 0.1 + 0.2, 1e-17),))}},
    {("gpu:0", "cpu:0"): Link(1.5e-6, 12e9)},
    {"host": "here"},
)


class TestFile:
    def test_round_trip(self, tmp_path):
        assert speeds.loads(speeds.dumps(PROFILE)) == PROFILE
        path = tmp_path / "new" / "profile.json"
        speeds.save(PROFILE, path)
        assert speeds.load(path) == PROFILE
        assert [p.name for p in path.parent.iterdir()] == ["profile.json"]

    @tiered(time_models())
    def test_times_survive_exactly(self, model):
        assert speeds.loads(speeds.dumps(Profile({"d": {"k": model}}))).model("d", "k") == model

    @pytest.mark.parametrize(
        ("change", "message"),
        [
            (lambda v: v.update(schema=99), "has schema 99, not 1"),
            (lambda v: v.pop("devices"), "'devices' is missing"),
            (lambda v: v.update(devices=[1]), r"\[1\] is not an object"),
            (lambda v: v["devices"]["gpu:0"].update(conv=[[0, 1, 1]]), "units must be 1 or more"),
            (lambda v: v["devices"]["gpu:0"].update(conv=7), "not iterable"),
            (lambda v: v["links"][0].update(bytes_per_second=0), "must be greater than zero"),
            (lambda v: v["links"][0].pop("from"), "'from' is missing"),
        ],
    )
    def test_malformed(self, change, message):
        value = json.loads(speeds.dumps(PROFILE))
        change(value)
        with pytest.raises(speeds.ProfileError, match=f"p.json .*{message}.*; measure again with --fresh") as error:
            speeds.loads(json.dumps(value), source="p.json")
        assert "\n" not in str(error.value)

    def test_not_json(self):
        with pytest.raises(speeds.ProfileError, match="the text is not a profile: .*; measure again"):
            speeds.loads("{")

    def test_unreadable_and_unwritable(self, tmp_path):
        with pytest.raises(speeds.ProfileError, match="cannot be read: No such file or directory; name another file"):
            speeds.load(tmp_path / "absent.json")
        (tmp_path / "file").write_bytes(b"\xff")
        with pytest.raises(speeds.ProfileError, match="cannot be read: it is not text"):
            speeds.load(tmp_path / "file")
        with pytest.raises(speeds.ProfileError, match="cannot be written: "):
            speeds.save(PROFILE, tmp_path / "file" / "p.json")

    def test_merge(self):
        other = Profile({"gpu:0": {"conv": linear(60, 0.2), "pool": linear(9, 1.0)}}, {}, {"host": "there"})
        merged = PROFILE.merge(other)
        assert merged.model("gpu:0", "conv") == linear(60, 0.2)
        assert merged.model("cpu:0", "conv") == PROFILE.model("cpu:0", "conv")
        assert merged.link("cpu:0", "gpu:0") == PROFILE.link("gpu:0", "cpu:0") == Link(1.5e-6, 12e9)
        assert merged.provenance == {"host": "there"}
        assert merged.missing(["gpu:0", "cpu:0"], ["conv", "pool"]) == [("cpu:0", "pool")]

    def test_bad_link(self):
        with pytest.raises(ValueError, match="latency_seconds of a link is -1; it must be zero or more"):
            Link(-1, 1.0)
