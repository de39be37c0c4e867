"""The size of a pack's index: `python benchmarks/index_size.py FOLDER [--json FILE]`.

Packs a folder of class folders of images, and prints the bytes that each column of the index has per sample,
beside the images' own.
"""

from __future__ import annotations

import argparse
import json
import tempfile
import time
from pathlib import Path

import pyarrow as pa

import headrace
from machine import describe, keep


def measure(folder: Path) -> dict[str, object]:
    """Bytes per sample, and seconds to open the pack: its index is mapped, not read."""
    with tempfile.TemporaryDirectory() as work:
        pack = Path(work) / "pack"
        summary = headrace.pack(str(folder), str(pack))
        begin = time.perf_counter()
        headrace.PackedDataset(str(pack))
        opened = time.perf_counter() - begin
        with pa.memory_map(str(pack / "index.arrow")) as file:
            batch = pa.ipc.open_file(file).get_batch(0)
            columns = {
                name: column.nbytes / len(batch)
                for name, column in zip(batch.schema.names, batch.columns, strict=True)
            }
    return {
        "samples": summary.samples,
        "image_bytes": summary.source_bytes / summary.samples,
        "index_bytes": columns,
        "open_seconds": opened,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n", 1)[0])
    parser.add_argument("folder", type=Path)
    parser.add_argument("--json", type=Path, help="also write the figures there")
    args = parser.parse_args()
    found = {"machine": describe(), **measure(args.folder)}
    print(json.dumps(found, indent=1))
    if args.json:
        keep(found, args.json)


if __name__ == "__main__":
    main()
