"""Feeds mutated image files to the native core, built with sanitizers: no report, no crash, no hang.

Seeds are made here. JPEG: every subsampling, gray, CMYK, progressive, restart markers, optimised tables; PNG:
every kind of pixels, interlaced and not, with all sorts of chunks; WebP: lossy, lossless, alpha, animated.
Sizes are from 1×1 to a few hundred pixels. The runners are native/fuzz's: mutate_* mutate by a fixed seed,
fuzz_* are libFuzzer's.

    make asan               make libfuzzer SECONDS_OF_FUZZING=60
"""

import argparse
import io
import os
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
from PIL import Image, ImageFile

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "tests"))
from support.pngs import KINDS, REFUSED, TAKEN, png

# Pillow's encoder wants an optimised file to fit its buffer, and noise is larger than it guesses.
ImageFile.MAXBLOCK = 1 << 24

SIZES = ((1, 1), (2, 3), (7, 5), (16, 16), (17, 33), (64, 48), (129, 65), (300, 200))
SUBSAMPLINGS = ("4:4:4", "4:2:2", "4:2:0")
SECONDS_WITHOUT_AN_ANSWER = 1200  # beyond what the runner was asked to take


def seeds() -> list[bytes]:
    """Valid JPEGs, small ones first."""
    rng = np.random.default_rng(0)
    found = []
    for width, height in SIZES:
        noise = rng.integers(0, 256, (height, width, 3), dtype=np.uint8)
        smooth = np.add.outer(np.arange(height) * 3, np.arange(width) * 5)[..., None] + np.array([0, 60, 120])
        for pixels in (noise, smooth.astype(np.uint8)):
            image = Image.fromarray(pixels)
            found.append(encode(image.convert("L"), quality=80))
            found.append(encode(image.convert("CMYK"), quality=80))
            for subsampling in SUBSAMPLINGS:
                found.append(encode(image, quality=85, subsampling=subsampling))
                found.append(encode(image, quality=60, subsampling=subsampling, progressive=True))
                found.append(encode(image, quality=95, subsampling=subsampling, restart_marker_blocks=2))
                found.append(encode(image, quality=90, subsampling=subsampling, optimize=True))
    return found


def seeds_of_other_formats() -> list[bytes]:
    """PNG and WebP files, most of them valid."""
    rng = np.random.default_rng(1)
    found = [
        png(rng, *size, *kind, interlaced=interlaced)
        for size in ((1, 1), (7, 5), (33, 17))
        for kind in KINDS
        for interlaced in (False, True)
    ]
    found += [make() for make in (TAKEN | REFUSED).values()]
    for width, height in SIZES[:-1]:
        for mode in ("RGB", "RGBA"):
            image = Image.fromarray(rng.integers(0, 256, (height, width, len(mode)), dtype=np.uint8))
            found += [encode(image, "WEBP", quality=60), encode(image, "WEBP", lossless=True)]
    found.append(encode(image, "WEBP", save_all=True, append_images=[image.rotate(90)]))
    return found


def encode(image: Image.Image, format: str = "JPEG", **options: object) -> bytes:
    file = io.BytesIO()
    image.save(file, format, **options)
    return file.getvalue()


def write(contents: list[bytes], folder: Path) -> list[Path]:
    """Files of the folder, one for each."""
    folder.mkdir(parents=True, exist_ok=True)
    files = [folder / f"{number:03d}" for number in range(len(contents))]
    for file, data in zip(files, contents, strict=True):
        file.write_bytes(data)
    return files


def run(command: list[str], seconds: int = 0) -> None:
    """Ends this program with a message where the runner fails; sanitizers' reports are on its stderr."""
    environment = os.environ | {
        "ASAN_OPTIONS": "detect_leaks=1:allocator_may_return_null=1:max_allocation_size_mb=4096",
        "UBSAN_OPTIONS": "print_stacktrace=1:halt_on_error=1",
    }
    print("+", *command[:6], "…" if len(command) > 6 else "", flush=True)
    start = time.monotonic()
    try:
        limit = seconds + SECONDS_WITHOUT_AN_ANSWER
        code = subprocess.run(command, env=environment, timeout=limit, check=False).returncode
    except subprocess.TimeoutExpired:
        sys.exit(f"{Path(command[0]).name} hangs: no end after {limit} s")
    if code:
        sys.exit(f"{Path(command[0]).name} ended with code {code}: see above")
    print(f"{Path(command[0]).name}: no report, {time.monotonic() - start:.0f} s", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--build", type=Path, required=True, help="a build of native/ with HEADRACE_FUZZ=ON")
    parser.add_argument("--engine", choices=("mutate", "libfuzzer"), default="mutate")
    parser.add_argument("--mutations", type=int, default=20_000)
    parser.add_argument("--seconds", type=int, default=600, help="of each libFuzzer target")
    arguments = parser.parse_args()
    jpegs = write(seeds(), arguments.build / "seeds")
    others = write(seeds_of_other_formats(), arguments.build / "seeds-of-other-formats")
    prefix = "mutate_" if arguments.engine == "mutate" else "fuzz_"
    runners = sorted(
        path for path in arguments.build.glob(f"{prefix}*") if os.access(path, os.X_OK) and path.is_file()
    )
    if not runners:
        sys.exit(f"No {prefix}* program in {arguments.build}: native/fuzz holds no target.")
    for runner in runners:
        files = {"codecs": others, "pipeline": [*jpegs, *others]}.get(runner.name.split("_")[1], jpegs)
        if arguments.engine == "mutate":
            run([str(runner), str(arguments.mutations), "1", *map(str, files)])
        else:
            found = arguments.build / f"{runner.name}-corpus"
            found.mkdir(exist_ok=True)
            folders = sorted({str(file.parent) for file in files})
            limits = [f"-max_total_time={arguments.seconds}", "-timeout=10", "-rss_limit_mb=4096"]
            run([str(runner), *limits, str(found), *folders], arguments.seconds)


if __name__ == "__main__":
    main()
