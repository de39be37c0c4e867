"""LitData, MosaicML Streaming and WebDataset for remote.py: the same images, server and transform.

Each downloads whole chunks or shards of 16 MB ahead of its workers, and keeps them (WebDataset doesn't: every
epoch downloads again). Images are decoded by Pillow in two worker processes: what they are compared by is
loading, cold against warm, not decoding.
"""

from __future__ import annotations

import io
import os
import sys
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

from remote import BATCH_SIZE, BUCKET, options, transform

CHUNK_BYTES = 16 << 20
Epoch = Callable[[], Iterable[Any]]


def to_environment(address: str) -> None:
    """Sets options for obstore, which LitData reads with, and boto3, which Streaming does."""
    given = options(address)
    os.environ["AWS_ACCESS_KEY_ID"] = given["access_key_id"]
    os.environ["AWS_SECRET_ACCESS_KEY"] = given["secret_access_key"]
    os.environ["AWS_DEFAULT_REGION"] = given["region"]
    os.environ["AWS_ENDPOINT_URL"] = os.environ["S3_ENDPOINT_URL"] = address


def picture(data: bytes) -> Any:
    """Makes a sample of its file."""
    from PIL import Image

    return transform()(Image.open(io.BytesIO(data)).convert("RGB"))


def litdata(work: Path, address: str, cache: Path, threads: int) -> Epoch:  # noqa: ARG001
    to_environment(address)
    from litdata import StreamingDataLoader, StreamingDataset
    from litdata.streaming import downloader

    # It has no setting for a server that speaks plain HTTP, as this one on loopback does.
    downloader._OBSTORE_CLIENT_OPTIONS = {**downloader._OBSTORE_CLIENT_OPTIONS, "allow_http": True}

    class Pictures(StreamingDataset):
        def __getitem__(self, index: Any) -> Any:
            data, label = super().__getitem__(index)
            return picture(data), label

    dataset = Pictures(
        f"s3://{BUCKET}/litdata", cache_dir=str(cache), shuffle=True, drop_last=False, max_cache_size="8GB"
    )
    loader = StreamingDataLoader(dataset, batch_size=BATCH_SIZE, num_workers=threads, persistent_workers=True)
    return lambda: loader


def mosaic(work: Path, address: str, cache: Path, threads: int) -> Epoch:  # noqa: ARG001
    to_environment(address)
    from streaming import StreamingDataset
    from streaming.base.util import clean_stale_shared_memory
    from torch.utils.data import DataLoader

    clean_stale_shared_memory()  # of an earlier run that was stopped

    class Pictures(StreamingDataset):
        def __getitem__(self, index: Any) -> Any:
            sample = super().__getitem__(index)
            return picture(sample["jpg"]), sample["label"]

    dataset = Pictures(
        remote=f"s3://{BUCKET}/mosaic", local=str(cache / "mosaic"), shuffle=True, batch_size=BATCH_SIZE
    )
    for stream in dataset.streams:
        # Forked workers would share the connection that has read the index: a download may then wait for the
        # timeout of 60 s, or take another's bytes.
        stream._downloader.clean_up()
    loader = DataLoader(dataset, BATCH_SIZE, num_workers=threads, persistent_workers=True)
    return lambda: loader


def webdataset(work: Path, address: str, cache: Path, threads: int) -> Epoch:  # noqa: ARG001
    import webdataset as wds

    given = options(address)
    keys = f"{given['access_key_id']}:{given['secret_access_key']}"
    curl = f"curl -s -f --aws-sigv4 aws:amz:{given['region']}:s3 --user {keys} {address}/{BUCKET}"
    shards = [
        f"pipe:{curl}/webdataset/{path.name}" for path in sorted((work / BUCKET / "webdataset").iterdir())
    ]
    samples = wds.WebDataset(shards, shardshuffle=len(shards), workersplitter=wds.split_by_worker)
    samples = samples.shuffle(1000).to_tuple("jpg", "cls").map_tuple(picture, int)
    loader = wds.WebLoader(samples, batch_size=BATCH_SIZE, num_workers=threads, persistent_workers=True)
    return lambda: loader


def write(folder: Path, bucket: Path) -> None:
    """Makes the formats of all three, where they aren't there."""
    files = sorted(folder.glob("*/*.jpg"))
    classes = {name: label for label, name in enumerate(sorted({file.parent.name for file in files}))}
    samples = [(file, classes[file.parent.name]) for file in files]
    if not (bucket / "mosaic").exists():
        from streaming import MDSWriter

        columns = {"jpg": "bytes", "label": "int"}
        with MDSWriter(out=str(bucket / "mosaic"), columns=columns, size_limit=CHUNK_BYTES) as out:
            for file, label in samples:
                out.write({"jpg": file.read_bytes(), "label": label})
    if not (bucket / "webdataset").exists():
        import webdataset as wds

        (bucket / "webdataset").mkdir()
        with wds.ShardWriter(str(bucket / "webdataset" / "%03d.tar"), maxsize=CHUNK_BYTES, verbose=0) as out:
            for i, (file, label) in enumerate(samples):
                out.write({"__key__": f"{i:07}", "jpg": file.read_bytes(), "cls": str(label).encode()})
    if not (bucket / "litdata").exists():
        import litdata as lit

        lit.optimize(
            read_sample,
            samples,
            str(bucket / "litdata"),
            chunk_bytes=CHUNK_BYTES,
            num_workers=1,
            verbose=False,
        )


def read_sample(sample: tuple[Path, int]) -> tuple[bytes, int]:
    """Reads a sample for LitData, in its process."""
    return sample[0].read_bytes(), sample[1]


if __name__ == "__main__":
    write(Path(sys.argv[1]), Path(sys.argv[2]))
