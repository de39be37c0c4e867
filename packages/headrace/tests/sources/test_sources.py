"""What every source must do, and each kind of dataset with it."""

from __future__ import annotations

import pickle
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from torch.utils.data import ConcatDataset, DataLoader, Subset
from torchvision import transforms as v1
from torchvision.datasets import DatasetFolder, ImageFolder, ImageNet
from torchvision.datasets.folder import pil_loader

import headrace
from headrace._native.decoders import native_formats
from headrace.plan.recognize import dataset_identity, recognize_dataset
from headrace.sources.kinds import DATASETS, Recognized
from headrace.sources.stores import records
from support.array_datasets import SETS, make_set
from support.equal import same
from support.extras import integration
from support.images import image_folder
from support.memory_store import ROOT, MemoryStore, store_of

COUNT = 12
BAD = 4
TRANSFORM = v1.Compose([v1.Resize((20, 24)), v1.ToTensor()])

Make = Callable[..., Any]


def recognized(dataset: Any) -> Recognized:
    found = recognize_dataset(dataset)
    assert isinstance(found, Recognized), found
    return found


class SourceTests:
    """A subclass has a fixture `make`: a function of a transform that makes the dataset, the same each time.

    Attributes:
        parts: whether a Subset of the dataset is read natively, too.
    """

    parts = True

    def test_batches_are_those_of_torch(self, make: Make) -> None:
        loader = headrace.DataLoader(make(TRANSFORM), 5, num_workers=2)
        assert loader.plan().native is not None, loader.explain()
        assert same(list(loader), list(DataLoader(loader.dataset, 5)))

    def test_images_and_labels_are_the_datasets_own(self, make: Make) -> None:
        dataset = make(None)
        source = recognized(dataset).source
        assert len(source) == len(dataset)
        for i in (0, 3, len(dataset) - 1):
            image, label = dataset[i]
            assert same(source.image(i, image.mode).tobytes(), image.tobytes())
            assert source.label(i) == label
            assert (source.path(i) is None) == source.decoded
        for index in (len(dataset), -len(dataset) - 1):
            with pytest.raises(IndexError):
                source.label(index)

    def test_the_users_functions_are_those_that_the_dataset_calls(self, make: Make) -> None:
        found = recognized(make(len))
        assert (found.transform, found.target_transform) == (len, None)

    def test_a_subset_has_the_samples_of_its_indices(self, make: Make) -> None:
        dataset = make(TRANSFORM)
        part = Subset(Subset(dataset, range(1, 9)), [3, 0, 0, -1])
        loader = headrace.DataLoader(part, 3, num_workers=1)
        assert (loader.plan().native is not None) == self.parts
        assert same(list(loader), list(DataLoader(part, 3)))
        with pytest.raises(IndexError):
            list(headrace.DataLoader(Subset(dataset, [len(dataset)]), num_workers=0))

    def test_pickling_changes_nothing(self, make: Make) -> None:
        dataset = make(TRANSFORM)
        again = pickle.loads(pickle.dumps(dataset))
        assert dataset_identity(again) == dataset_identity(dataset)
        batches = [list(headrace.DataLoader(each, 5, num_workers=1)) for each in (again, dataset)]
        assert same(*batches)

    def test_the_identity_tells_samples_apart(self, make: Make) -> None:
        dataset, digest = make(None), recognized(make(None)).source.digest()
        assert dataset_identity(dataset) == dataset_identity(make(None))
        assert digest == recognized(make(None)).source.digest()
        n = len(dataset)
        if digest is not None and self.parts:
            parts = [dataset_identity(Subset(dataset, rows)) for rows in (range(1, n), range(n - 1))]
            assert parts[0] != parts[1]

    def test_an_epoch_is_resumed_by_another_process_of_the_same_dataset(self, make: Make) -> None:
        def loader() -> headrace.DataLoader[Any]:
            return headrace.DataLoader(make(TRANSFORM), 4, shuffle=True, seed=5, num_workers=1)

        whole, first, second = list(loader()), loader(), loader()
        batches = iter(first)
        begin = [next(batches), next(batches)]
        second.load_state_dict(pickle.loads(pickle.dumps(first.state_dict())))
        assert same([*begin, *second], whole)


class FileTests(SourceTests):
    """For sources of files, JPEGs all of them."""

    def damage(self, dataset: Any, i: int) -> None:
        """Makes the file of a sample one that nobody can read."""
        Path(str(recognized(dataset).source.path(i))).write_bytes(b"not an image")

    def test_formats_are_counted_by_extension(self, make: Make) -> None:
        dataset = make(None)
        assert recognized(dataset).source.formats(native_formats()) == {"JPEG": len(dataset)}

    def test_a_damaged_file_is_named_or_left_out(self, make: Make) -> None:
        dataset = make(TRANSFORM)
        path = recognized(dataset).source.path(BAD)
        self.damage(dataset, BAD)
        with pytest.raises(headrace.SampleError) as caught:
            list(headrace.DataLoader(dataset, 5, num_workers=1))
        assert (caught.value.index, caught.value.path) == (BAD, path)
        loader = headrace.DataLoader(dataset, 5, num_workers=1, on_error="skip")
        labels = [label for _, batch in loader for label in batch.tolist()]
        assert labels == [recognized(dataset).source.label(i) for i in range(len(dataset)) if i != BAD]
        assert [(each.index, each.path) for each in loader.stats().failures] == [(BAD, path)]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return image_folder(tmp_path / "data", COUNT)


class TestImageFolder(FileTests):
    @pytest.fixture
    def make(self, folder: Path) -> Make:
        return lambda transform: ImageFolder(folder, transform)

    def test_the_folder_may_move(self, make: Make, folder: Path) -> None:
        identity = dataset_identity(make(None))
        folder.rename(folder.with_name("moved"))
        assert dataset_identity(ImageFolder(folder.with_name("moved"))) == identity

    def test_a_missing_file_is_named(self, make: Make) -> None:
        dataset = make(TRANSFORM)
        path = Path(dataset.samples[BAD][0])
        path.unlink()
        with pytest.raises(headrace.SampleError, match=path.name):
            list(headrace.DataLoader(dataset, 5, num_workers=1))


class TestDatasetFolder(FileTests):
    @pytest.fixture
    def make(self, folder: Path) -> Make:
        return lambda transform: DatasetFolder(str(folder), pil_loader, (".jpg",), transform)


class TestImageNet(FileTests):
    """Its archives aren't needed: what it reads is what an ImageFolder reads."""

    @pytest.fixture
    def make(self, folder: Path) -> Make:
        def make(transform: Any) -> ImageNet:
            dataset = ImageNet.__new__(ImageNet)
            dataset.__dict__.update(ImageFolder(folder, transform).__dict__)
            return dataset

        return make


class TestImageDataset(FileTests):
    @pytest.fixture
    def make(self, folder: Path) -> Make:
        files = sorted(folder.rglob("*.jpg"))
        return lambda transform: headrace.ImageDataset(files, [7 * i for i in range(COUNT)], transform)


class TestPackedDataset(FileTests):
    @pytest.fixture
    def make(self, folder: Path) -> Make:
        headrace.pack(folder, folder.with_name("pack"))
        return lambda transform: headrace.PackedDataset(folder.with_name("pack"), transform)

    def damage(self, dataset: Any, i: int) -> None:
        extents = dataset.source.extents
        with open(dataset.source.shard(i), "r+b") as file:
            file.seek(int(extents.begins[i]))
            file.write(b"\0" * int(extents.sizes[i]))


class StoreTests(FileTests):
    """For sources in an object store."""

    @pytest.fixture
    def store(self, folder: Path, monkeypatch: pytest.MonkeyPatch) -> MemoryStore:
        headrace.pack(folder, folder / "pack")
        store = store_of(folder)
        monkeypatch.setattr(records, "Reader", lambda root, options: store)
        self.objects = store.objects
        return store

    def damage(self, dataset: Any, i: int) -> None:
        self.objects[str(dataset.source.path(i)).removeprefix(f"{ROOT}/")] = b"not an image"

    def test_samples_are_fetched_from_the_store(self, make: Make) -> None:
        loader = headrace.DataLoader(make(TRANSFORM), 5, num_workers=1)
        assert len(list(loader)) == 3
        stats = loader.stats().remote
        assert stats is not None
        assert stats.requests > 0
        assert f"{ROOT}/" in loader.explain()


class TestImageDatasetOfUrls(StoreTests):
    @pytest.fixture
    def make(self, store: MemoryStore, tmp_path: Path) -> Make:
        urls = [f"{ROOT}/{name}" for name in sorted(store.objects) if name.endswith(".jpg")]
        return lambda transform: headrace.ImageDataset(urls, None, transform, cache_dir=tmp_path / "cache")

    def test_a_concatenation_is_not_read_as_files(self, make: Make) -> None:
        dataset: ConcatDataset[Any] = ConcatDataset([make(TRANSFORM), make(TRANSFORM)])
        loader = headrace.DataLoader(dataset, 5, num_workers=0)
        assert same(list(loader), list(DataLoader(dataset, 5)))


class TestPackedDatasetOfUrl(StoreTests):
    @pytest.fixture
    def make(self, store: MemoryStore, tmp_path: Path) -> Make:
        assert store.objects
        cache = tmp_path / "cache"
        return lambda transform: headrace.PackedDataset(f"{ROOT}/pack", transform, cache_dir=cache)

    def damage(self, dataset: Any, i: int) -> None:
        name, extents = dataset.source.shard(i).removeprefix(f"{ROOT}/"), dataset.source.extents
        begin, size = int(extents.begins[i]), int(extents.sizes[i])
        shard = self.objects[name]
        self.objects[name] = shard[:begin] + b"\0" * size + shard[begin + size :]


@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
class TestTimm(FileTests):
    """What can't be read is replaced as timm does."""

    parts = False

    @pytest.fixture
    def make(self, folder: Path) -> Make:
        timm_data = integration("timm.data")
        return lambda transform: timm_data.create_dataset("", str(folder), transform=transform)

    def test_a_damaged_file_is_named_or_left_out(self, make: Make) -> None:
        dataset = make(TRANSFORM)
        self.damage(dataset, BAD)
        loader = headrace.DataLoader(dataset, 5, num_workers=1)
        assert same(list(loader), list(DataLoader(dataset, 5)))


class TestArrays(SourceTests):
    @pytest.fixture(params=SETS)
    def make(self, request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Make:
        dataset = make_set(request.param, tmp_path, None, monkeypatch)

        def make(transform: Any) -> Any:
            dataset.transform = transform
            return dataset

        return make


class TestSubset(FileTests):
    @pytest.fixture
    def make(self, folder: Path) -> Make:
        return lambda transform: Subset(ImageFolder(folder, transform), [11, *range(10)])

    def test_the_users_functions_are_those_that_the_dataset_calls(self, make: Make) -> None:
        assert recognized(make(len)).transform is len


class TestConcatDataset(FileTests):
    @pytest.fixture
    def make(self, folder: Path) -> Make:
        def make(transform: Any) -> ConcatDataset[Any]:
            first, second = ImageFolder(folder, transform), ImageFolder(folder, transform)
            return ConcatDataset([Subset(first, [4, 0, 2]), ConcatDataset([Subset(second, range(5, 12))])])

        return make


def test_every_class_of_a_source_is_tested() -> None:
    named = {cls.__name__ for kind in DATASETS for cls in kind.classes}
    tested = {name.removeprefix("Test") for name in globals()} | set(SETS)
    assert named - tested == {"TensorDataset"}, "its rows aren't images: tests/loader/test_in_memory.py"
