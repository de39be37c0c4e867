"""Removes each line that docs/hazards.md names, and shows the test that fails without it.

    python tests/accelerator/hazards.py [--run [WORDS]]

Without `--run` it prints the table of docs/hazards.md alone; with it each test is run with the line and
without, or with WORDS those of the rules that contain them. The files stay as they are: a changed module is
made in the memory of the test's process.
"""

from __future__ import annotations

import os
import sys
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[2]
sys.path.insert(0, str(ROOT / "tests"))

from support.python import run_python  # noqa: E402

FEED = "tests/accelerator/test_on_feed.py"


@dataclass(frozen=True)
class Rule:
    """A rule, the code that keeps it, and what is there without it.

    Args:
        section: of docs/hazards.md.
        text: the rule in a few words.
        code: in `module`, once.
        without: takes the place of `code`.
        test: fails without it: a name in test_on_feed.py, with the parameter that is meant.
    """

    section: int
    text: str
    code: str
    without: str
    test: str
    module: str = "device.prefetcher"


WHOLE = "test_values_arrive_whole"
RULES = [
    Rule(
        1,
        "host tensors live until their copies are over",
        "_Flight(kept, ",
        "_Flight(None, ",
        f"{WHOLE}[tensor]",
    ),
    Rule(
        1,
        "they are let go of only after the event",
        "while self._flights and self._flights[0].end.query():",
        "while self._flights:",
        f"{WHOLE}[tensor]",
    ),
    Rule(
        1,
        "`close` waits for copies",
        "flight.end.synchronize()",
        "pass",
        "test_a_closed_feed_reads_no_host_memory",
    ),
    Rule(
        1,
        "what objects hold is noted before they move in place",
        "kept = [*leaves(batch), *tensors(batch)]",
        "kept = list(leaves(batch))",
        f"{WHOLE}[in place]",
    ),
    Rule(
        1,
        "also if a part of the batch can't be moved",
        "finally:  # if a leaf couldn't be moved, copies of others may be running",
        "except ZeroDivisionError:\n                pass\n            else:",
        "test_a_batch_that_fails_keeps_what_is_being_copied[sent]",
    ),
    Rule(
        1,
        "on the way to the CPU, `send` waits for its copies",
        "non_blocking=False))",
        "non_blocking=True))",
        "test_copies_to_the_cpu_are_waited_for",
    ),
    Rule(2, "the user's stream waits", "stream.wait_event(sent.ready)", "pass", f"{WHOLE}[tensor]"),
    Rule(
        2,
        "it waits for `prepare`, too",
        "sent.ready = self._event()\n                sent.ready.record()",
        "pass",
        f"{WHOLE}[prepared]",
    ),
    Rule(
        3,
        "use is recorded on the user's stream",
        "each.record_stream(stream)",
        "pass",
        f"{WHOLE}[tensor]",
    ),
    Rule(
        3,
        "what `prepare` returns is recorded",
        "*self._made_since(kept, sent.data)]",
        "*([] if self._prepare else self._made_since(kept, sent.data))]",
        f"{WHOLE}[prepared]",
    ),
    Rule(
        3,
        "objects that move themselves are recorded",
        "sent.made.append(moved)",
        "pass",
        f"{WHOLE}[recorded]",
    ),
    Rule(
        3,
        "what can't be recorded is copied on the user's stream",
        'elif hasattr(leaf, "record_stream") or _shows_its_tensors(leaf):',
        "else:",
        f"{WHOLE}[opaque]",
    ),
    Rule(
        3,
        "then, too, host tensors live until their copies are over",
        "_Flight(sent.late, None, end)",
        "_Flight(None, None, end)",
        f"{WHOLE}[opaque]",
    ),
    Rule(
        3,
        "also if a part of the batch can't be moved there",
        "finally:  # as in `send`",
        "except ZeroDivisionError:\n                pass\n            else:",
        "test_a_batch_that_fails_keeps_what_is_being_copied[received]",
    ),
    Rule(
        5,
        "the side stream waits for tensors of others, which `prepare` may read",
        "self._stream.wait_stream(user)",
        "pass",
        f"{WHOLE}[there, prepared]",
    ),
    Rule(
        5,
        "the user's stream waits for them, too",
        "if there or self._prepare is not None:",
        "if self._prepare is not None:",
        f"{WHOLE}[there]",
    ),
    Rule(
        5,
        "their use there is recorded",
        "[*filter(_is_plain, there), *self._made_since(kept, sent.data)]",
        "self._made_since(kept, sent.data)",
        f"{WHOLE}[there]",
    ),
    Rule(
        5,
        "their use on the side stream is recorded",
        "tensor.record_stream(self._stream)",
        "pass",
        "test_a_batch_that_nobody_receives_spoils_nothing",
    ),
    Rule(
        5,
        "resident data is recorded on the streams that take rows of it",
        "tensor.record_stream(torch.accelerator.current_stream(tensor.device))",
        "pass",
        "test_resident_data_lives_until_its_rows_were_taken",
        "engine.caller_stream",
    ),
    Rule(
        5,
        "so is the table of values",
        "self._table.record_stream(torch.accelerator.current_stream(images.device))",
        "pass",
        "test_a_table_of_values_lives_until_it_was_read",
        "device.postprocess",
    ),
    Rule(
        5,
        "a forked process is refused",
        "if _torch_compat.was_forked_in_use(_module(asked)):",
        "if False:",
        "test_a_feed_in_a_fork_says_what_to_do",
        "device.place",
    ),
    Rule(
        5,
        "a forked process waits for no copies",
        " or os.getpid() != self._pid:",
        ":",
        "test_a_feed_dropped_in_a_fork_waits_for_nothing",
    ),
]

PROGRAM = """
import importlib.util, pathlib, sys
import pytest

name, code, without, selected, *options = sys.argv[1:]
spec = importlib.util.find_spec(name)
text = pathlib.Path(spec.origin).read_text()
if text.count(code) != 1:
    print(f"{text.count(code)} times in {name}: {code}")
    sys.exit(2)
sys.modules[name] = module = importlib.util.module_from_spec(spec)
exec(compile(text.replace(code, without), spec.origin, "exec"), module.__dict__)
test, _, parameter = selected.partition("[")

class Chosen:
    def pytest_collection_modifyitems(self, items):
        items[:] = [item for item in items if item.originalname == test and parameter[:-1] in item.name]
        assert items

options += ["-q", "-x", "-p", "no:xdist", "-p", "no:cacheprovider", "-m", "gpu"]
sys.exit(pytest.main(options, plugins=[Chosen()]))
"""


def passes(rule: Rule, *, removed: bool) -> bool:
    """Returns whether the rule's test passes, with its code or without. Without it there are more seeds, of
    which the first that fails is the last: some rules matter only with the delays of one seed in ten."""
    seeds = "100" if removed else "20"
    env = os.environ | {"HEADRACE_ACCELERATOR": "simulated", "HEADRACE_SEEDS": seeds}
    options = ["--rootdir", ROOT, "-c", ROOT / "pyproject.toml", ROOT / FEED]
    without = rule.without if removed else rule.code
    arguments = [f"headrace.{rule.module}", rule.code, without, rule.test, *options]
    done = run_python(PROGRAM, *arguments, env=env, fresh=True)
    if done.returncode not in (0, 1):
        raise RuntimeError(f"{rule.test} could not be run: {done.stdout}{done.stderr}")
    return done.returncode == 0


def table() -> list[str]:
    """The table of docs/hazards.md."""
    lines = ["| section | rule | code that keeps it | test that fails without |", "|---|---|---|---|"]
    for rule in RULES:
        code = f"`{' '.join(rule.code.split())}`"
        if rule.module != Rule.module:
            code += f" in `{rule.module.replace('.', '/')}.py`"
        lines.append(f"| {rule.section} | {rule.text} | {code} | `{rule.test}` |")
    return lines


def main() -> None:
    if "--run" not in sys.argv:
        print("\n".join(table()))
        return
    kept, words = 0, " ".join(sys.argv[2:])
    rules = [rule for rule in RULES if words in rule.text]
    for rule in rules:
        with_it, without = passes(rule, removed=False), passes(rule, removed=True)
        kept += with_it and not without
        said = f"{'passes' if with_it else 'FAILS '} with it, {'PASSES' if without else 'fails '} without"
        print(f"{said}: {rule.text}")
    print(f"{kept} of {len(rules)} rules have a test that fails without them")
    sys.exit(kept < len(rules))


if __name__ == "__main__":
    main()
