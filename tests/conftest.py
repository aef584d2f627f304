"""Shared by all tests: the drawn data, the tiny checkpoints, one task index, and full lmms-eval runs in process.

A start of lmms-eval costs 7 s of CPU time and the first engine more, so both are made once a session.
"""

import contextlib
import fcntl
import gc
import os
import signal
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import hypothesis
import pytest
from support.task_files import read_with_libyaml
from support.tasks import BUILT_IN, NAMES, Loaded

if TYPE_CHECKING:
    from support.processes import Command

ROOT = Path(__file__).resolve().parent.parent
WORK = ROOT / ".checkpoints"
# datasets reads these when it is imported. A fresh cache each session: it is keyed on file names, not on contents.
_cache = tempfile.TemporaryDirectory(prefix="hf-")
os.environ["HF_HUB_OFFLINE"] = "1"
os.environ["XDG_CACHE_HOME"] = _cache.name  # call stores: no run of an earlier session is resumed
os.environ["HF_HOME"] = _cache.name
# vLLM starts a process for ten seconds to look at a model class, and keeps what it found under a hash of the source.
os.environ["VLLM_CACHE_ROOT"] = str(WORK / "vllm")
os.environ["TOKENIZERS_PARALLELISM"] = "false"
os.environ["TORCHDYNAMO_DISABLE"] = "1"  # a start sets it, which is too late for a forked core: it compiles for 15 s
os.environ.setdefault("OMP_WAIT_POLICY", "passive")  # PyTorch's waiting threads would hold cores that others need
if "PYTEST_XDIST_WORKER" in os.environ:
    os.environ["OMP_NUM_THREADS"] = "1"  # the workers share the cores
    os.environ.pop("COVERAGE_PROCESS_CONFIG", None)  # coverage measures the workers, not what they start

# A shell that starts pytest in the background lets it ignore SIGINT, and so would every process of the tests.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)

# On CI the examples are the same in every run; elsewhere each run tries new ones.
hypothesis.settings.register_profile("ci", derandomize=True)
if os.environ.get("CI"):
    hypothesis.settings.load_profile("ci")

read_with_libyaml()

SLOW = ("cores", "server", "tiny_pair", "command")
"""Fixtures that start an engine or a command, or make a checkpoint. Those that take longest come first."""


@pytest.hookimpl(tryfirst=True)  # before pytest reads the marks
def pytest_collection_modifyitems(items: list[Any]) -> None:
    """Mark slow tests, and let the files that take longest run first."""
    order: dict[Path, int] = {}
    for item in items:
        place = next((place for place, name in enumerate(SLOW) if name in item.fixturenames), len(SLOW) + 1)
        if place < len(SLOW) or item.get_closest_marker("long"):
            item.add_marker(pytest.mark.slow)
        elif item.get_closest_marker("slow"):
            place = len(SLOW)
        order[item.path] = min(order.get(item.path, place), place)
    items.sort(key=lambda item: order[item.path])


@contextlib.contextmanager
def one_at_a_time(folder: Path) -> Iterator[None]:
    """Let one worker at a time make the files of a folder."""
    folder.mkdir(parents=True, exist_ok=True)
    with (folder / ".lock").open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


@pytest.fixture(scope="session")
def drawn_data() -> Path:
    """A folder from which lmms-eval's tasks load the images drawn by support/make_sample_data.py."""
    from support.make_sample_data import make_data

    with one_at_a_time(WORK):
        return make_data(WORK / "data")


@pytest.fixture(scope="session")
def tiny_pair() -> tuple[Path, Path]:
    """Paths of two tiny random Qwen3-VL checkpoints."""
    from support.make_tiny import make_pair

    with one_at_a_time(WORK):
        return make_pair(WORK / "tiny")


@pytest.fixture(scope="session")
def tiny_hybrid() -> tuple[Path, Path]:
    """Paths of two tiny random checkpoints of Qwen3.5's architecture, whose template switches their thinking."""
    from support.make_tiny import make_hybrid_pair

    with one_at_a_time(WORK):
        return make_hybrid_pair(WORK / "hybrid")


@pytest.fixture(scope="session")
def tiny_internvl() -> Path:
    """Path of a tiny random InternVL checkpoint, which cuts images into tiles."""
    from support.make_tiny import make_internvl

    with one_at_a_time(WORK):
        return make_internvl(WORK / "internvl")


@pytest.fixture(scope="session")
def loop() -> Iterator[Any]:
    """An event loop in a thread of its own, for the engines of the session."""
    from support.engines import LoopThread

    thread = LoopThread()
    yield thread
    thread.close()


@pytest.fixture(scope="session")
def cores() -> None:
    """Lets vLLM fork the engine cores of this process."""
    from support.engine_cores import fork_cores

    fork_cores()


@pytest.fixture(scope="session")
def vllm(cores: None, tiny_pair: tuple[Path, Path], loop: Any) -> Iterator[Any]:
    """vLLM on the small tiny checkpoint, in fp32: rounding decides no token."""
    from support.engines import Running, vllm_engine

    engine = vllm_engine(tiny_pair)
    loop.run(engine.start())
    yield Running(engine, loop)
    loop.run(engine.close())


@pytest.fixture(scope="session")
def demo_run(cores: None, tmp_path_factory: pytest.TempPathFactory) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    """A cascade of the demo pair on two vLLM engines in fp32 (rounding decides no token): what came of it, and all that
    lmms-eval logged of each sample."""
    from support.processes import DEMO_DOCUMENTS, evaluate

    arguments = {"pair": "demo", "dtype": "float32", "max_open_samples": 16, "store": "off"}
    return evaluate(tmp_path_factory.mktemp("demo") / "found.json", "shapes_s", DEMO_DOCUMENTS, arguments)


@pytest.fixture
def command() -> "type[Command]":
    """A console command in a process of its own."""
    from support.processes import Command

    return Command


@pytest.fixture(scope="session")
def task_manager() -> Any:
    """lmms-eval's index of our tasks and of those that they are compared with. The index of all tasks takes longer."""
    from lmms_eval import tasks

    from lmms_eval_mai import task_dir

    theirs = [str(Path(tasks.__file__).parent / benchmark.partition("_")[0]) for benchmark in BUILT_IN]
    manager = tasks.TaskManager(include_path=[str(task_dir()), *theirs], include_defaults=False)
    gc.freeze()  # lmms-eval collects garbage twice after each run, which takes 1.5 s with all that is imported
    return manager


@pytest.fixture
def warnings() -> Iterator[list[str]]:
    """The warnings that are logged during the test."""
    from support.logs import logged

    with logged("WARNING") as found:
        yield found


@pytest.fixture
def in_drawn_data(drawn_data: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(drawn_data)
    return drawn_data


@pytest.fixture
def evaluate(task_manager: Any, in_drawn_data: Path) -> Callable[..., dict[str, Any]]:
    """Run lmms-eval in process: evaluate(["pope_s"], small=..., large=..., options={...}) -> its results.

    `samples` of the results holds what `--log_samples` writes, with `exit` and `calls` of each sample under
    `token_counts`.
    """
    from lmms_eval.evaluator import simple_evaluate

    def run(
        tasks: list[str], options: dict[str, Any] | None = None, model: Any = "mai_cascade", **model_args: Any
    ) -> dict[str, Any]:
        results = simple_evaluate(
            model=model,
            tasks=tasks,
            **{
                "model_args": ",".join(f"{name}={value}" for name, value in model_args.items()),
                "task_manager": task_manager,
                "batch_size": 1,
                "log_samples": True,
                **(options or {}),
            },
        )
        assert results is not None
        return results

    return run


@pytest.fixture(scope="session")
def tasks(task_manager: Any, drawn_data: Path) -> Loaded:
    """All tasks and their built-in ones, each with its requests built."""
    from lmms_eval.tasks import get_task_dict

    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(drawn_data)
        chat = get_task_dict(NAMES, task_manager, task_type="chat")
        built_in = get_task_dict(list(BUILT_IN.values()), task_manager, task_type="chat")
        for task in (*chat.values(), *built_in.values()):
            task.build_all_requests(rank=0, world_size=1)
    return Loaded(chat, {benchmark: built_in[name] for benchmark, name in BUILT_IN.items()})
