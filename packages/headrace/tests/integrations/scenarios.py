"""Training code of other libraries around a DataLoader: what its loop saw, as JSON.

    python scenarios.py NAME torch|headrace FOLDER

With "headrace", `headrace.install()` is called before any library is imported, so that libraries which
create loaders themselves create Headrace's. Ultralytics derives a class from torch's, which would be left
alone: there `headrace.DataLoader` takes the name of torch's class.
"""

from __future__ import annotations

import json
import logging
import os
import random
import shutil
import sys
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.utils.data as data

if __name__ == "__main__" and "stateful" in sys.argv[1]:
    import torchdata.stateful_dataloader  # noqa: F401  its loader is a subclass of torch's, in both runs

if __name__ == "__main__" and sys.argv[2] == "headrace":
    import headrace

    if sys.argv[1].startswith("ultralytics"):
        data.DataLoader = data.dataloader.DataLoader = headrace.DataLoader  # type: ignore[misc]
    else:
        headrace.install()

N = 24
SCENARIOS: dict[str, Callable[[Path], Any]] = {}


def scenario(make: Callable[[Path], Any]) -> Callable[[Path], Any]:
    """Lists `make` by its name."""
    SCENARIOS[make.__name__] = make
    return make


class Numbered(data.Dataset):  # type: ignore[type-arg]
    """Samples of a number, its feature with noise from all three generators, and a label."""

    def __init__(self, count: int = N) -> None:
        self.count = count

    def __len__(self) -> int:
        return self.count

    def __getitem__(self, index: int) -> dict[str, Any]:
        noise = torch.rand(()).item() + np.random.rand() + random.random()
        return {"x": torch.tensor([index / self.count, noise]), "y": torch.tensor(index % 2), "index": index}


class Streamed(data.IterableDataset):  # type: ignore[type-arg]
    """Numbers that workers share, and that keep no state."""

    def __iter__(self) -> Iterator[dict[str, Any]]:
        worker = data.get_worker_info()
        first, step = (0, 1) if worker is None else (worker.id, worker.num_workers)
        for index in range(first, N, step):
            yield {"x": torch.tensor([index / N]), "index": index}


@contextmanager
def joined_ranks() -> Iterator[int]:
    """Joins the other processes of a scenario; gives the rank of this one."""
    rank, ranks = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    meeting = f"file://{os.environ['MEETING']}"
    torch.distributed.init_process_group("gloo", init_method=meeting, rank=rank, world_size=ranks)
    yield rank
    torch.distributed.destroy_process_group()


def numbered(samples: list[tuple[str, int]]) -> list[tuple[str, int]]:
    """Files with their number as the label, which says what is in a batch."""
    return [(path, number) for number, (path, _) in enumerate(samples)]


def folder_dataset(folder: Path, size: int = 32) -> Any:
    from torchvision import datasets, transforms

    steps = [transforms.Resize(size + 8), transforms.CenterCrop(size), transforms.ToTensor()]
    return datasets.ImageFolder(folder, transforms.Compose(steps))


def summary(images: torch.Tensor, labels: torch.Tensor) -> list[Any]:
    return [list(images.shape), str(images.dtype), images.double().mean().item(), labels.tolist()]


def described(batch: Any) -> list[Any]:
    return [each.tolist() for each in batch.values()] if isinstance(batch, dict) else summary(*batch)


# --- timm


def _timm(folder: Path, *, python: bool = False, **arguments: Any) -> Any:
    """timm's loader; with `python` of a reader that nobody knows, so that Python draws as with torch."""
    from timm.data import create_dataset, create_loader

    torch.manual_seed(0)
    dataset = create_dataset("", root=str(folder))
    dataset.reader.samples = numbered(dataset.reader.samples)
    if python:
        dataset.reader.__class__ = type("Reader", (type(dataset.reader),), {})
    settings = {"input_size": (3, 32, 32), "batch_size": 8, "num_workers": 2, "device": torch.device("cpu")}
    return create_loader(dataset, **{**settings, "use_prefetcher": False, **arguments})


def _epochs(loader: Any, epochs: int = 2) -> list[Any]:
    return [[len(loader), [summary(*batch) for batch in loader]] for _ in range(epochs)]


@scenario
def timm_evaluation(folder: Path) -> Any:
    return _epochs(_timm(folder, persistent_workers=False))


@scenario
def timm_evaluation_prefetcher(folder: Path) -> Any:
    return _epochs(_timm(folder, use_prefetcher=True))


@scenario
def timm_multi_epochs(folder: Path) -> Any:
    """Its sampler makes the order, and Python draws the augmentations: pixels are the same."""
    options = {"is_training": True, "auto_augment": "rand-m9-mstd0.5-inc1", "re_prob": 0.25}
    return [
        _epochs(_timm(folder, python=True, use_multi_epochs_loader=True, **each)) for each in ({}, options)
    ]


def _labels(loader: Any) -> Any:
    """Training: which samples and which shapes. The order is another, and so are the random parameters."""
    epochs = []
    for _ in range(2):
        batches = [(list(images.shape), str(images.dtype), labels) for images, labels in loader]
        labels = [label for *_, each in batches for label in (each.tolist() if each.ndim == 1 else [])]
        epochs.append([[batch[:2] for batch in batches], sorted(labels)])
    return epochs


@scenario
def timm_training(folder: Path) -> Any:
    return _labels(_timm(folder, is_training=True))


@scenario
def timm_rand_augment(folder: Path) -> Any:
    return _labels(_timm(folder, is_training=True, auto_augment="rand-m9-mstd0.5-inc1", re_prob=0.25))


@scenario
def timm_aug_splits(folder: Path) -> Any:
    from timm.data import AugMixDataset, create_dataset, create_loader

    dataset: Any = AugMixDataset(create_dataset("", root=str(folder)), num_splits=2)
    loader = create_loader(
        dataset,
        (3, 32, 32),
        8,
        is_training=True,
        num_aug_splits=2,
        num_workers=2,
        device=torch.device("cpu"),
        auto_augment="augmix-m5-w4-d2",
        use_prefetcher=True,
    )
    return _labels(loader)


@scenario
def timm_mixup_collate(folder: Path) -> Any:
    from timm.data import FastCollateMixup

    torch.manual_seed(0)
    mixup = FastCollateMixup(mixup_alpha=0.8, num_classes=N)
    loader = _timm(folder, is_training=True, use_prefetcher=True, collate_fn=mixup)
    return [[list(images.shape), str(images.dtype), list(labels.shape)] for images, labels in loader]


def _mixed(loader: Any, mix: Callable[..., Any], epochs: int = 2) -> list[Any]:
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Flatten(), torch.nn.LazyLinear(N))
    optimizer: Any = None
    seen: list[Any] = []
    for epoch in range(epochs):
        if hasattr(loader.sampler, "set_epoch"):
            loader.sampler.set_epoch(epoch)
        for given, numbers in loader:
            images, labels = mix(given, numbers)
            loss = torch.nn.functional.cross_entropy(model(images), labels)
            optimizer = optimizer or torch.optim.SGD(model.parameters(), 0.1)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            seen.append([loss.item(), *summary(images, numbers)])
    return seen


@scenario
def timm_two_processes(folder: Path) -> Any:
    """The loop of train.py on two ranks: samplers that share the epoch, repeated augmentation, mixup."""
    from timm.data import Mixup

    train = {"is_training": True, "distributed": True, "batch_size": 4}
    options_of_runs: list[dict[str, Any]] = [
        {"no_aug": True},
        {"num_aug_repeats": 3},
        {"auto_augment": "rand-m9-mstd0.5-inc1", "re_prob": 0.25},
        {"use_prefetcher": True, "persistent_workers": False},
    ]
    found = []
    with joined_ranks():
        for options in options_of_runs:
            mixup = Mixup(mixup_alpha=0.8, cutmix_alpha=1.0, num_classes=N)
            found.append(_mixed(_timm(folder, python=True, **train, **options), mixup))
        found.append(_epochs(_timm(folder, distributed=True)))
    return found


# --- Lightning


def _lightning_module() -> Any:
    import lightning

    class Module(lightning.LightningModule):
        def __init__(self) -> None:
            super().__init__()
            torch.manual_seed(0)
            self.layer = torch.nn.Linear(2, 2)
            self.seen: list[Any] = []

        def training_step(self, batch: Any, _: int) -> Any:
            self.seen.append(batch["index"].tolist())
            return torch.nn.functional.cross_entropy(self.layer(batch["x"][:, :2]), batch["y"])

        def validation_step(self, batch: Any, _: int) -> None:
            self.seen.append(["validation", *batch["index"].tolist()])

        def configure_optimizers(self) -> Any:
            return torch.optim.SGD(self.parameters(), lr=0.1)

    return Module()


def _trainer(**arguments: Any) -> Any:
    import lightning

    quiet = {"logger": False, "enable_checkpointing": False, "enable_progress_bar": False}
    return lightning.Trainer(
        accelerator="cpu", enable_model_summary=False, max_epochs=2, **{**quiet, **arguments}
    )


def _weights(module: Any) -> list[float]:
    return [round(value, 6) for value in module.layer.weight.flatten().tolist()]


@scenario
def lightning_fit(folder: Path) -> Any:
    module = _lightning_module()
    torch.manual_seed(1)
    train = data.DataLoader(Numbered(), 4, num_workers=2)
    validation = data.DataLoader(Numbered(8), 4, num_workers=0)
    _trainer().fit(module, train, validation)
    return [module.seen, _weights(module)]


@scenario
def lightning_combined_loader(folder: Path) -> Any:
    from lightning.pytorch.utilities import CombinedLoader

    loaders = {"a": data.DataLoader(Numbered(), 4), "b": data.DataLoader(Numbered(12), 4, num_workers=1)}
    seen = []
    for mode in ("min_size", "max_size_cycle", "sequential"):
        for batch, *_ in CombinedLoader(loaders, mode):
            parts = batch.values() if mode != "sequential" else [batch]
            seen.append([part["index"].tolist() for part in parts])
    return seen


@scenario
def lightning_batch_size_finder(folder: Path) -> Any:
    import lightning
    from lightning.pytorch.callbacks import BatchSizeFinder

    class Sized(type(_lightning_module())):  # type: ignore[misc]
        batch_size = 2

        def train_dataloader(self) -> Any:
            return data.DataLoader(Numbered(), self.batch_size)

        def val_dataloader(self) -> Any:
            return data.DataLoader(Numbered(8), self.batch_size)

    module = Sized()
    finder = BatchSizeFinder("power", steps_per_trial=2, max_trials=3)
    with lightning.pytorch.utilities.seed.isolate_rng():
        _trainer(callbacks=[finder], enable_checkpointing=True).fit(module)
    return [module.batch_size, module.seen]


@scenario
def lightning_resume(folder: Path) -> Any:
    torch.manual_seed(1)
    first = _lightning_module()
    trainer = _trainer(max_steps=9)
    trainer.fit(first, data.DataLoader(Numbered(), 4, num_workers=2))
    trainer.save_checkpoint("cut.ckpt")
    second = _lightning_module()
    _trainer().fit(second, data.DataLoader(Numbered(), 4, num_workers=2), ckpt_path="cut.ckpt")
    return [first.seen, second.seen[-6:]]


class TrainingStream(data.IterableDataset):  # type: ignore[type-arg]
    """The samples of `Numbered` in order, without a state and without a length."""

    def __iter__(self) -> Iterator[dict[str, Any]]:
        return map(Numbered().__getitem__, range(N))


class SizedStream(TrainingStream):
    def __len__(self) -> int:
        return N


@scenario
def lightning_stateful_streams(folder: Path) -> Any:
    """A run that is resumed from a checkpoint in the middle of its second epoch, with torchdata's loader or
    Headrace's. Without a length Lightning reads a batch ahead, which its checkpoint counts as used."""
    from lightning.pytorch.callbacks import ModelCheckpoint
    from torchdata.stateful_dataloader import StatefulDataLoader

    kind: Any = data.DataLoader if hasattr(data.DataLoader, "state_dict") else StatefulDataLoader
    warnings.filterwarnings("ignore", ".* had no state_dict")  # by Headrace; torchdata logs it
    found = []
    for stream in (SizedStream, TrainingStream):
        name = stream.__name__
        first, second = _lightning_module(), _lightning_module()
        callback = ModelCheckpoint(name, filename="saved", every_n_train_steps=9)
        loaders = [kind(stream(), batch_size=4, num_workers=0) for _ in range(2)]
        _trainer(callbacks=[callback], enable_checkpointing=True).fit(first, loaders[0])
        _trainer().fit(second, loaders[1], ckpt_path=f"{name}/saved.ckpt")
        found.append([first.seen, second.seen])
    assert found[0][1] == found[0][0][9:]
    assert found[1][1] == found[1][0][10:]
    return found


def _ddp(folder: Path, options: dict[str, Any]) -> Any:
    module = _lightning_module()

    class Writing(type(module)):  # type: ignore[misc]
        def on_fit_end(self) -> None:
            Path(f"rank-{self.global_rank}.json").write_text(json.dumps([self.seen, _weights(self)]))

    loader = data.DataLoader(Numbered(), 4, shuffle=False, num_workers=1, **options)
    _trainer(devices=2, strategy="ddp_fork", num_sanity_val_steps=0, limit_val_batches=0).fit(
        Writing(), loader
    )
    return [json.loads(Path(f"rank-{rank}.json").read_text()) for rank in range(2)]


@scenario
def lightning_ddp(folder: Path) -> Any:
    return _ddp(folder, {})


@scenario
def lightning_ddp_with_rank_auto(folder: Path) -> Any:
    """Lightning brings a sampler that shares the epoch; Headrace must not share it once more."""
    return _ddp(folder, {"rank": "auto"} if data.DataLoader.__module__.startswith("headrace") else {})


# --- Accelerate


ACCELERATE = [{}, {"split_batches": True}, {"even_batches": False}, {"dispatch_batches": True}]


def _accelerate(**options: Any) -> Any:
    from accelerate import Accelerator
    from accelerate.utils import DataLoaderConfiguration

    return Accelerator(cpu=True, dataloader_config=DataLoaderConfiguration(**options))


def _indices(loader: Any, epochs: int = 2) -> list[Any]:
    return [[batch["index"].tolist() for batch in loader] for _ in range(epochs)]


@scenario
def accelerate_prepare(folder: Path) -> Any:
    found = []
    for options in ACCELERATE:
        for workers in (0, 2):
            generator = torch.Generator().manual_seed(3)
            sampler = data.RandomSampler(Numbered(), generator=generator)
            loader = data.DataLoader(Numbered(), 5, sampler=sampler, num_workers=workers)
            prepared = _accelerate(**options).prepare(loader)
            found.append([len(prepared), prepared.batch_size, _indices(prepared)])
    return found


@scenario
def accelerate_prepared_two_processes(folder: Path) -> Any:
    from accelerate import Accelerator, DataLoaderConfiguration

    seen = []
    with joined_ranks():
        for settings in ({}, {"split_batches": True}, {"even_batches": False}, {"dispatch_batches": True}):
            accelerator = Accelerator(cpu=True, dataloader_config=DataLoaderConfiguration(**settings))
            torch.manual_seed(0)
            dataset = folder_dataset(folder)
            dataset.samples = numbered(dataset.samples)[:21]
            loader = accelerator.prepare(data.DataLoader(dataset, 4, shuffle=True, num_workers=2))
            if sys.argv[2] == "headrace":
                assert loader.base_dataloader.explain().startswith("plan: native")
            seen.append([[summary(*batch) for batch in loader] for _ in range(2)])
    return seen


@scenario
def accelerate_skip_first_batches(folder: Path) -> Any:
    accelerator = _accelerate()
    prepared = accelerator.prepare(data.DataLoader(Numbered(), 5, num_workers=2))
    return [_indices(accelerator.skip_first_batches(prepared, 2), 1), _indices(prepared, 1)]


@scenario
def accelerate_stateful(folder: Path) -> Any:
    """A run that `save_state` saves in the middle of an epoch, and another one that continues it."""
    found = []
    for workers in (0, 2):
        for resumed in (False, True):
            accelerator = _accelerate(use_stateful_dataloader=True)
            loader = accelerator.prepare(data.DataLoader(Numbered(), 5, num_workers=workers))
            if resumed:
                accelerator.load_state(f"state-{workers}")
            for number, batch in enumerate(loader):
                found.append(batch["index"].tolist())
                if not resumed and number == 1:
                    accelerator.save_state(f"state-{workers}")
                    break
    return found


def _streams() -> Any:
    found = []
    for options in ACCELERATE:
        for workers in (0, 2):
            prepared = _accelerate(**options).prepare(data.DataLoader(Streamed(), 6, num_workers=workers))
            found.append([_indices(prepared), prepared.batch_size])
    return found


@scenario
def accelerate_streams(folder: Path) -> Any:
    """Streams without a state. Accelerate asks Headrace's loader for its state after every batch."""
    return _streams()


@scenario
def accelerate_resumed_stream(folder: Path) -> Any:
    """A stream without a state that continues after two batches, by the loader's state where it has one."""
    found = []
    for workers in (0, 2):
        first, second = (
            _accelerate().prepare(data.DataLoader(Streamed(), 6, num_workers=workers)) for _ in range(2)
        )
        batches = iter(first)
        found.append([next(batches)["index"].tolist() for _ in range(2)])
        if hasattr(first.base_dataloader, "load_state_dict"):
            second.load_state_dict(first.state_dict())
        else:
            second = _accelerate().skip_first_batches(second, 2)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # Headrace's, that samples are made again
            found.append(_indices(second, 1))
    return found


@scenario
def accelerate_streams_two_processes(folder: Path) -> Any:
    with joined_ranks():
        return _streams()


@scenario
def accelerate_two_processes(folder: Path) -> Any:
    """This process is one of two; each writes what it saw."""
    found = []
    with joined_ranks():
        for options in ACCELERATE:
            accelerator = _accelerate(**options)
            for shuffled in (False, True):
                sampler = data.RandomSampler(Numbered(), generator=torch.Generator().manual_seed(3))
                order = {"sampler": sampler} if shuffled else {}
                loader = data.DataLoader(Numbered(), 6, num_workers=1, **order)  # type: ignore[arg-type]
                prepared = accelerator.prepare(loader)
                found.append([len(prepared), _indices(prepared)])
        found.append([accelerator.gather(batch["index"]).tolist() for batch in prepared])
    return found


@scenario
def accelerate_skip_first_batches_two_processes(folder: Path) -> Any:
    """An epoch that continues after two batches, and the epoch after it."""
    found = []
    with joined_ranks():
        for options in ACCELERATE:
            accelerator = _accelerate(**options)
            for dataset in (Numbered(), Streamed()):
                prepared = accelerator.prepare(data.DataLoader(dataset, 4, num_workers=1))
                skipping = accelerator.skip_first_batches(prepared, 2)
                found.append([_indices(skipping, 1), _indices(prepared, 1)])
    return found


@scenario
def accelerate_stateful_two_processes(folder: Path) -> Any:
    """As `accelerate_stateful`, on two ranks. Neither loader can resume with `dispatch_batches=True`: torch's
    begins the epoch again, as each rank saves its state in the same file, and Headrace's refuses."""
    found: list[Any] = []
    with joined_ranks():
        for number, options in enumerate(ACCELERATE):
            if options.get("dispatch_batches"):
                continue
            for resumed in (False, True):
                accelerator = _accelerate(use_stateful_dataloader=True, **options)
                sampler = data.RandomSampler(Numbered(), generator=torch.Generator().manual_seed(3))
                loader = accelerator.prepare(data.DataLoader(Numbered(), 4, sampler=sampler, num_workers=1))
                if resumed:
                    accelerator.load_state(f"state-{number}")
                found.append([])
                for taken, batch in enumerate(loader):
                    found[-1].append(batch["index"].tolist())
                    if not resumed and taken == 1:
                        accelerator.save_state(f"state-{number}")
                        break
                if resumed:
                    found.append(_indices(loader, 1))
    return found


# --- Hugging Face's Trainer and datasets


class Labelled(data.Dataset):  # type: ignore[type-arg]
    """Rows as `Trainer` gives them to a model."""

    def __len__(self) -> int:
        return N

    def __getitem__(self, index: int) -> dict[str, Any]:
        return {"x": torch.tensor([index / N, 1.0]), "labels": index % 2, "number": index}


class LabelledStream(data.IterableDataset):  # type: ignore[type-arg]
    """The same as a stream, which `Trainer` shares among ranks and not among workers."""

    def __iter__(self) -> Iterator[dict[str, Any]]:
        return map(Labelled().__getitem__, range(N))


def _trained(rows: Any, **options: Any) -> Any:
    """What a run with an evaluation saw, and one that starts from its second checkpoint."""
    from transformers import Trainer, TrainingArguments

    class Model(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            torch.manual_seed(0)
            self.layer = torch.nn.Linear(2, 2)
            self.seen: list[Any] = []

        def forward(self, x: torch.Tensor, labels: torch.Tensor, number: torch.Tensor) -> Any:
            self.seen.append(number.tolist())
            logits = self.layer(x)
            return {"loss": torch.nn.functional.cross_entropy(logits, labels), "logits": logits}

    arguments = TrainingArguments(
        "trained",
        per_device_train_batch_size=4,
        report_to=[],
        use_cpu=True,
        save_strategy="steps",
        logging_strategy="no",
        disable_tqdm=True,
        ddp_find_unused_parameters=False,
        seed=5,
        **options,
    )
    found = []
    for checkpoint in (None, f"trained/checkpoint-{2 * arguments.save_steps:.0f}"):
        model = Model()
        trainer = Trainer(model=model, args=arguments, train_dataset=rows, eval_dataset=rows)
        trainer.train(resume_from_checkpoint=checkpoint)
        found.append([sorted(trainer.evaluate()), model.seen, model.layer.weight.tolist()])
    return found


@scenario
def hugging_face_trainer(folder: Path) -> Any:
    return _trained(Labelled(), num_train_epochs=2, save_steps=4, dataloader_num_workers=2)


@scenario
def hugging_face_trainer_of_a_stream(folder: Path) -> Any:
    return _trained(LabelledStream(), max_steps=10, save_steps=4, dataloader_num_workers=1)


@scenario
def hugging_face_trainer_two_processes(folder: Path) -> Any:
    with joined_ranks():
        return _trained(Labelled(), num_train_epochs=2, save_steps=2, dataloader_num_workers=1)


@scenario
def hugging_face_trainer_of_a_stream_two_processes(folder: Path) -> Any:
    """The first rank reads the stream for both, which is Accelerate's default, or each reads all of it."""
    with joined_ranks():
        return [
            _trained(
                LabelledStream(), max_steps=5, save_steps=2, accelerator_config={"dispatch_batches": dispatch}
            )
            for dispatch in (True, False)
        ]


def _rows() -> Any:
    import datasets

    return datasets.Dataset.from_dict({"x": [[i / N, 1.0] for i in range(N)], "index": list(range(N))})


@scenario
def datasets_rows(folder: Path) -> Any:
    """A table, and images with a transform that reads them when a batch asks for them."""
    import datasets
    from torchvision import transforms

    steps = transforms.Compose([transforms.Resize(40), transforms.CenterCrop(32), transforms.ToTensor()])
    paths = sorted(str(path) for path in folder.rglob("*.jpg"))
    images = datasets.Dataset.from_dict({"image": paths, "label": list(range(N))})
    images = images.cast_column("image", datasets.Image()).with_transform(
        lambda rows: {"x": [steps(each.convert("RGB")) for each in rows["image"]], "index": rows["label"]}
    )
    found: list[Any] = []
    for dataset in (_rows().with_format("torch"), images):
        for workers in (0, 2):
            sampler = data.RandomSampler(dataset, generator=torch.Generator().manual_seed(3))
            loader = data.DataLoader(dataset, 5, sampler=sampler, num_workers=workers)
            found.append([[summary(batch["x"], batch["index"]) for batch in loader] for _ in range(2)])
    return found


@scenario
def datasets_stream(folder: Path) -> Any:
    """Shards that workers share and that another rank has the rest of, in another order in each epoch."""
    from datasets.distributed import split_dataset_by_node

    found = []
    for workers, kept in ((0, False), (2, False), (2, True)):
        shuffled = _rows().to_iterable_dataset(num_shards=4).shuffle(seed=1, buffer_size=6)
        stream = split_dataset_by_node(shuffled, rank=1, world_size=2)
        loader = data.DataLoader(stream, 5, num_workers=workers, persistent_workers=kept)
        for epoch in range(2):
            stream.set_epoch(epoch)
            found.append([batch["index"].tolist() for batch in loader])
    return found


# --- WebDataset's loader


@scenario
def webdataset_loader(folder: Path) -> Any:
    import webdataset

    for shard in range(2):
        with webdataset.TarWriter(f"shard-{shard}.tar") as file:
            for index in range(shard, N, 2):
                file.write({"__key__": f"{index:04}", "txt": f"text {index}", "cls": index % 2})
    found = []
    for workers in (0, 1, 2):
        dataset = webdataset.WebDataset("shard-{0..1}.tar", shardshuffle=False)
        dataset = dataset.decode().to_tuple("txt", "cls")
        loader = webdataset.WebLoader(dataset.batched(5), batch_size=None, num_workers=workers)
        loader = loader.unbatched().shuffle(4, rng=random.Random(1)).batched(6).with_epoch(3)
        found.append([[list(texts), labels.tolist()] for texts, labels in loader])
    return found


# --- Ultralytics


@scenario
def ultralytics_infinite_loader(folder: Path) -> Any:
    from ultralytics.data.build import InfiniteDataLoader

    found: list[Any] = []
    for workers in (0, 2):
        for dataset in (folder_dataset(folder), Numbered()):
            generator = torch.Generator().manual_seed(3)
            loader = InfiniteDataLoader(
                dataset, batch_size=5, num_workers=workers, shuffle=True, generator=generator
            )

            def epochs(count: int, loader: Any = loader) -> list[Any]:
                return [[described(batch) for batch in loader] for _ in range(count)]

            found.append([len(loader), epochs(3)])
            if isinstance(dataset, Numbered):
                dataset.count = N // 2
            else:
                dataset.transform.transforms[1].size = (24, 24)
            loader.reset()
            found.append([len(loader), described(next(iter(loader))), epochs(1)])
            processes = list(getattr(loader.iterator, "_workers", ()))
            loader.close()
            found.append([process.is_alive() for process in processes if process.is_alive()])
            loader.reset()
            found.append(epochs(1))
            processes = list(getattr(loader.iterator, "_workers", ()))
            del loader, epochs
            found.append([process.is_alive() for process in processes if process.is_alive()])
    return found


def _detection(folder: Path) -> Path:
    """The description of a data set for detection, with two boxes in each image."""
    for part in ("train", "val"):
        for kind in ("images", "labels"):
            Path("detection", kind, part).mkdir(parents=True)
        for number, path in enumerate(sorted(folder.rglob("*.jpg"))[:12]):
            Path("detection/images", part, path.name).write_bytes(path.read_bytes())
            boxes = "".join(f"{label} 0.5 0.{3 + label} 0.{40 + number} 0.3\n" for label in range(2))
            Path("detection/labels", part, path.with_suffix(".txt").name).write_text(boxes)
    described = {"path": str(Path("detection").resolve()), "train": "images/train", "val": "images/val"}
    file = Path("detection/data.yaml")
    file.write_text(json.dumps({**described, "names": {0: "a", 1: "b"}}))
    return file


def _train(model: str, folder: Path, workers: int) -> Any:
    """The losses of all batches and the metrics of all epochs."""
    from ultralytics import YOLO

    seen: list[Any] = []

    def prepare(trainer: Any) -> None:
        trainer.args.workers = workers  # on the CPU it is 0

    yolo = YOLO(model)
    yolo.add_callback("on_pretrain_routine_start", prepare)
    yolo.add_callback("on_train_batch_end", lambda trainer: seen.append(trainer.loss.item()))
    yolo.add_callback("on_fit_epoch_end", lambda trainer: seen.append(dict(trainer.metrics)))
    options = {"epochs": 2, "close_mosaic": 1, "imgsz": 32, "batch": 4, "device": "cpu"}
    yolo.train(data=str(folder), project="trained", name=str(workers), plots=False, amp=False, **options)
    return seen


@scenario
def ultralytics_detection(folder: Path) -> Any:
    """Mosaic and all other augmentations, with the numbers that they draw."""
    description = _detection(folder)
    return [_train("yolov8n.yaml", description, workers) for workers in (0, 2)]


@scenario
def ultralytics_classification(folder: Path) -> Any:
    for part in ("train", "val"):
        shutil.copytree(folder, Path("classification", part))
    return [_train("yolov8n-cls.yaml", Path("classification").resolve(), workers) for workers in (0, 2)]


if __name__ == "__main__":
    logging.disable(logging.INFO)
    np.random.seed(0)
    random.seed(0)
    torch.manual_seed(0)
    torch.set_num_threads(1)
    sys.stdout.write(json.dumps(SCENARIOS[sys.argv[1]](Path(sys.argv[3]))) + "\n")
