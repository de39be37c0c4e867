"""`headrace`, and `python -m headrace`, which torchrun can start:
`torchrun --nproc-per-node=8 -m headrace train DATA`."""

import sys

import headrace

# Exit code of wrong usage.
USAGE = 2


def main() -> None:
    """The entry point of the console script."""
    if sys.argv[1:] == ["--version"]:  # which needs nothing that the command is made of
        sys.stdout.write(f"headrace {headrace.__version__}\n")
        return
    try:
        from headrace.cli import main as run
    except ModuleNotFoundError as error:
        if error.name not in ("rich", "typer"):
            raise
        sys.stderr.write("The headrace command needs typer and rich: pip install 'headrace[cli]'\n")
        sys.exit(USAGE)
    run()


if __name__ == "__main__":
    main()
