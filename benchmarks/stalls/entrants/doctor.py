"""Headrace's doctor, as in `headrace doctor run SCRIPT`."""

import json
import sys

from headrace_doctor.doctor.diagnosis import diagnose
from headrace_doctor.examine import Job


def main() -> None:
    _, observation, output = Job(sys.argv[1:], limit=280.0).run(quiet=True)
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
    print(json.dumps(answer, ensure_ascii=False))


if __name__ == "__main__":
    main()
