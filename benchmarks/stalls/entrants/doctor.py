"""Headrace's doctor, as in `headrace doctor run SCRIPT`.

With `--try` before the script, it applies its advice, if that is a setting, and measures the gain.
"""

import json
import sys
from dataclasses import replace

from headrace_doctor.doctor.case import seconds_of
from headrace_doctor.doctor.diagnosis import diagnose
from headrace_doctor.examine import Job


def main() -> None:
    attempt = sys.argv[1] == "--try"
    job = Job(sys.argv[1 + attempt :], limit=280.0)
    _, observation, output = job.run(quiet=True)
    if observation is None:
        sys.exit(f"nothing was measured: {output[-2000:]}")
    diagnosis = diagnose(observation)
    verdict = diagnosis.verdict
    advice = next((one for one in diagnosis.advice if one.cause == verdict.kind), None)
    answer = {
        "kind": verdict.kind,
        "cause": verdict.sentence,
        "samples_per_second": diagnosis.rate("actual").samples_per_second,
        "details": {
            "margin": round(verdict.margin, 3),
            "others": round(diagnosis.others, 2),
            "watching": round(diagnosis.watching, 4),
            "rates": {rate.name: round(rate.samples_per_second, 1) for rate in diagnosis.rates},
            "notes": diagnosis.notes,
            "causes": [[cause.kind, cause.sentence, round(cause.cost, 3)] for cause in diagnosis.causes],
        },
    }
    if advice is not None:
        answer |= {"advice": "\n".join((advice.summary, *advice.diff))}
        answer |= {"gain": round(advice.expected, 3), "at_most": round(advice.predicted, 3)}
    if attempt and advice is not None and advice.settings:
        _, again, _ = replace(job, **advice.applied_to(diagnosis)).run(quiet=True)
        seconds = seconds_of(again) if again is not None and not again.refused else None
        answer |= {"measured": round(diagnosis.seconds_per_sample / seconds, 3)} if seconds else {}
    print(json.dumps(answer, ensure_ascii=False))


if __name__ == "__main__":
    main()
