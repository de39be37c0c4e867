"""Datasets in memory of which a batch is a gather of rows: the transform, if any, works on levels alone."""

from __future__ import annotations

from headrace.plan.pointwise import PointwiseTable
from headrace.plan.segments import GatherSegment, Step
from headrace.plan.transform import lower_values
from headrace.sources.kinds import InTensors, Reading, Recognized
from headrace.sources.source import TensorRows

Gather = tuple[GatherSegment, PointwiseTable | None, tuple[Step, ...]]


def plan_gather(dataset: Reading) -> Gather | None:
    """Returns how to gather batches of `dataset`, the table of its images' values and its steps, or None if
    its samples aren't rows of tensors."""
    if isinstance(dataset, InTensors):
        return _segment(dataset.what, dataset.rows), None, ()
    if (
        not isinstance(dataset, Recognized)
        or dataset.transform is None
        or dataset.target_transform is not None
    ):
        return None
    rows = dataset.source.tensors()
    lowered = None if rows is None else lower_values(dataset.transform, rows.tensors[0].shape[1])
    return None if rows is None or lowered is None else (_segment(dataset.what, rows), *lowered)


def _segment(what: str, rows: TensorRows) -> GatherSegment:
    step = Step(what, "rows are gathered a batch at a time", "exact")
    return GatherSegment(steps=(step,), tensors=rows.tensors, rows=rows.rows)
