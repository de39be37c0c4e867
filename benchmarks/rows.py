"""The rows of the table: which peer, with what element type, on how many threads, in whose environment."""

from dataclasses import dataclass


@dataclass(frozen=True)
class Row:
    """`environment` is a folder under --peers, or None for the environment that Headrace is installed in."""

    label: str
    peer: str
    dtype: str
    threads: int = 2
    environment: str | None = None

    @property
    def name(self) -> str:
        return f"{self.peer}/{self.dtype}/{self.threads}"


HEADRACE = "headrace_folder"
ENTRIES = "headrace_entries"
RESTART = "headrace_restart"
PACK = "headrace_pack"
BARE = "native_bare"

ROWS = (
    Row("torch DataLoader, PIL", "torch_pil", "float32"),
    Row("torch DataLoader, torchvision.io + v2", "torch_io", "float32"),
    Row("torch DataLoader, torchvision.io + v2", "torch_io", "uint8"),
    Row("WebDataset, PIL", "webdataset_tar", "float32", environment="webdataset"),
    Row("SPDL, FFmpeg", "spdl_ffmpeg", "float32", environment="spdl"),
    Row("SPDL, FFmpeg", "spdl_ffmpeg", "uint8", environment="spdl"),
    Row("DALI, CPU", "dali_cpu", "float32", environment="dali"),
    Row("DALI, CPU", "dali_cpu", "uint8", environment="dali"),
    Row("turboloader, train_aug from tar", "turboloader_tar", "float32", environment="turboloader"),
    Row("FFCV, jpg", "ffcv_jpg", "float32", environment="ffcv"),
    Row("FFCV, jpg", "ffcv_jpg", "uint8", environment="ffcv"),
    Row("FFCV, raw", "ffcv_raw", "float32", environment="ffcv"),
    Row("FFCV, raw", "ffcv_raw", "uint8", environment="ffcv"),
    Row("Headrace, folder as it is", HEADRACE, "float32"),
    Row("Headrace, folder as it is", HEADRACE, "uint8"),
    Row("Headrace, folder as it is, 1 thread", HEADRACE, "uint8", threads=1),
    Row("Headrace, entry points", ENTRIES, "float32"),
    Row("Headrace, entry points", ENTRIES, "uint8"),
    Row("Headrace, pack", PACK, "float32"),
    Row("Headrace, pack", PACK, "uint8"),
    Row("Headrace, restart markers", RESTART, "float32"),
    Row("Headrace, restart markers", RESTART, "uint8"),
    Row("Headrace, native batch function only", BARE, "float32"),
    Row("Headrace, native batch function only", BARE, "uint8"),
)
