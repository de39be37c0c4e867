"""Tests named test_on_*.py are run by test_simulated.py, in a process that has the accelerator."""

import os

collect_ignore_glob = [] if os.environ.get("HEADRACE_ACCELERATOR") == "simulated" else ["test_on_*.py"]
