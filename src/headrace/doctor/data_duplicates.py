"""Files of the same content: in two classes they contradict, in two splits they leak."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np

from headrace.doctor.naming import below, listed
from headrace.doctor.records import Finding
from headrace.measure.pictures import Split


@dataclass(frozen=True)
class _Copies:
    """Files of one content: (split's number, label) and path of each."""

    places: tuple[tuple[int, int], ...]
    paths: tuple[str, ...]

    @property
    def leak(self) -> bool:
        return len({split for split, _ in self.places}) > 1

    @property
    def contradict(self) -> bool:
        return not self.leak and len({label for _, label in self.places}) > 1


def duplicates(subject: str, splits: Sequence[Split]) -> tuple[Finding, ...]:
    """The findings on files that are there twice."""
    groups = list(_groups(subject, splits))
    findings = [
        _finding(
            "in two splits",
            [group for group in groups if group.leak],
            "in more than one split: what is measured on one was trained on in the other",
            "bad",
            "Remove them from one of the splits; from train, to keep results comparable.",
        ),
        _finding(
            "in two classes",
            [group for group in groups if group.contradict],
            "in more than one class: their labels contradict each other",
            "bad",
            "Remove all but the right one.",
        ),
        _finding(
            "in one class",
            [group for group in groups if not group.leak and not group.contradict],
            "there more than once in a class, and so drawn more often than others",
            "note",
            "Remove all but one of each.",
        ),
    ]
    found = tuple(finding for finding in findings if finding is not None)
    return found or (Finding("duplicates", "no file has the content of another", "good"),)


def _finding(
    name: str, groups: list[_Copies], what: str, judgement: Literal["bad", "note"], remedy: str
) -> Finding | None:
    if not groups:
        return None
    groups.sort(key=lambda group: (-len(group.paths), group.paths))
    return Finding(
        name,
        listed("picture", what, [" = ".join(group.paths[:4]) for group in groups]),
        judgement,
        remedy,
        {"groups": [list(group.paths) for group in groups]},
    )


def _groups(subject: str, splits: Sequence[Split]) -> Iterator[_Copies]:
    digests = np.concatenate([split.pictures.digests for split in splits])
    sizes = np.concatenate([split.pictures.sizes for split in splits])
    starts = np.cumsum([0, *(len(split.pictures) for split in splits)])
    made = np.flatnonzero(digests)
    order = made[np.lexsort((made, sizes[made], digests[made]))]
    if len(order) == 0:
        return
    changes = (np.diff(digests[order]) != 0) | (np.diff(sizes[order]) != 0)
    bounds = np.concatenate([[0], np.flatnonzero(changes) + 1, [len(order)]])
    for group in np.flatnonzero(np.diff(bounds) > 1).tolist():
        places, paths = [], []
        for number in order[bounds[group] : bounds[group + 1]].tolist():
            which = int(np.searchsorted(starts, number, "right")) - 1
            split, row = splits[which], number - int(starts[which])
            places.append((which, int(split.pictures.labels[row])))
            paths.append(below(subject, split) + split.pictures.name(row))
        yield _Copies(tuple(places), tuple(paths))
