"""The scripts in `scenarios/`: what each trains on, what it needs, and the lines that fix it."""

import importlib.util
import re
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from pathlib import Path

import torch

import scenario_data
import slow_mount

FOLDER = Path(__file__).resolve().parent / "scenarios"
MEGABYTES_PER_SECOND = 8.0


@dataclass(frozen=True)
class Scenario:
    """A script with one bottleneck.

    Attributes:
        name: of its file in `scenarios/`, without the suffix.
        data: a name that `scenario_data` knows.
        fix: (line as it is, line as it should be): the script with these exchanged is the fixed one.
        fixed_data: what the fixed one trains on, where that is the fix; else the same.
        cuda: it needs a GPU.
        needs: a module that it imports and that may be missing.
        slow_mount: it is given its data through a throttled mount; the fixed one isn't.
    """

    name: str
    data: str
    fix: tuple[tuple[str, str], ...] = ()
    fixed_data: str = ""
    cuda: bool = False
    needs: str = ""
    slow_mount: bool = False

    @property
    def script(self) -> Path:
        return FOLDER / f"{self.name}.py"

    @property
    def expected(self) -> tuple[str, ...]:
        """Kinds of cause of which any is right: of its line "# expected: KIND KIND…"."""
        kinds = self._line("expected")
        if not kinds:
            raise ValueError(f"{self.script} has no line that begins with '# expected: '")
        return tuple(kinds.split())

    @property
    def names(self) -> str:
        """Words that the verdict's sentence must have: of its line "# names: WORDS"; "": any."""
        return self._line("names")

    @property
    def advises(self) -> str:
        """Words that the first advice must have: of its line "# advises: WORDS"; "": any."""
        return self._line("advises")

    def _line(self, key: str) -> str:
        found = re.search(rf"^# {key}: (.+)$", self.script.read_text(encoding="utf-8"), re.MULTILINE)
        return found[1] if found else ""

    def fixed(self) -> str:
        """The fixed script's source.

        Raises ValueError where a line to be exchanged isn't there just once.
        """
        source = self.script.read_text(encoding="utf-8")
        for old, new in self.fix:
            if source.count(old) != 1:
                raise ValueError(f"{self.script} has {old!r} {source.count(old)} times instead of once")
            source = source.replace(old, new)
        return source

    def missing(self) -> str:
        """Why it can't be run here; empty where it can."""
        if self.cuda and not torch.cuda.is_available():
            return "no CUDA device"
        if self.needs and importlib.util.find_spec(self.needs) is None:
            return f"{self.needs} isn't installed"
        return slow_mount.missing() if self.slow_mount else ""

    def mounted(self, data: Path, fixed: bool = False) -> AbstractContextManager[Path]:
        """Mounts the folder for --data, made first if it isn't there, until the block ends."""
        path = scenario_data.ensure(data, (fixed and self.fixed_data) or self.data)
        slow = self.slow_mount and not fixed
        return slow_mount.mounted(path, MEGABYTES_PER_SECOND) if slow else nullcontext(path)


COLLATE_SLOW = """        row = values.tolist()
        row += [[0.0] * values.shape[1]] * (longest - len(row))
        rows.append(row)
    return torch.tensor(rows), """
COLLATE_FIXED = """        rows.append(nn.functional.pad(values, (0, 0, 0, longest - len(values))))
    return torch.stack(rows), """
ITEM_SLOW = """                norms.setdefault(name, []).append(parameter.grad.norm().item())
            optimizer.step()"""
ITEM_FIXED = """                if seen % (100 * args.batch_size) == 0:
                    norms.setdefault(name, []).append(parameter.grad.norm().item())
            optimizer.step()"""
COPY_SLOW = "frames, labels = frames.to(device), labels.to(device)"
COPY_FIXED = "frames, labels = (x.to(device, non_blocking=True) for x in (frames, labels))"
STARTUP_SLOW = '        multiprocessing_context="spawn",\n'

RECORDS_LIST = "[(number, float(number % 97), float(number % 89)) for number in range(RECORDS)]"
RECORDS_ARRAY = "torch.arange(RECORDS)[:, None] % torch.tensor([RECORDS, 97, 89])"
RECORDS_READ = "torch.tensor([row[1:] for row in rows]).flatten(), rows[0][0] % 10"
RECORDS_SLICED = "torch.stack(rows)[:, 1:].float().flatten(), int(rows[0][0]) % 10"
LOCK_SHARED = """        with self.lock:
            time.sleep(0.002)  # stands for the seek on a slow disk
            return self.archive.read(str(index))"""
LOCK_NONE = """        if getattr(self, "worker", None) != multiprocessing.current_process().pid:
            self.worker, self.archive = multiprocessing.current_process().pid, zipfile.ZipFile(self.path)
        time.sleep(0.002)
        return self.archive.read(str(index))"""
TOKENS_AGAIN = """        self.rows = [(text, int(label)) for label, text in rows]
"""
TOKENS_ONCE = """        self.rows = [(tokenize(text), int(label)) for label, text in rows[:1000]]
"""
NESTED_COLUMNS = """    return {
        group: {f"field_{field}": values[row, field].clone() for field in range(FIELDS)}
        for row, group in enumerate(groups)
    }
"""
NESTED_TENSOR = """    return {"all": dict.fromkeys(groups[:1], values.flatten())}
"""
NESTED_STACK = "return self.net(torch.stack(columns, dim=1))"
CACHE_KEPT = """        if key not in self.cache:
            window = self.values[start : start + WINDOW]
            self.cache[key] = ((window - window.mean()) / window.std()).T.tolist()
        return torch.tensor(self.cache[key]), int(self.labels[index])
"""
CACHE_NONE = """        window = self.values[start : start + WINDOW]
        window = ((window - window.mean()) / window.std()).T.copy()
        return torch.from_numpy(window), int(self.labels[index])
"""
DATABASE_OPENED = """            self.connection = sqlite3.connect(self.path)
"""
DATABASE_INDEXED = """            self.connection = sqlite3.connect(":memory:")
            sqlite3.connect(self.path).backup(self.connection)
            self.connection.execute("CREATE INDEX codes ON measurements (code)")
"""
SPECTROGRAMS_ONCE = """(CLIPS,), generator=generator)
        self.clips = [spectrogram(clip) for clip in self.clips]"""
SORTED_AGAIN = """        ordered = sorted(range(len(self.lengths)), key=lambda one: self.lengths[one])
        return ordered["""
SORTED_ONCE = "        return self.ordered["
ZIP_EACH = """        with zipfile.ZipFile(self.path) as archive:
            data = archive.read(f"{index}.raw")"""
ZIP_ONCE = """        self.archive = getattr(self, "archive", None) or zipfile.ZipFile(self.path)
        data = self.archive.read(f"{index}.raw")"""
TAR_EACH = """    with tarfile.open(location) as tar:
        return np"""
TAR_ONCE = """    if not OPENED:
        OPENED["tar"] = tarfile.open(location)
        OPENED["tar"].getmembers()
    if tar := OPENED["tar"]:
        return np"""
PARQUET_EACH = "        table = pyarrow.parquet.ParquetFile(self.file)"
PARQUET_ONCE = """        table = getattr(self, "table", None) or pyarrow.parquet.ParquetFile(self.file)
        self.table = table"""
PICKLED_EACH = """        with open(self.file, "rb") as stream:
            backgrounds = pickle.load(stream)
        return np.maximum(img, backgrounds"""
PICKLED_ONCE = "        return np.maximum(img, self.cached"
PROGRAM = """        done = subprocess.run(["sha256sum"], input=text, capture_output=True, check=True)
        return done.stdout[:64]"""

SCENARIOS = (
    Scenario(
        "too_few_workers",
        "pictures",
        (("shuffle=True)", "shuffle=True, num_workers=2, persistent_workers=True)"),),
    ),
    Scenario("slow_disk", "pictures", slow_mount=True),
    Scenario("huge_pictures", "huge", fixed_data="pictures"),
    Scenario(
        "heavy_transform",
        "pictures",
        (("        transforms.ElasticTransform(alpha=50.0, sigma=4.0),\n", ""),),
    ),
    Scenario("slow_collate", "recordings.npz", ((COLLATE_SLOW, COLLATE_FIXED),)),
    Scenario(
        "pageable_copy",
        "frames.npy",
        (
            ("        drop_last=True,\n", "        drop_last=True,\n        pin_memory=True,\n"),
            (COPY_SLOW, COPY_FIXED),
        ),
        cuda=True,
    ),
    Scenario("item_each_step", "features.pt", ((ITEM_SLOW, ITEM_FIXED),), cuda=True),
    Scenario(
        "gil_threads",
        "reviews.tsv",
        (
            ("loader = BackgroundLoader(", "loader = DataLoader("),
            ("shuffle=True)", "shuffle=True, num_workers=2, persistent_workers=True)"),
        ),
    ),
    Scenario(
        "startup_each_epoch",
        "pictures",
        ((STARTUP_SLOW, STARTUP_SLOW + "        persistent_workers=True,\n"),),
    ),
    Scenario(
        "straggler",
        "recordings.npz",
        (("persistent_workers=True)", "persistent_workers=True, prefetch_factor=16)"),),
    ),
    Scenario(
        "too_many_threads",
        "pictures",
        (('"--threads", type=int, default=32', '"--threads", type=int, default=1'),),
    ),
    Scenario(
        "validation_loader",
        "recordings.npz",
        (
            (
                "DataLoader(val, args.batch_size)",
                "DataLoader(val, args.batch_size, num_workers=2, persistent_workers=True)",
            ),
        ),
    ),
    Scenario("recompiling", "recordings.npz", (("dynamic=False", "dynamic=True"),)),
    Scenario("checkpoint_often", "recordings.npz", (("step % 5 == 4", "step == len(loader) - 1"),)),
    Scenario(
        "collecting_garbage",
        "recordings.npz",
        (
            ('            gc.collect()  # "against memory leaks"\n', ""),
            ("    for epoch in", "    gc.freeze()\n    for epoch in"),
        ),
    ),
    Scenario(
        "list_of_dicts", "recordings.npz", ((RECORDS_LIST, RECORDS_ARRAY), (RECORDS_READ, RECORDS_SLICED))
    ),
    Scenario("threads_in_workers", "recordings.npz", (('NUM_THREADS"] = "16"', 'NUM_THREADS"] = "1"'),)),
    Scenario("locked_archive", "recordings.npz", ((LOCK_SHARED, LOCK_NONE),)),
    Scenario(
        "whole_file_per_sample",
        "traces",
        (("np.load(self.paths[which])", 'np.load(self.paths[which], mmap_mode="r")'),),
    ),
    Scenario(
        "python_tokenizer",
        "reviews.tsv",
        ((TOKENS_AGAIN, TOKENS_ONCE), ("return tokenize(text), label", "return text, label")),
    ),
    Scenario("network_reads", "", (("num_workers=2", "num_workers=16"),)),
    Scenario("png_decoding", "png", fixed_data="pictures"),
    Scenario(
        "nested_collate", "", ((NESTED_COLUMNS, NESTED_TENSOR), (NESTED_STACK, "return self.net(columns[0])"))
    ),
    Scenario("growing_cache", "recordings.npz", ((CACHE_KEPT, CACHE_NONE),)),
    Scenario("json_stream", "events.jsonl", (("dataset = Events(", "dataset = ParsedEvents("),)),
    Scenario("compressed_arrays", "compressed", fixed_data="uncompressed"),
    Scenario(
        "spectrogram",
        "",
        (
            ("(CLIPS,), generator=generator)", SPECTROGRAMS_ONCE),
            ("return spectrogram(self.clips[index])", "return self.clips[index]"),
        ),
    ),
    Scenario("histograms_each_step", "recordings.npz", (("step % 1 == 0", "step % 200 == 0"),)),
    Scenario("database_without_index", "measurements.sqlite", ((DATABASE_OPENED, DATABASE_INDEXED),)),
    Scenario(
        "validation_startup",
        "recordings.npz",
        (("num_workers=2)", "num_workers=2, persistent_workers=True)"),),
    ),
    Scenario("weighted_draws", "", (("draws = 1_000_000", "draws = STEPS * args.batch_size"),)),
    Scenario(
        "curriculum_order",
        "",
        (("difficulty = self.difficulty\n", "difficulty = self.difficulty[: 2 * self.per_epoch]\n"),),
    ),
    Scenario("negatives_lightning", "", (("draws=10 * BATCHES", "draws=BATCHES"),), needs="lightning"),
    Scenario("sorted_batches", "", ((SORTED_AGAIN, SORTED_ONCE),)),
    Scenario(
        "bucket_argsort",
        "",
        (("            order = np.argsort(self.sizes)", "            order = self.order"),),
    ),
    Scenario(
        "grouped_accelerate",
        "",
        (("            buckets = self.make_buckets()", "            buckets = self.buckets"),),
        needs="accelerate",
    ),
    Scenario(
        "object_store", "", (("shuffle=True)", "shuffle=True, num_workers=16, persistent_workers=True)"),)
    ),
    Scenario("tile_server", "", (("num_workers=3)", "num_workers=16, persistent_workers=True)"),)),
    Scenario("zip_per_sample", "", ((ZIP_EACH, ZIP_ONCE),)),
    Scenario("tar_per_sample", "", ((TAR_EACH, TAR_ONCE),)),
    Scenario("parquet_per_sample", "", ((PARQUET_EACH, PARQUET_ONCE),), needs="pyarrow"),
    Scenario(
        "noise_in_transform",
        "pictures",
        (("        frame = np.load(self.path)", "        frame = self.frame"),),
    ),
    Scenario("backgrounds_pickled", "", ((PICKLED_EACH, PICKLED_ONCE),), needs="albumentations"),
    Scenario(
        "vocabulary_per_sample",
        "",
        (("        tokens = json.load(self.vocabulary.open())", "        tokens = self.tokens"),),
    ),
    Scenario("program_per_sample", "", ((PROGRAM, "        return by_library(text)"),)),
    Scenario("healthy", "pictures"),
    Scenario("healthy_tabular", ""),
    Scenario("healthy_transformer", "reviews.tsv"),
    Scenario("healthy_validation", "recordings.npz"),
    Scenario("healthy_stream", ""),
    Scenario("healthy_lengths", ""),
    Scenario("healthy_accumulation", "pictures"),
    Scenario("slow_start", ""),
    Scenario("costly_optimizer", ""),
    Scenario("python_metrics", ""),
)
