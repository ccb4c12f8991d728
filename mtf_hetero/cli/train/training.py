"""A training from its hooks to the test at its end."""

import os
import sys
import time
from typing import Any

import mtf_hetero
from mtf_hetero import checkpoint as saver_lib
from mtf_hetero import data
from mtf_hetero._compat import tf
from mtf_hetero._support import command_line, extras, logs
from mtf_hetero.cli.train import best, config_file, recorded
from mtf_hetero.cli.train.best import TEST, VALIDATION
from mtf_hetero.cli.train.prepare import place_with, place_without
from mtf_hetero.cli.train.run import LOST, Run, validations
from mtf_hetero.cluster import UnreachableWorkerError
from mtf_hetero.cost.trace import TraceHook
from mtf_hetero.estimator import Place
from mtf_hetero.estimator.metrics import MetricsHook
from mtf_hetero.estimator.metrics_log import NAME as METRICS
from mtf_hetero.estimator.metrics_log import MetricsLog
from mtf_hetero.estimator.progress import ProgressHook
from mtf_hetero.estimator.validation import ValidatingSaverHook
from mtf_hetero.training.changes import Row
from mtf_hetero.training.course import Course, Stage
from mtf_hetero.training.load import DeviceLoad


def train(run: Run) -> int:
    """Train, test, print the result, and return the exit code."""
    if not run.config.quiet:
        print(run.describe(), flush=True)
    tf.logging.set_verbosity(_verbosity(run))
    try:
        with logs.on_console(), data.unreadable_as_value_error():
            with saver_lib.as_write_error(f"cannot write to {run.model_dir}"):
                _describe(run, run.model_dir)
            Training(run).train_and_test()
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


class Training:
    """A training, which may lose workers."""

    def __init__(self, run: Run) -> None:
        self._first = run
        self._log = MetricsLog(os.path.join(run.model_dir, METRICS))
        self._unit = run.dataset.unit
        self._validations = validations(run.config, run.dataset)
        self._validated, self._validation_seconds = 0, 0.0  # the number of tests so far, and their time
        self._load = DeviceLoad(run.devices, run.cluster.workers) if run.config.busy_steps != 0 else None
        self._course = Course(
            run,
            lambda lost: place_without(self._course.first, lost),
            self._report,
            min_workers=run.config.min_workers,
            members=run.members,
            joined=lambda lost, new: place_with(self._course.first, lost, new),
            arrive=self._arrive,
            wrap=_place,
        )
        self._trace = TraceHook(
            os.path.join(run.model_dir, "traces"),
            run.config.trace_steps,
            run.devices,
            reports={} if run.plan is None else {"layers": run.report_layers},
        )

    @property
    def run(self) -> Run:
        """The run in its present place."""
        return self._course.site

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
            run.estimator.train(run.train_input, hooks=hooks, max_steps=run.total_steps, elastic=self._course.elastic)
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
            hook = self._course.balance(
                self._load,
                None if config.dense_rounds else config.rebalance_seconds,  # rounds do not follow the layout
                total_steps=run.total_steps,
                prepare=lambda found: found.estimator.prepare(found.train_input, self._course.elastic),
            )
            hooks += [] if hook is None else [hook]
        if not config.quiet:
            progress = ProgressHook(
                config.batch_size,
                run.total_steps,
                log_step_count_steps=config.log_steps,
                unit=self._unit,
                epoch_size=run.dataset.train_size,
                busy=None if self._load is None else self._load.shares,
                report=lambda line: extras.write_above_bars(line, sys.stderr),
                pauses=self._seconds_of_validations,
            )
            hooks.append(progress)
        if config.eval_every is not None:
            saver = ValidatingSaverHook(
                run.model_dir,
                save_secs=config.save_checkpoints_secs,
                is_due=lambda step: self._validations.is_due(int(step)) and not self._log.has(VALIDATION, step),
                evaluate=self._validate,
            )
            hooks.append(saver)
        return hooks

    def _arrive(self, run: Run) -> None:
        self._trace.devices = run.devices
        self._trace.reports = {}  # the reports belong to the first plan

    def _report(self, line: str, step: int, row: Row) -> None:
        """Show a change of the place, and log it."""
        if not self.run.config.quiet:
            extras.write_above_bars(line, sys.stderr)
        with saver_lib.as_write_error(f"cannot write to {self.run.model_dir}"):
            self._log.append("event", step, row, again=True)

    def _validate(self, step: int, path: str) -> bool:
        """Test a checkpoint, keep the best one, and return whether the training is to stop."""
        begin = time.monotonic()
        report = self._test_and_log(VALIDATION, step, path)
        tests = self._keep_best(step, path)
        self._validated += 1
        self._validation_seconds += time.monotonic() - begin
        if not self.run.config.quiet:
            extras.write_above_bars(f"step {step}: {report}; {tests.describe()}")
        return self._is_over(tests)

    def _seconds_of_validations(self, step: int) -> float:
        """Return the time that the tests from a step on will take, as long as those so far; 0 before the first one."""
        return self._validations.count_from(step) * self._validation_seconds / max(self._validated, 1)

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
                self._course.without(error.workers).begin()
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


def _place(stage: Stage[Run]) -> Place:
    """Return a stage of the training as its Estimators know it."""

    def begin() -> Place | None:
        other = stage.begin()
        return None if other is None else _place(other)

    return Place(stage.site.estimator, stage.site.train_input, begin)
