"""The entrypoint starts its services, and refuses settings that aren't safe."""

from __future__ import annotations

import inspect
import json
import re
import secrets
import signal
import stat
import subprocess
import sys
from pathlib import Path

import pytest

from headrace.cli.train import train
from support import tiny_recipe as tiny
from support.container import ENTRYPOINT, UID, Container, as_arbitrary_user, wait_for

HASH = "argon2:$argon2id$v=19$m=10240,t=10,p=8$c2FsdHNhbHRzYWx0$" + "aGFzaA" * 7

# What it was called with, and its environment.
SHOW_JUPYTER = 'printf "%s\\n" "$@"; env'


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"JUPYTER_TOKEN": ""}, "JUPYTER_TOKEN has 0 characters; 32 are the least"),
        ({"JUPYTER_TOKEN": "   \n"}, "has 0 characters"),
        ({"JUPYTER_TOKEN": "hunter2"}, "has 7 characters"),
        ({"JUPYTER_TOKEN": "a" * 64}, "repeats itself"),
        ({"JUPYTER_TOKEN": "1234567890" * 4}, "repeats itself"),
        ({"JUPYTER_TOKEN": "abcabcbacbacbbacbabcbabcabcabbcabcba"}, "repeats itself"),
        ({"JUPYTER_TOKEN": "correct horse battery staple and more"}, "white space"),
        ({"JUPYTER_TOKEN": "x", "JUPYTER_TOKEN_FILE": "/nowhere"}, "are both set"),
        ({"JUPYTER_TOKEN": "x", "JUPYTER_PASSWORD_HASH": HASH}, "are both set"),
        ({"JUPYTER_TOKEN_FILE": "/nowhere"}, "JUPYTER_TOKEN_FILE (/nowhere) can't be read"),
        ({"JUPYTER_TOKEN_FILE": "/dev/null"}, "has 0 characters"),
        ({"JUPYTER_PASSWORD_HASH": ""}, "isn't an argon2 hash"),
        ({"JUPYTER_PASSWORD_HASH": "a password in the clear"}, "isn't an argon2 hash"),
        ({"JUPYTER_PASSWORD_HASH": "sha1:0123456789ab:" + "0" * 40}, "isn't an argon2 hash"),
    ],
)
def test_jupyter_refuses_weak_secrets(container: Container, given: dict[str, str], message: str) -> None:
    container.program("jupyter", "touch started")
    ended = container.call("jupyter", **given)
    assert ended.returncode == 2
    assert message in ended.stderr
    assert not (container.workspace / "started").exists()


@pytest.mark.parametrize(
    ("keys", "message"),
    [
        (None, "needs SSH_AUTHORIZED_KEYS"),
        ("", "needs SSH_AUTHORIZED_KEYS"),
        ("a line of text", "no public key that ssh-keygen understands"),
        ("-----BEGIN OPENSSH PRIVATE KEY-----\nb3BlbnNzaC1rZXktdjE=", "holds a private key"),
    ],
)
def test_ssh_refuses_to_start_without_a_key(container: Container, keys: str | None, message: str) -> None:
    ended = container.call("ssh", **({} if keys is None else {"SSH_AUTHORIZED_KEYS": keys}))
    assert ended.returncode == 2
    assert message in ended.stderr


def test_a_token_is_generated_and_printed_once(container: Container) -> None:
    """Strong, another one at each start, and nowhere but in a file that its user alone can read."""
    container.program("jupyter", SHOW_JUPYTER)
    seen = []
    for _ in range(2):
        ended = container.call("jupyter")
        token = re.search(r"lab\?token=(\S+)\n", ended.stdout)
        assert token
        config = container.run / "jupyter_config.json"
        assert json.loads(config.read_text())["PasswordIdentityProvider"]["token"] == token[1]
        assert stat.S_IMODE(config.stat().st_mode) == 0o600
        assert (ended.stdout + ended.stderr).count(token[1]) == 1
        assert len(token[1]) >= 43
        seen.append(token[1])
    assert seen[0] != seen[1]


@pytest.mark.parametrize("by", ["JUPYTER_TOKEN", "JUPYTER_TOKEN_FILE", "JUPYTER_PASSWORD_HASH"])
def test_a_given_secret_is_in_the_private_file_alone(container: Container, tmp_path: Path, by: str) -> None:
    secret = HASH if by == "JUPYTER_PASSWORD_HASH" else secrets.token_hex(32)
    (tmp_path / "secret").write_text(secret + "\n")
    container.program("jupyter", SHOW_JUPYTER)
    ended = container.call("jupyter", **{by: str(tmp_path / "secret") if by.endswith("FILE") else secret})
    identity = json.loads((container.run / "jupyter_config.json").read_text())["PasswordIdentityProvider"]
    key = "hashed_password" if by == "JUPYTER_PASSWORD_HASH" else "token"
    assert identity == {key: secret, "allow_password_change": False}
    assert f"--config={container.run}/jupyter_config.json" in ended.stdout
    assert secret not in ended.stdout + ended.stderr
    assert by not in ended.stdout


def test_servers_dont_run_as_root(container: Container) -> None:
    if not as_arbitrary_user():
        pytest.skip("the tests don't run as root")
    ended = subprocess.run(
        [sys.executable, str(ENTRYPOINT), "jupyter"],
        env=container.environment,
        capture_output=True,
        text=True,
    )
    assert ended.returncode == 2
    assert "don't run as root" in ended.stderr


def test_an_arbitrary_uid_has_a_name_and_a_home(container: Container) -> None:
    ended = container.call("python", "-c", "import getpass, os; print(getpass.getuser(), os.getuid())")
    assert ended.stdout == f"headrace {UID}\n" or not as_arbitrary_user()
    home = container.call("sh", "-c", "cd && pwd").stdout.strip()
    assert home == str(container.workspace)


def test_a_command_takes_the_place_of_the_entrypoint(container: Container) -> None:
    process = container.start("sh", "-c", "echo $$ > pid; exit 7")
    assert process.wait(120) == 7
    assert (container.workspace / "pid").read_text() == f"{process.pid}\n"
    missing = container.call("no-such-command")
    assert (missing.returncode, "no-such-command can't be started" in missing.stderr) == (2, True)


def test_train_and_doctor_are_headrace_verbs(container: Container) -> None:
    container.program("headrace", 'echo headrace "$@"')
    assert container.call("train", "/data", "--epochs", "3").stdout == "headrace train /data --epochs 3\n"
    assert container.call("doctor", "data", "/data").stdout == "headrace doctor data /data\n"


STOPPABLE = """trap 'kill $!; touch {stopped}; exit {code}' TERM
mkdir -p runs/a
sleep 600 &
touch ready; wait"""


@pytest.mark.parametrize(("stopped", "code"), [("runs/a/preempted", 75), ("elsewhere", 1)])
def test_sigterm_reaches_torchrun_whose_ranks_say_how_it_ended(
    container: Container, stopped: str, code: int
) -> None:
    """torchrun exits with 1 in both cases."""
    container.program("torchrun", STOPPABLE.format(stopped=stopped, code=1))
    process = container.start("train", "/data", "--out", "runs/a", PET_NPROC_PER_NODE="2")
    wait_for((container.workspace / "ready").exists, "torchrun")
    process.send_signal(signal.SIGTERM)
    assert process.wait(120) == code
    assert (container.workspace / stopped).exists()


@pytest.mark.long
@pytest.mark.timeout(900)
def test_a_real_torchrun_is_stopped_and_goes_on(container: Container) -> None:
    """Two ranks on the CPU."""
    tiny.data(container.workspace / "data")
    log = container.workspace / "runs" / "a" / "log.jsonl"
    command = "train data --out runs/a --resume auto --arch shufflenet_v2_x0_5 --epochs 20 --batch-size 10"
    command += " --size 32 --val-resize 40 --device cpu --workers 0 --log-every 1"
    environment = {"PET_NPROC_PER_NODE": "2", "OMP_NUM_THREADS": "1"}
    process = container.start(*command.split(), **environment)

    def at_work() -> bool:
        assert process.poll() is None, container.log.read_text()
        return log.exists() and '"kind": "step"' in log.read_text()

    wait_for(at_work, "a step", 300)
    process.send_signal(signal.SIGTERM)
    assert process.wait(120) == 75, container.log.read_text()
    stopped = json.loads(log.read_text().splitlines()[-1])
    assert (stopped["kind"], stopped["stopped_by"]) == ("end", "SIGTERM")
    assert container.start(*command.split(), **environment).wait(400) == 0, container.log.read_text()
    lines = [json.loads(line) for line in log.read_text().splitlines()]
    assert [line["step"] for line in lines if line["kind"] == "start"] == [0, stopped["steps"]]
    assert (lines[-1]["steps"], lines[-1]["stopped_by"]) == (20 * 5, None)


def test_what_an_earlier_run_left_says_nothing_of_this_one(container: Container) -> None:
    left = container.workspace / "runs" / "a" / "preempted"
    left.parent.mkdir(parents=True)
    left.write_text("12\n")
    container.program("torchrun", "exit 1")
    assert container.call("train", "/data", "--out=runs/a", PET_NPROC_PER_NODE="2").returncode == 1
    container.program("torchrun", 'echo "$@"; exit 0')
    ended = container.call("train", "/data", PET_NPROC_PER_NODE="2")
    assert (ended.returncode, ended.stdout) == (0, "-m headrace train /data\n")


def test_what_cant_be_started_is_said(container: Container) -> None:
    without = {"PATH": f"{container.bin}:/usr/bin:/bin"}
    ended = container.call("train", "/data", PET_NPROC_PER_NODE="2", **without)
    assert (ended.returncode, "torchrun can't be started" in ended.stderr) == (2, True)
    ended = container.call("jupyter", **without)
    assert (ended.returncode, "jupyter can't be started" in ended.stderr) == (2, True)


def test_sigterm_reaches_a_command(container: Container) -> None:
    process = container.start("bash", "-c", STOPPABLE.format(stopped="stopped", code=75))
    wait_for((container.workspace / "ready").exists, "the command")
    process.send_signal(signal.SIGTERM)
    assert process.wait(120) == 75
    assert (container.workspace / "stopped").exists()


def test_where_training_writes_by_default_is_known() -> None:
    default = inspect.signature(train).parameters["out"].default
    assert f'DEFAULT_OUT = Path("{default}")' in ENTRYPOINT.read_text()


def test_without_a_command_it_says_what_there_is(container: Container) -> None:
    ended = container.call()
    assert ended.returncode == 2
    assert "entrypoint jupyter ssh" in ended.stdout
