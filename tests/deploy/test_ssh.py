"""A real sshd and a real client: keys are let in, and nothing else is."""

from __future__ import annotations

import ctypes.util
import os
import pwd
import shutil
import signal
import socket
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from support.container import ROOT, UID, Container, as_arbitrary_user

SSHD = shutil.which("sshd", path="/usr/sbin:/usr/local/sbin:/sbin")

pytestmark = [
    pytest.mark.skipif(SSHD is None, reason="sshd isn't installed (openssh-server)"),
    pytest.mark.skipif(shutil.which("ssh") is None, reason="ssh isn't installed (openssh-client)"),
    pytest.mark.skipif(
        os.geteuid() == 0 and ctypes.util.find_library("nss_wrapper") is None,
        reason="an arbitrary uid has no name without libnss-wrapper",
    ),
]

USER = "headrace" if os.geteuid() == 0 else pwd.getpwuid(os.getuid()).pw_name


def make_key(path: Path) -> Path:
    subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", path], check=True)
    return path


class Client:
    """ssh, with one key and one host to trust."""

    def __init__(self, folder: Path, container: Container) -> None:
        self.key, self.other_key = make_key(folder / "key"), make_key(folder / "other")
        self.known_hosts = folder / "known_hosts"
        self.port = container.ports["ssh"]

    def trust(self, container: Container) -> None:
        public = (container.workspace / ".headrace" / "ssh_host_ed25519_key.pub").read_text()
        self.known_hosts.write_text(f"[127.0.0.1]:{self.port} {public}")

    def __call__(
        self, *command: str, user: str = USER, key: Path | None = None, options: tuple[str, ...] = ()
    ) -> subprocess.CompletedProcess[str]:
        given = (
            "BatchMode=yes",
            "IdentitiesOnly=yes",
            "IdentityAgent=none",
            "StrictHostKeyChecking=yes",
            f"UserKnownHostsFile={self.known_hosts}",
            *options,
        )
        options_given = [part for option in given for part in ("-o", option)]
        where = ["-F", "none", "-i", str(key or self.key), "-p", str(self.port), f"{user}@127.0.0.1"]
        return subprocess.run(
            ["ssh", *options_given, *where, *command],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=60,
        )


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Container, Client]]:
    folder = tmp_path_factory.mktemp("ssh")
    container = Container(folder / "container")
    client = Client(folder, container)
    container.environment["SSH_AUTHORIZED_KEYS_FILE"] = f"{client.key}.pub"
    container.serve("ssh")
    client.trust(container)
    yield container, client
    container.close()


def test_the_right_key_is_let_in(server: tuple[Container, Client]) -> None:
    container, client = server
    ended = client("id -u; echo $HOME; echo $PATH")
    assert ended.returncode == 0, ended.stderr + container.log.read_text()
    uid, home, path = ended.stdout.splitlines()
    assert int(uid) == (UID if os.geteuid() == 0 else os.geteuid())
    assert path == container.environment["PATH"]
    assert home == (str(container.workspace) if os.geteuid() == 0 else str(Path.home()))


def test_a_session_has_a_name(server: tuple[Container, Client]) -> None:
    assert server[1]("whoami").stdout == f"{USER}\n"


def test_another_key_is_refused(server: tuple[Container, Client]) -> None:
    client = server[1]
    ended = client("true", key=client.other_key)
    assert ended.returncode == 255
    assert "Permission denied (publickey)." in ended.stderr


@pytest.mark.parametrize(
    "method", ["password", "keyboard-interactive", "hostbased", "gssapi-with-mic", "none"]
)
def test_nothing_but_a_key_is_offered(server: tuple[Container, Client], method: str) -> None:
    """The server names what it would take: that is public keys, whatever the client would rather do."""
    ended = server[1]("true", options=(f"PreferredAuthentications={method}", "PubkeyAuthentication=no"))
    assert ended.returncode == 255
    assert "Permission denied (publickey)." in ended.stderr


@pytest.mark.parametrize("user", ["root", "nobody", "no-such-user"])
def test_no_other_user_is_let_in_even_with_the_key(server: tuple[Container, Client], user: str) -> None:
    ended = server[1]("true", user=user)
    assert ended.returncode == 255
    assert "Permission denied (publickey)." in ended.stderr


def test_local_forwarding_alone_goes_through(server: tuple[Container, Client]) -> None:
    container, client = server
    forward = (
        f"RemoteForward=127.0.0.1:{container.ports['jupyter']} 127.0.0.1:1",
        "ExitOnForwardFailure=yes",
    )
    ended = client("true", options=forward)
    assert ended.returncode == 255
    assert "remote port forwarding failed" in ended.stderr


def test_files_are_copied_by_sftp(server: tuple[Container, Client], tmp_path: Path) -> None:
    container, client = server
    (container.workspace / "note").write_text("here")
    options = ["-q", "-F", "none", "-i", str(client.key), "-P", str(client.port), "-o", "BatchMode=yes"]
    options += ["-o", f"UserKnownHostsFile={client.known_hosts}"]
    source = f"{USER}@127.0.0.1:{container.workspace}/note"
    command = ["sftp", *options, source, str(tmp_path / "copy")]
    subprocess.run(command, check=True, capture_output=True, timeout=60)
    assert (tmp_path / "copy").read_text() == "here"


def test_a_start_keeps_the_host_key_and_takes_one_that_a_volume_opened(tmp_path: Path) -> None:
    """fsGroup of Kubernetes gives the group of a volume its files, which sshd would refuse."""
    container = Container(tmp_path / "container")
    client = Client(tmp_path, container)
    keys = Path(f"{client.key}.pub").read_text()
    first = container.serve("ssh", SSH_AUTHORIZED_KEYS=keys)
    client.trust(container)
    kept = container.workspace / ".headrace" / "ssh_host_ed25519_key"
    assert kept.stat().st_mode & 0o077 == 0
    first.send_signal(signal.SIGTERM)
    first.wait(120)
    (container.run / "services").unlink()
    assert client("true").returncode == 255
    assert container.call("health").returncode == 0  # nothing was started
    kept.chmod(0o660)
    container.serve("ssh", SSH_AUTHORIZED_KEYS=keys)
    assert client("true").returncode == 0
    container.close()
    assert container.call("health").returncode == 1


def test_the_container_ends_with_the_first_of_its_servers(tmp_path: Path) -> None:
    container = Container(tmp_path / "container")
    container.program("jupyter", "exit 3")
    keys = Path(f"{make_key(tmp_path / 'key')}.pub").read_text()
    process = container.start("jupyter", "ssh", SSH_AUTHORIZED_KEYS=keys)
    assert process.wait(120) == 3
    with pytest.raises(ConnectionRefusedError):
        socket.create_connection(("127.0.0.1", container.ports["ssh"])).close()


def test_the_configuration_says_what_the_tests_found(tmp_path: Path) -> None:
    """The settings are read as sshd itself understands them; it lists all of them."""
    assert SSHD is not None
    shown = subprocess.run(
        [
            *as_arbitrary_user(),
            SSHD,
            "-T",
            "-f",
            ROOT / "deploy" / "sshd_config",
            "-h",
            make_key(tmp_path / "key"),
        ],
        capture_output=True,
        text=True,
        check=True,
    )
    settings = dict(line.split(" ", 1) for line in shown.stdout.lower().splitlines() if " " in line)
    wanted = {
        "passwordauthentication": "no",
        "kbdinteractiveauthentication": "no",
        "permitrootlogin": "no",
        "permitemptypasswords": "no",
        "authenticationmethods": "publickey",
        "allowagentforwarding": "no",
        "x11forwarding": "no",
        "permittunnel": "no",
        "gatewayports": "no",
        "usepam": "no",
    }
    assert {name: settings[name] for name in wanted} == wanted
