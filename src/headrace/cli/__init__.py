"""The `headrace` command: one file a verb."""

import typer

from headrace.cli.index import index

app = typer.Typer(
    no_args_is_help=True, add_completion=False, help="Feeds GPUs: tools beside headrace.DataLoader."
)
app.command()(index)


@app.callback()
def _verbs() -> None:
    # With a callback, a single command keeps its name.
    return


def main() -> None:
    """The entry point of the console script."""
    app()
