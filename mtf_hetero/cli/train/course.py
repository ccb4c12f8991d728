"""The course of a training: its hooks, the loss of workers, and the test at the end."""

import dataclasses
import functools
import os
import sys
from collections.abc import Callable, Collection, Mapping
from typing import Any

import mtf_hetero
from mtf_hetero import checkpoint as saver_lib
from mtf_hetero import data
from mtf_hetero._compat import tf
from mtf_hetero._support import command_line, extras, logs
from mtf_hetero.cli.train import best, config_file, inputs, recorded
from mtf_hetero.cli.train.best import TEST, VALIDATION
from mtf_hetero.cli.train.prepare import place_with, place_without
from mtf_hetero.cli.train.run import LOST, Run, validation_rule
from mtf_hetero.cluster import UnreachableWorkerError
from mtf_hetero.cluster.claim import find_free, give_back
from mtf_hetero.cluster.probe import ask_all, describe_workers, name_workers
from mtf_hetero.cost.trace import TraceHook
from mtf_hetero.estimator import Elastic, Event, Place, changes
from mtf_hetero.estimator.load import DeviceLoad
from mtf_hetero.estimator.metrics import MetricsHook
from mtf_hetero.estimator.metrics_log import NAME as METRICS
from mtf_hetero.estimator.metrics_log import MetricsLog
from mtf_hetero.estimator.progress import ProgressHook
from mtf_hetero.estimator.rebalance import Proposal, go_back
from mtf_hetero.estimator.rebalance_hook import RebalanceHook
from mtf_hetero.estimator.validation import ValidatingSaverHook
from mtf_hetero.planner.resizing import Resizer

_ANSWER_SECONDS = 5.0


def train(run: Run) -> int:
    """Train, test, print the result, and return the exit code."""
    if not run.config.quiet:
        print(run.describe(), flush=True)
    tf.logging.set_verbosity(_verbosity(run))
    try:
        with logs.on_console(), data.unreadable_as_value_error():
            with saver_lib.as_write_error(f"cannot write to {run.model_dir}"):
                _describe(run, run.model_dir)
            Course(run).train_and_test()
    except tf.train.NanLossDuringTrainingError:
        print(
            f"error: the loss is not a number any more; lower --learning_rate; {run.how_to_resume()}",
            file=sys.stderr,
        )
        return LOST
    except saver_lib.WriteError as error:
        command_line.say(f"{error}; {run.how_to_resume()}")
        return LOST
    except mtf_hetero.StepDiffersError as error:
        command_line.say(error)
        return LOST
    except NotImplementedError as error:  # the layout splits a dimension that an operation needs unsplit
        command_line.say(error)
        return command_line.WRONG_USAGE
    except data.UnreadableError as error:
        command_line.say(f"{error}; {run.how_to_resume()}")
        return command_line.WRONG_USAGE
    return 0


def _describe(run: Run, directory: str) -> None:
    """Write the files about a run to a directory."""
    config_file.save(run.config, directory)
    recorded.save(run.config, run.model, run.dataset, directory)


def _verbosity(run: Run) -> int:
    return tf.logging.ERROR if run.config.quiet else tf.logging.WARN


class Course:
    """The course of a training, which may lose workers.

    Args:
      run: the run at its beginning.

    Attributes:
      run: the run in its present place.
    """

    def __init__(self, run: Run) -> None:
        self.run = self._first = run
        self._lost: dict[int, str] = {}  # workers that take no part at present
        self._known = set(run.cluster.workers)
        self._needed: dict[int, str] = {}  # workers that are not listed any more, but without which there is no layout
        self._log = MetricsLog(os.path.join(run.model_dir, METRICS))
        self._unit = inputs.unit(run.dataset)
        self._load = DeviceLoad(run.devices, run.cluster.workers) if run.config.busy_steps != 0 else None
        options = {"without": self._without, "min_workers": run.config.min_workers, "report": self._report}
        self._elastic = Elastic(within=self._within if run.cluster.workers else None, unused=self._unused, **options)
        self._rebalance: RebalanceHook[Run] | None = None
        self._resizer: Resizer | None = None
        self._before = run  # the last change of the place
        self._gain: float | None = None  # predicted, of the last change of the shares
        self._trace = TraceHook(
            os.path.join(run.model_dir, "traces"),
            run.config.trace_steps,
            run.devices,
            reports={} if run.plan is None else {"layers": run.report_layers},
        )

    def train_and_test(self) -> None:
        """Train to the last step, test, and print the result."""
        run, config = self.run, self.run.config
        load = self._load
        metrics = MetricsHook(
            self._log,
            run.model_dir,
            config.batch_size,
            every_steps=config.summary_steps,
            unit=self._unit,
            busy=None if load is None else load.measure,
            busy_steps=config.busy_steps or None,
            busy_options=None if load is None else load.options,
            uncounted=config.trace_steps,
        )
        hooks = self._hooks(metrics)
        if not self._is_over(best.read_tests(run.model_dir)):
            run.estimator.train(run.train_input, hooks=hooks, max_steps=run.total_steps, elastic=self._elastic)
        step = int(run.estimator.get_variable_value(tf.GraphKeys.GLOBAL_STEP))
        with saver_lib.as_write_error(f"cannot write to {run.model_dir}"):
            self._log.begin(step)  # no session has begun it if no step was left
        if run.dataset.test_size:
            print(self._test_and_log(TEST, step))
        else:
            print(f"not tested: there are no test {self._unit}")
        steps_per_second = metrics.pace.steps_per_second
        if steps_per_second is not None:
            print(f"{self._unit} per second: {steps_per_second * config.batch_size:.1f}")
        else:
            print(f"{self._unit} per second: none, it was trained to step {step} before")
        path = run.estimator.latest_checkpoint()
        print(f"checkpoint: {path}")
        if path and config.eval_every is not None:
            tests = self._keep_best(step, path)
            print(f"best checkpoint: {run.model_dir}/{best.NAME}, test loss {tests.loss:.4g} after step {tests.best}")

    def _hooks(self, metrics: MetricsHook) -> list[tf.train.SessionRunHook]:
        run, config = self.run, self.run.config
        hooks: list[tf.train.SessionRunHook] = [metrics, self._trace]
        if self._load is not None:
            hooks.insert(0, self._load)
            seconds = config.rebalance_seconds
            has_own_sizes = len(run.devices) < 2 or config.dense_rounds  # rounds do not follow the layout
            if seconds is not None and not has_own_sizes:
                self._rebalance = RebalanceHook(
                    self._load,
                    self._propose,
                    self._switch,
                    fallback=self._fallback,
                    prepare=lambda found: found.estimator.prepare(found.train_input, self._elastic),
                    total_steps=run.total_steps,
                    seconds=seconds,
                )
                hooks.append(self._rebalance)
        if not config.quiet:
            progress = ProgressHook(
                config.batch_size,
                run.total_steps,
                log_step_count_steps=config.log_steps,
                unit=self._unit,
                epoch_size=run.dataset.train_size,
                busy=None if self._load is None else self._load.shares,
                report=lambda line: extras.write_above_bars(line, sys.stderr),
            )
            hooks.append(progress)
        if config.eval_every is not None:
            is_due = validation_rule(config, run.dataset)
            saver = ValidatingSaverHook(
                run.model_dir,
                save_secs=config.save_checkpoints_secs,
                is_due=lambda step: is_due(int(step)) and not self._log.has(VALIDATION, step),
                evaluate=self._validate,
            )
            hooks.append(saver)
        return hooks

    def _without(self, lost: Mapping[int, str]) -> Place:
        """Place the run on the devices that remain after a loss of workers."""
        return self._place({**self._lost, **lost})

    def _unused(self) -> int:
        return len(self.run.cluster.workers_not_in_use.keys() - self._lost.keys())

    def _within(self) -> tuple[Place, str] | None:
        """Place the run on other devices if workers were removed, lost ones answer again, or new ones have come."""
        lost, members = self._lost, self._first.members
        present = self._first.cluster.workers if members is None else members()
        if (found := self._without_removed(present)) is not None:
            return found
        back = find_free({index: address for index, address in lost.items() if address in present})
        if back:
            place = self._place({i: lost[i] for i in lost.keys() - back.keys()})
            return place, describe_workers(back, "answers again", "answer again")
        new = [address for address in present if address not in self._known]
        new = [
            address
            for address, answer in zip(new, ask_all(new, _ANSWER_SECONDS).values(), strict=True)
            if not answer.failure
        ]
        if not new:
            return None
        here = dataclasses.replace(self._place(lost), begin=lambda: self._take_in(new))
        return here, f"{', '.join(f'worker {address}' for address in new)} joined"

    def _without_removed(self, present: Collection[str]) -> tuple[Place, str] | None:
        """Place the run without workers that are not listed any more, and give these back. Lost ones do not count."""
        lost, workers = self._lost, self._first.cluster.workers_in_use
        removed = {i: address for i, address in workers.items() if i not in lost and address not in present}
        removed = {i: removed[i] for i, answer in ask_all(removed, _ANSWER_SECONDS).items() if not answer.failure}
        if not removed or removed == self._needed:
            return None
        self._needed = removed
        try:
            if len(workers) - len(lost) - len(removed) < self._first.config.min_workers:
                raise ValueError(f"--min_workers is {self._first.config.min_workers}")
            place = self._place({**lost, **removed})
        except (ValueError, NotImplementedError) as error:
            tf.logging.warning("training continues with %s: %s", name_workers(removed), error)
            return None

        def begin() -> Place | None:
            give_back(removed)
            return place.begin()

        why = describe_workers(removed, "was removed", "were removed")
        return dataclasses.replace(place, begin=begin), why

    def _take_in(self, new: Collection[str]) -> Place | None:
        """Place the run on more devices, while the training pauses; None: it stays where it is."""
        self._known |= set(new)
        try:
            self._first = place_with(self._first, self._lost, new)
        except (ValueError, NotImplementedError) as error:
            tf.logging.warning("training continues without %s: %s", ", ".join(new), error)
            return None
        self._known -= set(self._lost.values())  # if they answer again, they are measured again
        place = self._place({})
        place.begin()
        return place

    def _place(self, lost: dict[int, str]) -> Place:
        """Return the place without some workers, which becomes the present one when the training begins there."""
        return self._at(place_without(self._first, lost) if lost else self._first, lost)

    def _at(self, run: Run, lost: dict[int, str], gain: float | None = None) -> Place:
        """Return the place of a run; `gain` is predicted of a change of the shares."""

        def begin() -> Place | None:
            if run.devices != self.run.devices:
                self._resizer = None
                if self._rebalance is not None:
                    self._rebalance.restart()
            self._before, self.run, self._lost, self._gain = self.run, run, lost, gain
            self._trace.devices = run.devices
            self._trace.reports = {}  # the reports belong to the first plan
            if self._load is not None:
                self._load.devices, self._load.workers = run.devices, dict(enumerate(run.cluster.workers))
            return None

        return Place(run.estimator, run.train_input, begin)

    def _propose(self, first: Mapping[str, float], busy_seconds: Mapping[str, float]) -> Proposal[Run]:
        """Return the run with sizes for devices that have become slower or faster."""
        run = self.run
        if self._resizer is None:
            self._resizer = run.placed.resizer(run.build_graph, run.measured_machines)
        numbers = ([of[device] for device in run.devices] for of in (first, busy_seconds))
        found = self._resizer.resize(run.layout, *numbers)
        return Proposal(run.with_layout(found.layout), found.step, dict(zip(run.devices, found.slowness, strict=True)))

    @property
    def _fallback(self) -> Callable[[float], Proposal[Run]] | None:
        """Return what proposes the fastest device alone, if the run begins with a split that was not tried."""
        back = self.run.placed.fallback
        if back is None or back.plan is None:
            return None
        run = dataclasses.replace(self.run, placement=back, cluster=back.cluster)
        return functools.partial(go_back, run, back.devices[0], back.plan.seconds)

    def _switch(self, proposal: Proposal[Run], why: str) -> None:
        self._elastic.move(self._at(proposal.place, self._lost, 1.0 - proposal.step), why)

    def _report(self, event: Event) -> None:
        """Show a change of the place in one line, and log it in one row."""
        before, split = self._before.split, self.run.split
        if not self.run.config.quiet:
            extras.write_above_bars(changes.describe(event, split, self._gain), sys.stderr)
        if self._rebalance is not None:
            self._rebalance.end_switch(event.seconds)
        values = changes.row(event, before, split, self._gain)
        with saver_lib.as_write_error(f"cannot write to {self.run.model_dir}"):
            self._log.append("event", event.step, values, again=True)

    def _validate(self, step: int, path: str) -> bool:
        """Test a checkpoint, keep the best one, and return whether the training is to stop."""
        report = self._test_and_log(VALIDATION, step, path)
        tests = self._keep_best(step, path)
        if not self.run.config.quiet:
            extras.write_above_bars(f"step {step}: {report}; {tests.describe()}")
        return self._is_over(tests)

    def _keep_best(self, step: int, path: str) -> best.Tests:
        """Keep a checkpoint that was tested if that test is the best one; return the tests."""
        run, tests = self.run, best.read_tests(self.run.model_dir)
        assert tests is not None
        if tests.best == step:
            with saver_lib.as_write_error(f"cannot write to {run.model_dir}"):
                best.keep(path, run.model_dir, lambda directory: _describe(run, directory))
        return tests

    def _is_over(self, tests: best.Tests | None) -> bool:
        """Return whether the loss of as many tests in a row was not lower as --patience says."""
        patience = self.run.config.patience
        if patience is None or tests is None or tests.since < patience:
            return False
        if not self.run.config.quiet:
            text = f"stopped early: no test loss since step {tests.best} was lower (--patience={patience})"
            extras.write_above_bars(text)
        return True

    def _test(self, kind: str, path: str | None) -> dict[str, Any]:
        """Test a checkpoint. At the end of the training, lost workers are left out."""
        while True:
            try:
                return self.run.test(checkpoint_path=path)
            except UnreachableWorkerError as error:
                if kind == VALIDATION or not error.workers:  # during the training, the Estimator continues elsewhere
                    raise
                self._without(error.workers).begin()
                tf.logging.warning("%s; testing without it", error)

    def _test_and_log(self, kind: str, step: int, path: str | None = None) -> str:
        """Test a checkpoint, log a row, and return the text for the user."""
        # A warning names a worker that is lost during the test
        with logs.log_level(_verbosity(self.run) if self.run.cluster.workers else tf.logging.ERROR):
            results = self._test(kind, path)
        run = self.run
        row = {name: value for name, value in results.items() if name != tf.GraphKeys.GLOBAL_STEP}
        with saver_lib.as_write_error(f"cannot write to {run.model_dir}"):
            self._log.append(kind, step, row)
        return run.task.report(results, f"{run.dataset.test_size:,} {self._unit}")
