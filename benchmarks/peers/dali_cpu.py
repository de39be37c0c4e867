"""NVIDIA DALI on the CPU: decodes the window only, then resizes, flips and normalises in C++.

Tried: queues of 2, 3 and 4 batches, 2 and 3 threads on 2 cores: no difference beyond noise.
"""

from nvidia.dali import fn, pipeline_def, types

from peer_run import BATCH_SIZE, MEAN, SIZE, STD

ABOUT = "window decode, antialiased triangular resize, DALI's own pixels"
PACKAGES = ("nvidia-dali-cuda120",)


def prepare(folder, work):
    return sorted(folder.glob("*/*.jpg"))


@pipeline_def
def training(files, dtype):
    encoded, _ = fn.readers.file(files=files, random_shuffle=True, name="files", pad_last_batch=False)
    images = fn.decoders.image_random_crop(
        encoded,
        device="cpu",
        output_type=types.RGB,
        random_area=[0.08, 1.0],
        random_aspect_ratio=[3 / 4, 4 / 3],
    )
    images = fn.resize(images, size=[SIZE, SIZE], interp_type=types.INTERP_LINEAR, antialias=True)
    mirror = fn.random.coin_flip()
    if dtype == "uint8":
        return fn.flip(images, horizontal=mirror)
    return fn.crop_mirror_normalize(
        images,
        mirror=mirror,
        dtype=types.FLOAT,
        output_layout="CHW",
        mean=[255 * value for value in MEAN],
        std=[255 * value for value in STD],
    )


def loader(folder, work, dtype, threads, queue=2, asynchronous=True):
    files = [str(path) for path in prepare(folder, work)]
    pipeline = training(
        files,
        dtype,
        batch_size=BATCH_SIZE,
        num_threads=threads,
        device_id=None,
        prefetch_queue_depth=queue,
        exec_async=asynchronous,
        exec_pipelined=asynchronous,
    )
    pipeline.build()
    batches = -(-len(files) // BATCH_SIZE)
    return lambda: (pipeline.run()[0].as_array() for _ in range(batches))
