"""The pipelines of `pipelines.py`: what public training code does to its images, one row each.

A row makes a dataset from a folder of JPEGs in class folders; the benchmark puts a loader around it. The
transforms and datasets are those that occur most often in public code, with the usual arguments.
"""

from __future__ import annotations

import pickle
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torchvision.io
from PIL import Image, ImageFilter
from torch.utils.data import ConcatDataset, default_collate
from torchvision import datasets, models
from torchvision import transforms as v1
from torchvision.transforms import functional, v2

from joint_rows import (
    Bucketed,
    bucket_batches,
    collated_by,
    detection,
    in_lists,
    padded,
    qwen,
    segmentation,
    vit,
)
from list_dataset import END, END_V2, MEAN, STD, ListDataset, Make, listed

CROP = (v1.RandomResizedCrop(224), v1.RandomHorizontalFlip())
CROP_TENSORS = (v2.ToImage(), v2.RandomResizedCrop(224, antialias=True), v2.RandomHorizontalFlip())
CIFAR_IMAGES = 10_000
WEB_SHARDS = 8

# Peers with augmentations of their own, and the rows that each measures in PEER_rows.py.
BOTH = {
    *("RandomResizedCrop, flip", "crop, ColorJitter(.4, .4, .4)", "crop, ColorJitter with hue"),
    "Resize, RandomRotation, ColorJitter",
}
POLICIES = {"crop, RandAugment", "crop, AutoAugment", "crop, TrivialAugmentWide, RandomErasing"}
PEERS = {"dali": BOTH | POLICIES, "albumentations": BOTH, "augrs": BOTH}


@dataclass(frozen=True)
class Row:
    """One pipeline.

    Attributes:
        name: what the table shows.
        make: the dataset over a folder of images.
        target: the ratio to torch's DataLoader that is aimed at, or None if only not to be slower.
        needs: the package that the row imports besides torchvision.
        collate: the loader's collate_fn.
        batches: makes the loader's batch_sampler for the dataset; by default 64 samples in a random order.
        kept: whether workers are kept from epoch to epoch.
    """

    name: str
    make: Make
    target: float | None = None
    needs: str | None = None
    collate: Callable[[Any], Any] | None = None
    batches: Callable[[Any], Any] | None = None
    kept: bool = True


def folder_with(*transforms: Any) -> Make:
    """An ImageFolder with these transforms, one after another."""
    return lambda folder: datasets.ImageFolder(str(folder), v1.Compose(list(transforms)))


class ClassificationPreset:
    """A class around a Compose, as torchvision's reference training script has it."""

    def __init__(self) -> None:
        self.transforms = v1.Compose([*CROP, v1.TrivialAugmentWide(), *END, v1.RandomErasing(0.1)])

    def __call__(self, image: Any) -> Any:
        return self.transforms(image)


class BlurOfMoco:
    """A blur class over Pillow's filter, as repositories of self-supervised learning have one each."""

    def __init__(self, sigma: tuple[float, float] = (0.1, 2.0)) -> None:
        self.sigma = sigma

    def __call__(self, image: Image.Image) -> Image.Image:
        sigma = float(np.random.uniform(*self.sigma))
        return image.filter(ImageFilter.GaussianBlur(radius=sigma))


class Views:
    """Several random views of one image."""

    def __init__(self, transforms: Sequence[Any]) -> None:
        self.transforms = transforms

    def __call__(self, image: Any) -> list[Any]:
        return [transform(image) for transform in self.transforms]


def converted(folder: Path, format: str, count: int = 600, **options: Any) -> Path:
    """A folder of the first images, converted once to another format."""
    root = folder.parent / f"{folder.name}-{format.lower()}-{count}"
    for path, _ in listed(folder)[:count]:
        target = root / Path(path).parent.name / f"{Path(path).stem}.{format.lower()}"
        if not target.exists():
            target.parent.mkdir(parents=True, exist_ok=True)
            whole = target.with_suffix(".partial")
            Image.open(path).convert("RGB").save(whole, format, **options)
            whole.rename(target)
    return root


def folder_as(format: str, **options: Any) -> Make:
    """An ImageFolder with a crop and a flip over images of another format."""
    return lambda folder: folder_with(*CROP, *END)(converted(folder, format, **options))


def _moco_view() -> Any:
    jitter = v1.RandomApply([v1.ColorJitter(0.4, 0.4, 0.4, 0.1)], p=0.8)
    blur = v1.RandomApply([BlurOfMoco()], p=0.5)
    crop = v1.RandomResizedCrop(224, scale=(0.2, 1.0))
    return v1.Compose([crop, jitter, v1.RandomGrayscale(0.2), blur, v1.RandomHorizontalFlip(), *END])


def _simclr_view() -> Any:
    jitter = v1.RandomApply([v1.ColorJitter(0.8, 0.8, 0.8, 0.2)], p=0.8)
    return v1.Compose([*CROP, jitter, v1.RandomGrayscale(0.2), v1.GaussianBlur(23), v1.ToTensor()])


def _dino_views() -> list[Any]:
    jitter = v1.RandomApply([v1.ColorJitter(0.4, 0.4, 0.2, 0.1)], p=0.8)
    colour = [v1.RandomHorizontalFlip(), jitter, v1.RandomGrayscale(0.2)]
    large = v1.Compose([v1.RandomResizedCrop(224, scale=(0.4, 1.0), interpolation=3), *colour, *END])
    small = v1.Compose([v1.RandomResizedCrop(96, scale=(0.05, 0.4), interpolation=3), *colour, *END])
    return [large] * 2 + [small] * 8


def _short(folder: Path) -> Any:
    """The first 600 images."""
    dataset = ListDataset(folder, v1.Compose([*CROP, *END]))
    dataset.samples = dataset.samples[:600]
    return dataset


class DictDataset(ListDataset):
    """The same with a dict for each sample."""

    def __getitem__(self, index: int) -> Any:
        path, label = self.samples[index]
        image = self.transform(Image.open(path).convert("RGB"))
        return {"image": image, "label": label, "path": path}


class FolderWithPaths(datasets.ImageFolder):
    """An ImageFolder that gives the path as well."""

    def __getitem__(self, index: int) -> Any:
        image, label = super().__getitem__(index)
        return image, label, self.samples[index][0]


def own_noise(image: Image.Image) -> Image.Image:
    """A user transform, which nobody else can know."""
    pixels = np.asarray(image).astype(np.int16)
    pixels += np.random.randint(-8, 9, pixels.shape, dtype=np.int16)
    return Image.fromarray(pixels.clip(0, 255).astype(np.uint8))


def load_tensor(path: str) -> torch.Tensor:
    """A loader of one's own, which reads tensors."""
    return torchvision.io.decode_image(path, mode="RGB")


def _decoded(folder: Path) -> Any:
    transform = v2.Compose(
        [v2.RandomResizedCrop(224, antialias=True), v2.RandomHorizontalFlip(), *END_V2[1:]]
    )

    return datasets.ImageFolder(str(folder), transform, loader=load_tensor)


class DecodedDataset(ListDataset):
    """Files read as tensors by a dataset of one's own."""

    load = staticmethod(load_tensor)

    def __getitem__(self, index: int) -> Any:
        path, label = self.samples[index]
        return self.transform(self.load(path)), label


def by_pillow_to_tensor(image: Image.Image) -> torch.Tensor:
    """An image as code without a Compose converts it."""
    image = image.resize((224, 224), Image.Resampling.BILINEAR)
    return functional.normalize(functional.to_tensor(image), MEAN, STD)


def by_uint8_tensor(image: Image.Image) -> torch.Tensor:
    """The same with the conversion to floats left to the training step."""
    return functional.pil_to_tensor(image.resize((224, 224), Image.Resampling.BILINEAR))


def by_array(image: Image.Image) -> torch.Tensor:
    """The same by hand."""
    pixels = np.array(image.resize((224, 224), Image.Resampling.BILINEAR))
    return torch.from_numpy(pixels).permute(2, 0, 1).float() / 255


def by_array_of_floats(image: Image.Image) -> torch.Tensor:
    """The same with NumPy's arithmetic."""
    pixels = np.asarray(image.resize((224, 224), Image.Resampling.BILINEAR), dtype=np.float32) / 255
    return torch.from_numpy(pixels.transpose(2, 0, 1))


def _decoded_list(folder: Path) -> Any:
    return DecodedDataset(folder, _decoded(folder).transform)


def _by_torchcodec(folder: Path) -> Any:
    from torchcodec.decoders import decode_image

    dataset = _decoded_list(folder)
    dataset.load = decode_image
    return dataset


def _cifar(folder: Path) -> Any:
    """CIFAR-10 in its own file format, of random pixels: a crop and a flip cost the same for all of them."""
    root = folder.parent / f"cifar-{CIFAR_IMAGES}"
    batches = root / "cifar-10-batches-py"
    if not (batches / "batches.meta").exists():
        batches.mkdir(parents=True, exist_ok=True)
        random = np.random.default_rng(0)
        for number in range(1, 6):
            count = CIFAR_IMAGES // 5
            data = random.integers(0, 256, (count, 3072), dtype=np.uint8)
            entry = {"data": data, "labels": random.integers(0, 10, count).tolist()}
            (batches / f"data_batch_{number}").write_bytes(pickle.dumps(entry))
        (batches / "batches.meta").write_bytes(pickle.dumps({"label_names": [str(i) for i in range(10)]}))
    transform = v1.Compose([v1.RandomCrop(32, padding=4), v1.RandomHorizontalFlip(), *END])
    datasets.cifar.check_integrity = lambda *_: True  # the checksums are those of the real images
    return datasets.CIFAR10(str(root), transform=transform)


def open_gray(path: str) -> Image.Image:
    """A loader of one's own, as datasets of X-rays and handwriting have it."""
    return Image.open(path).convert("L")


def _gray(folder: Path) -> Any:
    """The same photographs as files of one channel."""
    root = folder.parent / f"{folder.name}-gray"
    for path, _ in listed(folder):
        copy = root / Path(path).relative_to(folder)
        if not copy.exists():
            copy.parent.mkdir(parents=True, exist_ok=True)
            open_gray(path).save(copy, "JPEG", quality=90)
    transform = v1.Compose([*CROP, v1.ToTensor(), v1.Normalize((0.5,), (0.25,))])
    return datasets.ImageFolder(str(root), transform, loader=open_gray)


def _timm(**settings: Any) -> Make:
    def make(folder: Path) -> Any:
        from timm.data import create_transform

        return datasets.ImageFolder(str(folder), create_transform(224, is_training=True, **settings))

    return make


def _timm_dataset(folder: Path) -> Any:
    from timm.data import create_dataset, create_transform

    transform = create_transform(224, is_training=True, use_prefetcher=True)
    return create_dataset("", root=str(folder), transform=transform)


def _fast_collate(samples: list[Any]) -> Any:
    from timm.data.loader import fast_collate

    return fast_collate(samples)


def _hugging_face(folder: Path) -> Any:
    import datasets as hf

    table = {"image": [], "label": []}
    for path, label in listed(folder):
        table["image"].append({"bytes": Path(path).read_bytes(), "path": path})
        table["label"].append(label)
    features = hf.Features({"image": hf.Image(), "label": hf.Value("int64")})
    transform = v1.Compose([*CROP, *END])

    def apply(rows: dict[str, Any]) -> dict[str, Any]:
        images = [transform(image.convert("RGB")) for image in rows["image"]]
        return {"pixel_values": images, "label": rows["label"]}

    return hf.Dataset.from_dict(table, features=features).with_transform(apply)


class Processing:
    """A class around an image processor, as fine-tuning scripts have it."""

    def __init__(self, processor: Any) -> None:
        self.processor = processor

    def __call__(self, image: Image.Image) -> torch.Tensor:
        return self.processor(image.convert("RGB"), return_tensors="pt")["pixel_values"][0]


def _processor(folder: Path) -> Any:
    from transformers import ViTImageProcessor

    return datasets.ImageFolder(str(folder), Processing(ViTImageProcessor()))


def _web_dataset(folder: Path) -> Any:
    import webdataset

    samples = listed(folder)
    root = folder.parent / f"{folder.name}-shards"
    shards = [root / f"{number}.tar" for number in range(WEB_SHARDS)]
    if not shards[-1].exists():
        root.mkdir(exist_ok=True)
        for number, shard in enumerate(shards):
            with webdataset.TarWriter(str(shard)) as writer:
                for i, (path, label) in list(enumerate(samples))[number::WEB_SHARDS]:
                    writer.write({"__key__": f"{i:08}", "jpg": Path(path).read_bytes(), "cls": label})
    transform = v1.Compose([*CROP, *END])
    dataset = webdataset.WebDataset([str(shard) for shard in shards], shardshuffle=False).decode("pil")
    return dataset.to_tuple("jpg", "cls").map_tuple(transform, int).with_length(len(samples))


def _albumentations(read: Callable[[str], Any], steps: Callable[[Any], list[Any]]) -> Make:
    """A list dataset whose files `read` gives as arrays, changed by `steps` of albumentations."""

    def make(folder: Path) -> Any:
        import albumentations
        from albumentations.pytorch import ToTensorV2

        chain = albumentations.Compose([*steps(albumentations), albumentations.Normalize(), ToTensorV2()])

        class Images(ListDataset):
            def __getitem__(self, index: int) -> Any:
                path, label = self.samples[index]
                return chain(image=read(path))["image"], label

        return Images(folder, None)

    return make


def _crop_and_flip(A: Any) -> list[Any]:  # noqa: N803  (its own name for it)
    return [A.RandomResizedCrop((224, 224)), A.HorizontalFlip()]


def _resize_and_turn(A: Any) -> list[Any]:  # noqa: N803
    flips = [A.HorizontalFlip(), A.VerticalFlip()]
    return [A.Resize(224, 224), *flips, A.Rotate((-30, 30), p=0.5), A.RandomBrightnessContrast(p=0.5)]


def _crop_and_change(A: Any) -> list[Any]:  # noqa: N803
    jitter = A.ColorJitter((0.6, 1.4), (0.6, 1.4), (0.6, 1.4), (-0.1, 0.1), p=0.8)
    return [*_crop_and_flip(A), jitter, A.GaussianBlur(p=0.3), A.CoarseDropout(p=0.5)]


def _read_gray(path: str) -> Any:
    import cv2

    return cv2.cvtColor(cv2.imread(path, cv2.IMREAD_GRAYSCALE), cv2.COLOR_GRAY2RGB)


def _pairs(folder: Path) -> Any:
    """Images with masks, which are cropped and mirrored alike."""
    import albumentations as A  # noqa: N812
    import cv2
    from albumentations.pytorch import ToTensorV2

    masks = folder.parent / f"{folder.name}-masks-by-number"
    samples = listed(folder)
    if not masks.exists():
        masks.mkdir()
        for number, (path, _) in enumerate(samples):
            with Image.open(path) as image:
                image.convert("L").quantize(21).convert("L").save(masks / f"{number}.png")
    chain = A.Compose(
        [A.RandomCrop(224, 224, pad_if_needed=True), A.HorizontalFlip(), A.Normalize(), ToTensorV2()]
    )

    class Pairs(ListDataset):
        def __getitem__(self, index: int) -> Any:
            mask = cv2.imread(str(masks / f"{index}.png"), cv2.IMREAD_GRAYSCALE)
            both = chain(image=_by_cv2(self.samples[index][0]), mask=mask)
            return both["image"], both["mask"]

    return Pairs(folder, None)


def _read(folder: Path) -> Any:
    """The pixels that OpenCV decodes, of which something is computed."""
    import cv2

    class Read(ListDataset):
        def __getitem__(self, index: int) -> Any:
            path, label = self.samples[index]
            return int(cv2.imread(path)[-1, -1, 0]), label

    return Read(folder, None)


def _ultralytics(folder: Path) -> Any:
    """Its training set with mosaic, as `yolo detect train` makes it, with a box in each image."""
    from ultralytics.cfg import get_cfg
    from ultralytics.data.dataset import YOLODataset

    images = folder.parent / f"{folder.name}-yolo" / "images"
    if not images.exists():
        images.mkdir(parents=True)
        (images.parent / "labels").mkdir()
        for number, (path, _) in enumerate(listed(folder)):
            (images / f"{number}.jpg").write_bytes(Path(path).read_bytes())
            (images.parent / "labels" / f"{number}.txt").write_text("0 0.5 0.5 0.4 0.4\n")
    hyp = get_cfg(overrides={"task": "detect"})
    names = {"names": {0: "thing"}, "nc": 1, "channels": 3}
    return YOLODataset(str(images), data=names, task="detect", imgsz=640, augment=True, hyp=hyp, cache=False)


def _as_ultralytics(batch: Any) -> Any:
    from ultralytics.data.dataset import YOLODataset

    return YOLODataset.collate_fn(batch)


def _by_cv2(path: str) -> Any:
    import cv2

    return cv2.cvtColor(cv2.imread(path), cv2.COLOR_BGR2RGB)


def _by_pillow(path: str) -> Any:
    return np.array(Image.open(path).convert("RGB"))


def _stack(crops: Sequence[Any]) -> torch.Tensor:
    return torch.stack([v1.functional.to_tensor(crop) for crop in crops])


_cutmix_or_mixup = v2.RandomChoice([v2.CutMix(num_classes=1000), v2.MixUp(num_classes=1000)])


def _mixed(batch: Any) -> Any:
    """Mixes a batch as torchvision's reference training script does."""
    return _cutmix_or_mixup(*default_collate(batch))


ROWS: tuple[Row, ...] = (
    Row("RandomResizedCrop, flip", folder_with(*CROP, *END), 5.0),
    Row("the same, PNG", folder_as("PNG"), 2.0),
    Row("the same, WebP", folder_as("WEBP", quality=85), 2.0),
    Row("the same, v2", folder_with(v2.RandomResizedCrop(224), v2.RandomHorizontalFlip(), *END_V2), 5.0),
    Row("Resize 256, CenterCrop 224", folder_with(v1.Resize(256), v1.CenterCrop(224), *END), 5.0),
    Row("weights.transforms()", folder_with(models.ResNet18_Weights.DEFAULT.transforms()), 5.0),
    Row("Resize((224, 224)), flips", folder_with(
        v1.Resize((224, 224)), v1.RandomHorizontalFlip(), v1.RandomVerticalFlip(), *END), 4.0),
    Row("crop, ColorJitter(.4, .4, .4)", folder_with(*CROP, v1.ColorJitter(0.4, 0.4, 0.4), *END), 6.0),
    Row("crop, ColorJitter with hue", folder_with(*CROP, v1.ColorJitter(0.4, 0.4, 0.4, 0.1), *END), 7.0),
    Row("crop, RandAugment", folder_with(*CROP, v1.RandAugment(), *END), 5.5),
    Row("crop, RandAugment, v2", folder_with(
        v2.RandomResizedCrop(224), v2.RandomHorizontalFlip(), v2.RandAugment(), *END_V2), 5.5),
    Row("crop, AutoAugment", folder_with(*CROP, v1.AutoAugment(), *END), 5.5),
    Row("crop, TrivialAugmentWide, RandomErasing", folder_with(
        *CROP, v1.TrivialAugmentWide(), *END, v1.RandomErasing(0.1)), 5.5),
    Row("crop, AugMix", folder_with(*CROP, v1.AugMix(), *END), 8.0),
    Row("preset class around a Compose", lambda folder: datasets.ImageFolder(
        str(folder), ClassificationPreset()), 5.5),
    Row("Resize, RandomRotation, ColorJitter", folder_with(
        v1.Resize((224, 224)), v1.RandomRotation(15), v1.ColorJitter(0.2, 0.2, 0.2, 0.1), *END), 7.0),
    Row("Resize, RandomAffine", folder_with(
        v1.Resize((224, 224)), v1.RandomAffine(10, (0.1, 0.1), (0.9, 1.1)), *END)),
    Row("crop, RandomPerspective", folder_with(*CROP, v1.RandomPerspective(), *END)),
    Row("crop, RandomGrayscale", folder_with(*CROP, v1.RandomGrayscale(0.2), *END)),
    Row("crop, solarize, equalize, autocontrast", folder_with(
        *CROP, v1.RandomSolarize(128), v1.RandomEqualize(), v1.RandomAutocontrast(), *END)),
    Row("Pad, RandomCrop", folder_with(v1.Resize((224, 224)), v1.Pad(8), v1.RandomCrop(224), *END)),
    Row("Resize before RandomResizedCrop", folder_with(v1.Resize(256), *CROP, *END)),
    Row("Resize, TenCrop, stack", folder_with(v1.Resize(256), v1.TenCrop(224), v1.Lambda(_stack))),
    Row("crop, CutMix or MixUp in collate_fn", folder_with(*CROP, *END), 4.0, collate=_mixed),
    Row("RandomShortestSize, RandomCrop, v2", folder_with(
        v2.RandomShortestSize([256, 288, 320]), v2.RandomCrop(224), v2.RandomHorizontalFlip(), *END_V2), 4.0),
    Row("SimCLR, one view", lambda folder: datasets.ImageFolder(str(folder), _simclr_view()), 20.0),
    Row("MoCo v2, two views", lambda folder: datasets.ImageFolder(
        str(folder), Views([_moco_view(), _moco_view()])), 5.0),
    Row("DINO, ten crops", lambda folder: datasets.ImageFolder(str(folder), Views(_dino_views())), 4.0),
    Row("timm, default", _timm(), 5.5, "timm"),
    Row("timm, rand-m9-mstd0.5-inc1", _timm(auto_augment="rand-m9-mstd0.5-inc1", re_prob=0.25), 5.5, "timm"),
    Row("timm's dataset, fast_collate", _timm_dataset, 4.0, "timm", _fast_collate),
    Row("CIFAR-10, RandomCrop(32, 4), flip", _cifar, 10.0),
    Row("gray JPEG, convert('L')", _gray, 5.0),
    Row("list dataset, Image.open", lambda folder: ListDataset(folder, v1.Compose([*CROP, *END])), 4.2),
    Row("list dataset, 600 images, new workers each epoch", _short, 3.0, kept=False),
    Row("list dataset, dict samples", lambda folder: DictDataset(folder, v1.Compose([*CROP, *END])), 4.2),
    Row("list dataset, own transform after the crop", lambda folder: ListDataset(
        folder, v1.Compose([*CROP, own_noise, *END])), 2.0),
    Row("list dataset, progressive JPEG", lambda folder: ListDataset(
        converted(folder, "JPEG", progressive=True), v1.Compose([*CROP, *END]))),
    Row("list dataset, to_tensor, normalize", lambda folder: ListDataset(folder, by_pillow_to_tensor), 4.0),
    Row("list dataset, pil_to_tensor", lambda folder: ListDataset(folder, by_uint8_tensor), 4.0),
    Row("list dataset, numpy.array, from_numpy", lambda folder: ListDataset(folder, by_array), 4.0),
    Row("list dataset, numpy.asarray, NumPy's arithmetic", lambda folder: ListDataset(
        folder, by_array_of_floats)),
    Row("ImageFolder subclass with paths", lambda folder: FolderWithPaths(
        str(folder), v1.Compose([*CROP, *END])), 4.5),
    Row("ConcatDataset of two folders", lambda folder: ConcatDataset(
        [datasets.ImageFolder(str(folder), v1.Compose([*CROP, *END]))] * 2), 5.5),
    Row("own transform only", folder_with(own_noise, v1.Resize((224, 224)), v1.ToTensor())),
    Row("v2 on tensors", folder_with(*CROP_TENSORS, *END_V2[1:]), 4.0),
    Row("v2 on tensors, ColorJitter with hue", folder_with(
        *CROP_TENSORS, v2.ColorJitter(0.4, 0.4, 0.4, 0.1), *END_V2[1:]), 6.0),
    Row("decode_image, v2 on tensors", _decoded, 4.0),
    Row("list dataset, decode_image, v2 on tensors", _decoded_list, 4.0),
    Row("list dataset, torchcodec's decode_image, v2 on tensors", _by_torchcodec, 4.0, "torchcodec"),
    Row("Hugging Face dataset, with_transform", _hugging_face, 4.5, "datasets"),
    Row("Hugging Face ViTImageProcessor", _processor, 3.0, "transformers"),
    Row("Hugging Face processor in collate_fn", target=3.0, **collated_by(vit)),
    Row("Qwen2-VL processor in collate_fn", target=2.0, **collated_by(qwen)),
    Row("SSD preset, boxes", detection(
        v2.RandomPhotometricDistort(), v2.RandomZoomOut(fill=(123, 117, 104)), v2.RandomIoUCrop(),
        v2.RandomHorizontalFlip()), 2.5, collate=in_lists),
    Row("DETR, multi-scale, padded", detection(
        v2.RandomHorizontalFlip(), v2.RandomShortestSize([320, 384, 448, 512], 800)), 3.0, collate=padded),
    Row("segmentation preset, masks", segmentation, 3.0),
    Row("buckets at 512 pixels", Bucketed, 2.5, batches=bucket_batches),
    Row("WebDataset, decode('pil')", _web_dataset, 4.0, "webdataset"),
    Row("cv2.imread", _read, 1.2, "cv2"),
    Row("albumentations, cv2", _albumentations(_by_cv2, _crop_and_flip), 4.0, "albumentations"),
    Row("albumentations, cv2, Resize, flips, Rotate, brightness",
        _albumentations(_by_cv2, _resize_and_turn), 3.0, "albumentations"),
    Row("albumentations, cv2, image and PNG mask", _pairs, 2.5, "albumentations"),
    Row("albumentations, cv2, crop, ColorJitter, GaussianBlur, CoarseDropout",
        _albumentations(_by_cv2, _crop_and_change), None, "albumentations"),
    Row("albumentations, cv2 in gray", _albumentations(_read_gray, _crop_and_flip), None, "albumentations"),
    Row("albumentations after Pillow", _albumentations(_by_pillow, _crop_and_flip), None, "albumentations"),
    Row("Ultralytics, mosaic", _ultralytics, 1.5, "ultralytics", _as_ultralytics),
)  # fmt: skip
