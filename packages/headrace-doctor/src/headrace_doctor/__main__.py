"""`headrace-doctor`, and `python -m headrace_doctor`: the doctor's verbs without the loader's command."""

from headrace_doctor.cli.doctor import doctor
from headrace_doctor.cli.progress import OF_SCRIPTS
from headrace_doctor.cli.top import top
from headrace_doctor.cli.tune import tune


def main() -> None:
    """The entry point of the console script."""
    doctor.command()(top)
    doctor.command(context_settings=OF_SCRIPTS)(tune)
    doctor()


if __name__ == "__main__":
    main()
