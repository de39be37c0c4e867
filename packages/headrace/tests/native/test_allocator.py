"""What a worker process tells the C library's allocator."""

import platform

import pytest

from support.python import run_python

PAGES_OF_A_BATCH = """
import resource
import torch
from headrace._native.allocator import keep_freed_memory

keep_freed_memory(128 << 20)

def faults():
    before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    batch = [torch.ones(3, 224, 224) for _ in range(64)]
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before

print(min(faults() for _ in range(5)))
"""


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="only glibc has these settings")
def test_the_tensors_of_a_batch_lie_in_the_memory_of_the_batch_before() -> None:
    done = run_python(PAGES_OF_A_BATCH, check=True)
    assert int(done.stdout) < 500  # of 9,408 pages
