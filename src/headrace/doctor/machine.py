"""The doctor's opinion on a machine, made of what `headrace.measure.survey` measured."""

from __future__ import annotations

from headrace.doctor import host
from headrace.doctor.gpus import gpu_sections
from headrace.doctor.records import Checkup
from headrace.doctor.storage import storage_findings
from headrace.measure.survey import Machine


def examine(machine: Machine) -> Checkup:
    """Each figure with a judgement and, where something is to be done, what."""
    cores = machine.cores.usable
    return Checkup(
        "machine",
        (
            (
                machine.cores.processor,
                (
                    host.cores_finding(machine.cores),
                    host.memory_finding(machine.memory, cores),
                    host.shared_memory_finding(machine.shared, cores),
                    host.files_finding(machine.files, cores),
                ),
            ),
            ("decoding", host.decoding_findings(machine.decoding, machine.cores.worth)),
            *(
                (
                    str(storage.path),
                    storage_findings(
                        storage, machine.decoding, machine.cores.worth, machine.memory.available
                    ),
                )
                for storage in machine.storages
            ),
            *gpu_sections(machine.torch, machine.gpus, machine.copies, machine.copies_failed),
        ),
    )
