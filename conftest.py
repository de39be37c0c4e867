"""For all tests."""

import gc
import multiprocessing
import os
import signal
from collections.abc import Iterator
from pathlib import Path

# Tests run next to each other. And a process forked from one in which OpenMP has started threads waits for
# them without end at its first parallel operation, of torch's own too: tests of forks would hang.
os.environ.setdefault("OMP_NUM_THREADS", "1")

import pytest
import torch
from hypothesis import HealthCheck, settings

# On a loaded machine everything may take long, to make examples too.
settings.register_profile("loaded", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("loaded")

# Workers of the fork server needn't import them again, which takes six seconds each time.
multiprocessing.set_forkserver_preload(["torchvision.transforms.v2", "headrace.loader"])

# A shell's background jobs ignore Ctrl-C, and so would the processes that tests send it to.
signal.signal(signal.SIGINT, signal.default_int_handler)


def pytest_configure() -> None:
    """With HEADRACE_ACCELERATOR=simulated tests run on the accelerator of tests/accelerator."""
    if os.environ.get("HEADRACE_ACCELERATOR") == "simulated":
        import accelerator

        accelerator.load()


def pytest_collection_finish() -> None:
    """Modules and tests stay until the end: no collection looks through them, here or in a forked worker."""
    gc.collect()
    gc.freeze()


def pytest_unconfigure() -> None:
    """Else what libraries keep would be reported as leaked."""
    gc.unfreeze()


@pytest.fixture(scope="session", autouse=True)
def no_memory_of_other_runs(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """Settings that were found are kept in a cache of this test run's own, subprocesses included."""
    before = os.environ.get("XDG_CACHE_HOME")
    cache = tmp_path_factory.mktemp("cache")
    os.environ["XDG_CACHE_HOME"] = str(cache)
    yield cache
    if before is None:
        del os.environ["XDG_CACHE_HOME"]
    else:
        os.environ["XDG_CACHE_HOME"] = before


@pytest.fixture
def gpu() -> Iterator[torch.device]:
    """The current accelerator. Without one the test is skipped; with HEADRACE_REQUIRE_GPU set it fails."""
    if not torch.accelerator.is_available():
        if os.environ.get("HEADRACE_REQUIRE_GPU"):
            pytest.fail("HEADRACE_REQUIRE_GPU is set, and torch finds no accelerator")
        pytest.skip("no accelerator")
    kind = torch.accelerator.current_accelerator()
    assert kind is not None
    device = torch.device(kind.type, torch.accelerator.current_device_index())
    if kind.type != "simulated":
        yield device
        return
    from accelerator import module as simulated

    simulated.configure(seed=1, mean_delay=1e-4)
    yield device
    simulated.configure()
    assert simulated.take_error() == ""
