"""FiveCrop and TenCrop: several images of one, which the user's function makes a tensor of."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from PIL import Image
from torchvision import transforms as v1
from torchvision.transforms import functional as F  # noqa: N812  (torchvision's own name for it)
from torchvision.transforms import v2
from typing_extensions import Self

from headrace.records import Draw
from headrace.transforms.op import Extent, ImageOp, Settled
from headrace.transforms.reading import MAX_SIZE, check_size, made, pair

PLACES = 5
MIRRORED = ("no", "horizontally", "vertically")


@dataclass(frozen=True)
class MultiCrop(ImageOp):
    """The four corners and the middle of the input, height × width each; then those of the input mirrored.

    Native code puts them one below the other, and writes them one after the other into the batch.

    Attributes:
        mirrored: place in `MIRRORED` of how the second five are; 0: there are none.
    """

    height: int
    width: int
    mirrored: int

    native = "multi_crop"
    matches = (v1.FiveCrop, v1.TenCrop, v2.FiveCrop, v2.TenCrop)
    tensor_problem = ""
    gray_problem = ""
    examples = ({"size": (17, 24)}, {"size": 1}, {"size": [31, 30]}, {"size": (9, 2)})

    def __post_init__(self) -> None:
        check_size(self.height, self.width)
        object.__setattr__(self, "views", 2 * PLACES if self.mirrored else PLACES)
        if self.height * self.views > MAX_SIZE:
            raise ValueError(f"{self.views} crops of {self.height} rows are more than {MAX_SIZE} rows")

    def __str__(self) -> str:
        flipped = f", mirrored {MIRRORED[self.mirrored]}" if self.mirrored else ""
        return f"{'TenCrop' if self.mirrored else 'FiveCrop'}({self.height}×{self.width}{flipped})"

    @classmethod
    def read(cls, transform: Any) -> Self:
        ten = isinstance(transform, (v1.TenCrop, v2.TenCrop))
        mirrored = (2 if transform.vertical_flip else 1) if ten else 0
        return made(cls, *pair(transform.size), mirrored)

    def params(self) -> tuple[float, ...]:
        return (self.height, self.width, self.mirrored)

    def extent(self, before: Extent) -> Extent:
        return Extent(self.height * self.views, self.width, exact=True)

    def settle(self, before: Extent, *, on_tensor: bool) -> Settled:
        after = self.extent(before)
        if before.exact and not before.holds(self.height, self.width):
            sizes = f"{self.height}×{self.width} from {before.height}×{before.width}"
            return Settled(self, after, problem=f"cuts {sizes}, for which torchvision raises an error")
        return Settled(self, after)

    def replay(self, image: Image.Image, draw: Draw) -> Any:
        size = [self.height, self.width]
        crops = F.ten_crop(image, size, self.mirrored == 2) if self.mirrored else F.five_crop(image, size)
        strip = Image.new(image.mode, (self.width, self.height * len(crops)))
        for i, crop in enumerate(crops):
            strip.paste(crop, (0, i * self.height))
        return strip

    def keeps_info(self, height: int, width: int, draw: Draw) -> bool:
        return False
