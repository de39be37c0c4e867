"""SPDL: FFmpeg decodes, a filter graph per image crops, scales and flips, a Pipeline of threads.
Tried: 2, 3 and 4 concurrent decodes on 2 and 4 threads: no difference beyond noise."""

import math
import random

import numpy as np
import spdl.io
from spdl.pipeline import PipelineBuilder

from peer_run import BATCH_SIZE, MEAN, SIZE, STD

ABOUT = "FFmpeg: whole image decoded, bilinear (swscale)"
PACKAGES = ("spdl",)
MEAN, STD = (255 * np.array(values, np.float32)[:, None, None] for values in (MEAN, STD))


def prepare(folder, work):
    return sorted(folder.glob("*/*.jpg"))


def window(width, height):  # RandomResizedCrop's; `exact`, as chroma would else move it by a pixel
    for _ in range(10):
        area = width * height * random.uniform(0.08, 1.0)
        ratio = math.exp(random.uniform(math.log(3 / 4), math.log(4 / 3)))
        w, h = round(math.sqrt(area * ratio)), round(math.sqrt(area / ratio))
        if 0 < w <= width and 0 < h <= height:
            break
    else:
        w = h = min(width, height)
    return f"crop={w}:{h}:{random.randint(0, width - w)}:{random.randint(0, height - h)}:exact=1"


def load(path):
    packets = spdl.io.demux_image(path)
    steps = [window(packets.width, packets.height), f"scale={SIZE}:{SIZE}:flags=bilinear"]
    steps += ["hflip"] * (random.random() < 0.5) + ["format=pix_fmts=rgb24"]
    return spdl.io.decode_packets(packets, filter_desc=",".join(steps))


def to_array(frames, dtype):
    images = spdl.io.to_numpy(spdl.io.convert_frames(frames))  # NHWC
    if dtype == "uint8":
        return images.copy()
    return images.transpose(0, 3, 1, 2).astype(np.float32) / STD - MEAN / STD


def loader(folder, work, dtype, threads, decoders=2, buffer=4):
    paths = [str(path) for path in prepare(folder, work)]

    def epoch():
        shuffled = random.sample(paths, len(paths))
        builder = PipelineBuilder().add_source(shuffled).pipe(load, concurrency=decoders)
        builder = builder.aggregate(BATCH_SIZE).pipe(lambda frames: to_array(frames, dtype)).add_sink(buffer)
        pipeline = builder.build(num_threads=threads)
        with pipeline.auto_stop():
            yield from pipeline

    return epoch
