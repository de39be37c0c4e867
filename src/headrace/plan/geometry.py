"""Which sequences of steps native code can do, and how large the picture is after each.

The legal form is::

    (flip | crop)*  [one resize]  (flip | crop)*

where a crop that may add pixels around the picture comes before any other crop since the source or the
resize: native code pads once, at the edge of the picture itself. What the sizes prove never to happen isn't
held against a step: a resize to the size that the picture already has, or padding that is never needed, is
left out of the result.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace

from headrace.plan.catalogue import OnTensor
from headrace.plan.logical import (
    CenterCrop,
    Crop,
    HorizontalFlip,
    RandomCrop,
    RandomResizedCrop,
    Resize,
    ResizeShorter,
    Step,
    VerticalFlip,
)

NO_EFFECT = "changes nothing: the picture has that size already"
TENSOR_RESIZE = "resizes a tensor as torch does, which isn't what Pillow does; put it before the conversion"
TENSOR_PADDING = "may pad a tensor, after normalisation rather than before; put it before the conversion"
NOTHING_LEFT = "leaves nothing of the shorter edge"
SECOND_RESIZE = "a second resize: native code does one"
SECOND_PADDING = "may pad what another crop has cut; native code pads the picture itself only"


@dataclass(frozen=True)
class Extent:
    """The picture's size, or, where it varies from file to file (not `exact`), lower bounds of it."""

    height: int
    width: int
    exact: bool

    def is_exactly(self, height: int, width: int) -> bool:
        """Whether the picture is sure to be height × width."""
        return self.exact and (self.height, self.width) == (height, width)

    def holds(self, height: int, width: int) -> bool:
        """Whether height × width is sure to fit into the picture."""
        return self.height >= height and self.width >= width

    def grown(self, height: int, width: int) -> Extent:
        """With that many rows and columns more."""
        return replace(self, height=self.height + height, width=self.width + width)


UNKNOWN = Extent(1, 1, exact=False)


@dataclass(frozen=True)
class Placed:
    """A step; where it comes after the conversion to a tensor, `on_tensor` says what that means for it."""

    step: Step
    on_tensor: OnTensor | None = None


@dataclass(frozen=True)
class Verdict:
    """What becomes of one step: `step` is to run (None: nothing), `problem` why native code can't."""

    step: Step | None
    extent: Extent
    note: str = ""
    problem: str = ""


@dataclass
class _State:
    extent: Extent = UNKNOWN
    resized: bool = False
    cropped: bool = False  # since the source or the resize
    verdicts: list[Verdict] = field(default_factory=list)


def check_geometry(steps: Sequence[Placed]) -> tuple[Verdict, ...]:
    """One verdict per step, in order. After a step with a problem the next is judged as if it had run."""
    state = _State()
    for placed in steps:
        verdict = _judge(placed, state)
        state.extent = verdict.extent
        if verdict.step is not None:
            state.resized = state.resized or isinstance(
                verdict.step, (RandomResizedCrop, Resize, ResizeShorter)
            )  # A RandomResizedCrop cuts before it resizes: the result is a picture of its own.
            state.cropped = _is_crop(verdict.step) or (state.cropped and _is_flip(verdict.step))
        state.verdicts.append(verdict)
    return tuple(state.verdicts)


def final_size(steps: Sequence[Step], height: int, width: int) -> tuple[int, int]:
    """(height, width) of a picture of height × width after `steps`."""
    for step in steps:
        if isinstance(step, ResizeShorter):
            height, width = step.output_size(height, width)
        elif not isinstance(step, (HorizontalFlip, VerticalFlip)):
            height, width = step.height, step.width
    return height, width


def adds_pixels(steps: Sequence[Step], height: int, width: int) -> bool:
    """Whether one of `steps` pads a picture of height × width."""
    for step in steps:
        if isinstance(step, RandomCrop) and any(step.total_padding(height, width)):
            return True
        if isinstance(step, CenterCrop) and (step.height > height or step.width > width):
            return True
        height, width = final_size([step], height, width)
    return False


def _judge(placed: Placed, state: _State) -> Verdict:
    step = placed.step
    if isinstance(step, (HorizontalFlip, VerticalFlip)):
        return Verdict(step, state.extent)
    if isinstance(step, CenterCrop):
        return _judge_center_crop(step, placed, state)
    if isinstance(step, RandomCrop):
        return _judge_random_crop(step, placed, state)
    return _judge_resize(step, placed, state)


def _judge_resize(step: RandomResizedCrop | Resize | ResizeShorter, placed: Placed, state: _State) -> Verdict:
    extent = _resized_extent(step, state.extent)
    if extent.height == 0 or extent.width == 0:
        return Verdict(step, UNKNOWN, problem=NOTHING_LEFT)
    # Only a plain resize: a RandomResizedCrop to the same size still cuts a box.
    if not isinstance(step, RandomResizedCrop) and extent.exact and extent == state.extent:
        return Verdict(None, extent, note=NO_EFFECT)
    if placed.on_tensor is not None:
        return Verdict(step, extent, problem=TENSOR_RESIZE)
    if state.resized:
        return Verdict(step, extent, problem=SECOND_RESIZE)
    return Verdict(step, extent)


def _resized_extent(step: RandomResizedCrop | Resize | ResizeShorter, before: Extent) -> Extent:
    if isinstance(step, (RandomResizedCrop, Resize)):
        return Extent(step.height, step.width, exact=True)
    if before.exact:
        height, width = step.output_size(before.height, before.width)
        return Extent(height, width, exact=True)
    # Without max_size both edges reach `size`; with it the shorter edge of a long picture may end up tiny.
    return Extent(step.size, step.size, exact=False) if step.max_size is None else UNKNOWN


def _judge_center_crop(step: CenterCrop, placed: Placed, state: _State) -> Verdict:
    after = Extent(step.height, step.width, exact=True)
    if state.extent.is_exactly(step.height, step.width):
        return Verdict(None, after, note=NO_EFFECT)
    pads = not state.extent.holds(step.height, step.width)
    return Verdict(step, after, problem=_padding_problem(placed, state) if pads else "")


def _judge_random_crop(step: RandomCrop, placed: Placed, state: _State) -> Verdict:
    after = Extent(step.height, step.width, exact=True)
    left, top, right, bottom = step.padding or (0, 0, 0, 0)
    # On a tensor even padding by nothing may raise an error for its fill.
    if placed.on_tensor is None and not left + top + right + bottom:
        step = replace(step, padding=None)
    padded = state.extent.grown(top + bottom, left + right)
    if step.pad_if_needed and padded.holds(step.height, step.width):
        step = replace(step, pad_if_needed=False)
    if not step.pad_if_needed and padded.exact and not padded.holds(step.height, step.width):
        sizes = f"{step.height}×{step.width} from {padded.height}×{padded.width}"
        problem = f"cuts {sizes}, for which torchvision raises an error"
        return Verdict(step, after, problem=problem)
    if not step.may_pad and state.extent.is_exactly(step.height, step.width):
        return Verdict(None, after, note=NO_EFFECT)
    return Verdict(step, after, problem=_padding_problem(placed, state) if step.may_pad else "")


def _padding_problem(placed: Placed, state: _State) -> str:
    if placed.on_tensor is not None:
        return TENSOR_PADDING
    return SECOND_PADDING if state.cropped else ""


def _is_crop(step: Step) -> bool:
    return isinstance(step, Crop)


def _is_flip(step: Step) -> bool:
    return isinstance(step, (HorizontalFlip, VerticalFlip))
