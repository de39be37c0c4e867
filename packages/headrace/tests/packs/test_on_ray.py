"""Shards built by a cluster of two nodes: the bytes of a local pack, whatever happens to a node."""

from __future__ import annotations

import os
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import headrace
from headrace.errors import ConfigError, PackError
from headrace.packs.changes import Changes
from headrace.packs.inputs import open_input
from headrace.packs.samples import make_layout
from support.jpegs import image_folder
from support.pack_folders import contents
from support.watched_images import Watched

# Ray reads it when it is imported: on two busy cores a node may take a minute to start.
os.environ.setdefault("RAY_raylet_start_wait_time_s", "180")
ray = pytest.importorskip("ray", reason="Ray isn't installed (pip install 'headrace[ray]')")

# Not beside the other tests of Ray: on two cores a second cluster may not start in time.
pytestmark = [pytest.mark.long, pytest.mark.xdist_group("ray")]

SHARD_SIZE = 40_000


@pytest.fixture(scope="module")
def cluster() -> Iterator[Any]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("RAY_USAGE_STATS_ENABLED", "0")
        # Those of the tests, for what they pickle by name.
        patch.setenv("PYTHONPATH", ":".join(path for path in sys.path if path))
        made = started()
        try:
            yield made
        finally:
            made.shutdown()


def started(tries: int = 3) -> Any:
    """A cluster of one node. Ray gives that 30 seconds to start, in which busy cores may not get to it."""
    from ray.cluster_utils import Cluster

    try:
        return Cluster(initialize_head=True, head_node_args={"num_cpus": 1, "include_dashboard": False})
    except Exception as error:
        if tries == 1 or "timed out during startup" not in str(error):
            raise
        return started(tries - 1)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return image_folder(tmp_path / "src", 40)


def packed(src: Any, dest: Path, **more: Any) -> Any:
    return headrace.pack(src, dest, **{"shard_size": SHARD_SIZE, **more})


def test_the_same_bytes(cluster: Any, folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    packed(folder, tmp_path / "here", optimize=True, shuffle=1)
    told: list[tuple[int, int]] = []
    monkeypatch.chdir(tmp_path)
    made = packed(
        "src", Path("there"), optimize=True, shuffle=1, ray=cluster.address,
        progress=lambda done, total: told.append((done, total)),
    )  # fmt: skip
    assert contents(tmp_path / "there") == contents(tmp_path / "here")
    assert made.shards > 4
    assert len(told) == made.shards
    assert told[-1] == (40, 40)
    assert not ray.is_initialized()


def test_a_node_that_dies_costs_the_shard_in_its_hands(cluster: Any, tmp_path: Path) -> None:
    options: dict[str, Any] = {"reencode": "png", "shard_size": 100_000}
    packed(Watched(120, tmp_path / "here.log"), tmp_path / "here", **options)
    images = Watched(120, tmp_path / "log", together=3)  # this process asks for a size
    other = cluster.add_node(num_cpus=1)
    killed: list[int] = []

    def kill(done: int, total: int) -> None:
        if not killed and images.processes() > 2:
            killed.append(done)
            cluster.remove_node(other, allow_graceful=False)

    made = packed(images, tmp_path / "there", ray=cluster.address, progress=kill, **options)
    assert contents(tmp_path / "there") == contents(tmp_path / "here")
    assert killed
    assert killed[0] < 120, "the node was killed after the end: nothing was shown"
    # Index 0 is asked for by the driver too, which doesn't know the images' size.
    counts = Counter(index for index, _ in images.requests()[1:])
    assert set(counts) == set(range(120))
    per_shard = -(-120 // made.shards)
    twice = [index for index, count in counts.items() if count > 1]
    assert len(twice) <= per_shard, "more was built again than one core had in hand"


def test_finished_shards_are_kept(cluster: Any, folder: Path, tmp_path: Path) -> None:
    def interrupt(done: int, total: int) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        packed(folder, tmp_path / "there", ray=cluster.address, progress=interrupt)
    assert not (tmp_path / "there").exists()
    made = packed(folder, tmp_path / "there")
    assert made.reused >= 1
    packed(folder, tmp_path / "here")
    assert contents(tmp_path / "there") == contents(tmp_path / "here")


def test_the_error_of_a_node_names_the_file(cluster: Any, folder: Path, tmp_path: Path) -> None:
    source = open_input(str(folder), Changes())
    gone = sorted(folder.rglob("*.jpg"))[20]
    assert len(source.items()) == 40
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("headrace.packs.build.make_layout", _removing(gone))
        with pytest.raises(PackError, match=rf"shard \d+, on .*{gone.name} can't be read"):
            packed(folder, tmp_path / "there", ray=cluster.address)


def _removing(path: Path) -> Any:
    real = make_layout

    def removing(*arguments: Any) -> Any:
        plan = real(*arguments)
        path.unlink()
        return plan

    return removing


def test_a_cluster_that_cannot_be_reached_is_reported(folder: Path, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="no cluster can be reached"):
        packed(folder, tmp_path / "there", ray="127.0.0.1:9")


def test_the_command(cluster: Any, folder: Path, tmp_path: Path) -> None:
    command = [sys.executable, "-m", "headrace", "pack", str(folder), str(tmp_path / "there")]
    done = subprocess.run(
        [*command, "--ray", cluster.address, "--shard-size", "1"], capture_output=True, text=True, timeout=240
    )
    assert done.returncode == 0, done.stderr
    packed(folder, tmp_path / "here", shard_size=1_000_000)
    assert contents(tmp_path / "there") == contents(tmp_path / "here")
