from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, ClassVar, NamedTuple, Self

from tensorflow.compat.v1 import ConfigProto, Graph, RunMetadata, RunOptions, Session, Tensor, Variable

def __getattr__(name: str) -> Any: ...

class Coordinator:
    def __init__(self, clean_stop_exception_types: tuple[type[BaseException], ...] | None = None) -> None: ...
    def request_stop(self, ex: Any = None) -> None: ...
    def should_stop(self) -> bool: ...

class SessionRunArgs(NamedTuple):
    fetches: Any
    feed_dict: Mapping[Any, Any] | None = None
    options: RunOptions | None = None

class SessionRunContext:
    def __init__(self, original_args: SessionRunArgs, session: Session) -> None: ...
    @property
    def original_args(self) -> SessionRunArgs: ...
    @property
    def session(self) -> Session: ...
    def request_stop(self) -> None: ...

class SessionRunValues(NamedTuple):
    results: Any
    options: RunOptions
    run_metadata: RunMetadata

class SessionRunHook:
    def begin(self) -> None: ...
    def after_create_session(self, session: Session, coord: Coordinator) -> None: ...
    def before_run(self, run_context: SessionRunContext) -> SessionRunArgs | None: ...
    def after_run(self, run_context: SessionRunContext, run_values: SessionRunValues) -> None: ...
    def end(self, session: Session) -> None: ...

class CheckpointSaverListener:
    def begin(self) -> None: ...
    def before_save(self, session: Session, global_step_value: int) -> None: ...
    def after_save(self, session: Session, global_step_value: int) -> bool | None: ...
    def end(self, session: Session, global_step_value: int) -> None: ...

class CheckpointSaverHook(SessionRunHook):
    _timer: Any
    _saver: Saver | None
    _listeners: list[CheckpointSaverListener]
    _save_path: str
    def __init__(
        self,
        checkpoint_dir: str,
        save_secs: float | None = None,
        save_steps: int | None = None,
        saver: Saver | None = None,
        checkpoint_basename: str = "model.ckpt",
        scaffold: Scaffold | None = None,
        listeners: Iterable[CheckpointSaverListener] | None = None,
        save_graph_def: bool = True,
    ) -> None: ...
    def _save(self, session: Session, step: int) -> bool: ...
    def _get_saver(self) -> Saver: ...

class StepCounterHook(SessionRunHook):
    def __init__(
        self,
        every_n_steps: int | None = 100,
        every_n_secs: float | None = None,
        output_dir: str | None = None,
        summary_writer: Any = None,
    ) -> None: ...

class StopAtStepHook(SessionRunHook):
    _last_step: int | None
    def __init__(self, num_steps: int | None = None, last_step: int | None = None) -> None: ...

class SummarySaverHook(SessionRunHook):
    def __init__(
        self,
        save_steps: int | None = None,
        save_secs: float | None = None,
        output_dir: str | None = None,
        summary_writer: Any = None,
        scaffold: Scaffold | None = None,
        summary_op: Any = None,
    ) -> None: ...

class LoggingTensorHook(SessionRunHook):
    def __init__(
        self,
        tensors: Any,
        every_n_iter: int | None = None,
        every_n_secs: float | None = None,
        at_end: bool = False,
        formatter: Callable[[dict[str, Any]], str] | None = None,
    ) -> None: ...

class NanLossDuringTrainingError(RuntimeError): ...

class NanTensorHook(SessionRunHook):
    def __init__(self, loss_tensor: Tensor, fail_on_nan_loss: bool = True) -> None: ...

class FinalOpsHook(SessionRunHook):
    def __init__(self, final_ops: Any, final_ops_feed_dict: Mapping[Any, Any] | None = None) -> None: ...
    @property
    def final_ops_values(self) -> Any: ...

class SaverDef:
    V1: ClassVar[int]
    V2: ClassVar[int]

class Saver:
    saver_def: Any
    _next_checkpoint_time: float
    _pad_step_number: bool
    _last_checkpoints: list[tuple[str, float]]
    _checkpoints_to_be_deleted: list[tuple[str, float]]
    _is_empty: bool
    _var_list: Any
    def export_meta_graph(self) -> Any: ...
    def __init__(
        self,
        var_list: Any = None,
        reshape: bool = False,
        sharded: bool = False,
        max_to_keep: int | None = 5,
        keep_checkpoint_every_n_hours: float = 10000.0,
        name: str | None = None,
        restore_sequentially: bool = False,
        saver_def: Any = None,
        builder: Any = None,
        defer_build: bool = False,
        allow_empty: bool = False,
        write_version: int = ...,
        pad_step_number: bool = False,
        save_relative_paths: bool = False,
        filename: str | None = None,
    ) -> None: ...
    def build(self) -> None: ...
    def _RecordLastCheckpoint(self, latest_save_path: str) -> None: ...
    @property
    def last_checkpoints(self) -> list[str]: ...
    def set_last_checkpoints_with_time(self, last_checkpoints_with_time: Sequence[tuple[str, float]]) -> None: ...
    def save(
        self,
        sess: Session,
        save_path: str,
        global_step: Any = None,
        latest_filename: str | None = None,
        meta_graph_suffix: str = "meta",
        write_meta_graph: bool = True,
        write_state: bool = True,
        strip_default_attrs: bool = False,
        save_debug_info: bool = False,
    ) -> str | None: ...
    def restore(self, sess: Session, save_path: str) -> None: ...

class Scaffold:
    def __init__(
        self,
        init_op: Any = None,
        init_feed_dict: Mapping[Any, Any] | None = None,
        init_fn: Callable[..., Any] | None = None,
        ready_op: Any = None,
        ready_for_local_init_op: Any = None,
        local_init_op: Any = None,
        summary_op: Any = None,
        saver: Saver | None = None,
        copy_from_scaffold: Scaffold | None = None,
        local_init_feed_dict: Mapping[Any, Any] | None = None,
    ) -> None: ...
    def finalize(self) -> Self: ...
    @staticmethod
    def get_or_default(arg_name: str, collection_key: str, default_constructor: Callable[[], Any]) -> Any: ...
    @property
    def init_op(self) -> Any: ...
    @property
    def init_fn(self) -> Any: ...
    @property
    def init_feed_dict(self) -> Any: ...
    @property
    def ready_op(self) -> Any: ...
    @property
    def ready_for_local_init_op(self) -> Any: ...
    @property
    def local_init_op(self) -> Any: ...
    @property
    def local_init_feed_dict(self) -> Any: ...
    @property
    def summary_op(self) -> Any: ...
    @property
    def saver(self) -> Saver: ...

class SessionCreator:
    def create_session(self) -> Session: ...

class ChiefSessionCreator(SessionCreator):
    _scaffold: Scaffold
    def __init__(
        self,
        scaffold: Scaffold | None = None,
        master: str = "",
        config: ConfigProto | None = None,
        checkpoint_dir: str | None = None,
        checkpoint_filename_with_path: str | None = None,
    ) -> None: ...

class _MonitoredSession:
    @property
    def graph(self) -> Graph: ...
    def run(
        self,
        fetches: Any,
        feed_dict: Mapping[Any, Any] | None = None,
        options: RunOptions | None = None,
        run_metadata: RunMetadata | None = None,
    ) -> Any: ...
    def run_step_fn(self, step_fn: Callable[..., Any]) -> Any: ...
    def should_stop(self) -> bool: ...
    def close(self) -> None: ...
    def __enter__(self) -> Self: ...
    def __exit__(self, exception_type: Any, exception_value: Any, traceback: Any) -> Any: ...

class MonitoredSession(_MonitoredSession):
    class StepContext:
        session: Session

    def __init__(
        self,
        session_creator: SessionCreator | None = None,
        hooks: Iterable[SessionRunHook] | None = None,
        stop_grace_period_secs: float = 120,
    ) -> None: ...
    def _tf_sess(self) -> Session: ...

class SingularMonitoredSession(_MonitoredSession):
    def __init__(
        self,
        hooks: Iterable[SessionRunHook] | None = None,
        scaffold: Scaffold | None = None,
        master: str = "",
        config: ConfigProto | None = None,
        checkpoint_dir: str | None = None,
        stop_grace_period_secs: float = 120,
        checkpoint_filename_with_path: str | None = None,
    ) -> None: ...

class ClusterSpec:
    def __init__(self, cluster: Any) -> None: ...
    def as_dict(self) -> dict[str, list[str]]: ...
    def as_cluster_def(self) -> Any: ...

class Server:
    def __init__(
        self,
        server_or_cluster_def: Any,
        job_name: str | None = None,
        task_index: int | None = None,
        protocol: str | None = None,
        config: ConfigProto | None = None,
        start: bool = True,
    ) -> None: ...
    @property
    def target(self) -> str: ...
    def start(self) -> None: ...
    @staticmethod
    def create_local_server(config: ConfigProto | None = None, start: bool = True) -> Server: ...
    def join(self) -> None: ...

def get_global_step(graph: Graph | None = None) -> Any: ...  # None where the graph has none
def create_global_step(graph: Graph | None = None) -> Variable: ...
def get_or_create_global_step(graph: Graph | None = None) -> Variable: ...
def global_step(sess: Session, global_step_tensor: Any) -> int: ...
def load_checkpoint(ckpt_dir_or_file: str) -> Any: ...
def load_variable(ckpt_dir_or_file: str, name: str) -> Any: ...
def list_variables(ckpt_dir_or_file: str) -> list[tuple[str, list[int]]]: ...
