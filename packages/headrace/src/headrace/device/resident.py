"""Small data that lives on the device: gathered there, so that nothing is copied per batch but indices."""

from __future__ import annotations

from dataclasses import replace

import torch

from headrace import _torch_compat
from headrace.config import Resident
from headrace.errors import ConfigError
from headrace.plan.segments import GatherSegment, Plan, ValueSegment

# What data may take of the device's free memory unless the user insists: the model, its gradients and the
# optimizer's state aren't there yet when the first epoch begins.
SHARE = 1 / 8


class Residence:
    """Keeps a gathered dataset's tensors on `device` from epoch to epoch: always if `wanted` is True, never
    if it is False, with "auto" if they fit in an eighth of the memory that is free at the first epoch."""

    def __init__(self, device: torch.device, wanted: Resident) -> None:
        self.device = device
        self.wanted = wanted
        self.reason = "not decided yet"  # in words, what was decided last
        self._hosts: tuple[tuple[torch.Tensor, int], ...] = ()
        self._there: tuple[torch.Tensor, ...] = ()
        self._decided: dict[int, bool] = {}  # by bytes: later the free memory is less by what is there

    def settle(self, plan: Plan) -> Plan:
        """`plan` with its tensors on the device, and what is done to a batch done there; or `plan` itself.

        Tensors are copied again in an epoch before which they were changed, or made again (as those of NumPy
        arrays are each time). Raises ConfigError if they must be there and don't fit.
        """
        gather = plan.gather
        assert gather is not None
        if not self._is_wanted(gather):
            self._hosts = self._there = ()
            return plan
        same = len(self._hosts) == len(gather.tensors) and all(
            tensor is host and _torch_compat.changes_of(tensor) == version
            for tensor, (host, version) in zip(gather.tensors, self._hosts, strict=True)
        )
        if not same:
            self._there = ()  # given back first: both may not fit
            self._there = tuple(tensor.to(self.device) for tensor in gather.tensors)
            self._hosts = tuple((tensor, _torch_compat.changes_of(tensor)) for tensor in gather.tensors)
        there = replace(gather, tensors=self._there)
        # Values are made as the rows are gathered: there is no copy to make them after.
        rest = (
            replace(segment, where="native") if isinstance(segment, ValueSegment) else segment
            for segment in plan.segments[1:]
        )
        return Plan((there, *rest))

    def _is_wanted(self, plan: GatherSegment) -> bool:
        if self.device.type == "cpu" or self.wanted is False:
            self.reason = "not resident: " + ("the device is the CPU" if self.wanted else "resident=False")
            return False
        if any(tensor.requires_grad for tensor in plan.tensors):
            self.reason = "not resident: gradients flow to the tensors themselves"
            return False
        if plan.nbytes not in self._decided:
            self._decided[plan.nbytes] = self._fits(plan.nbytes)
        return self._decided[plan.nbytes]

    def _fits(self, nbytes: int) -> bool:
        free = free_memory(self.device)
        size = f"{nbytes / 1e6:,.0f} MB"
        if free is None:
            self.reason = f"{size}; {self.device} doesn't report how much memory is free"
            return self.wanted is True
        share = 1.0 if self.wanted is True else SHARE
        fits = nbytes <= free * share
        bound = "" if share == 1.0 else f"{share:.3g} of "
        self.reason = (
            f"{'' if fits else 'not '}resident on {self.device}: {size} {'≤' if fits else '>'} {bound}"
            f"{free / 1e6:,.0f} MB free"
        )
        if self.wanted is True and not fits:
            raise ConfigError(
                f"resident=True: the data takes {size}, and {self.device} has {free / 1e6:,.0f} MB free."
                " Leave resident at 'auto' to copy batches instead, or use fewer or smaller samples."
            )
        return fits


def free_memory(device: torch.device) -> int | None:
    """Bytes free on an accelerator, or None if it doesn't report that."""
    report = getattr(torch.get_device_module(device), "mem_get_info", None)
    return None if report is None else int(report(device)[0])
