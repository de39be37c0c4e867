"""A real JupyterLab, asked over HTTP: the right token is served, nobody else is."""

from __future__ import annotations

import http.client
import http.cookiejar
import itertools
import json
import secrets
import shutil
import signal
import subprocess
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path

import pytest

from support.container import Container
from support.sampling import one_in

# Not imported here, which takes seconds: the server is another process.
pytestmark = pytest.mark.skipif(find_spec("jupyterlab") is None, reason="jupyterlab isn't installed")

TOKEN = secrets.token_hex(32)
PASSWORD = "correct horse battery staple"
CHROMIUM = shutil.which("chromium")


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Container]:
    container = Container(tmp_path_factory.mktemp("jupyter"))
    (container.workspace / "here.txt").write_text("found")
    secret = container.folder / "token"
    secret.write_text(TOKEN + "\n")
    process = container.serve("jupyter", JUPYTER_TOKEN_FILE=str(secret))
    yield container
    try:
        process.send_signal(signal.SIGTERM)
        assert process.wait(120) == 0  # it shuts down by itself
        assert container.call("health").returncode == 1
    finally:
        container.close()


def url(container: Container) -> str:
    return f"http://127.0.0.1:{container.ports['jupyter']}"


def ask(container: Container, path: str, **headers: str) -> tuple[int, str, str]:
    """Status, where it sends the browser to, and body."""
    connection = http.client.HTTPConnection("127.0.0.1", container.ports["jupyter"], timeout=60)
    connection.request("GET", path, headers=headers)
    answer = connection.getresponse()
    result = answer.status, answer.getheader("Location", ""), answer.read().decode()
    connection.close()
    return result


HEADERS = {
    "none": None,
    "empty": "token ",
    "shorter": f"token {TOKEN[:-1]}",
    "longer": f"token {TOKEN}0",
    "basic": f"Basic {TOKEN}",
}


@pytest.mark.parametrize(
    ("header", "path"),
    one_in(3, itertools.product(HEADERS, ["contents", "kernels", "terminals", "sessions"])),
)
def test_no_token_and_wrong_tokens_are_refused(server: Container, header: str, path: str) -> None:
    token = HEADERS[header]
    status, _, body = ask(server, f"/api/{path}", **({} if token is None else {"Authorization": token}))
    assert status == 403
    assert "here.txt" not in body


@pytest.mark.parametrize("query", ["", "?token=", f"?token={TOKEN[::-1]}"], ids=["none", "empty", "wrong"])
def test_the_page_without_the_token_is_the_login(server: Container, query: str) -> None:
    status, location, _ = ask(server, f"/lab{query}")
    assert status == 302
    assert urllib.parse.urlsplit(location).path == "/login"


def test_the_right_token_is_served(server: Container) -> None:
    status, _, body = ask(server, "/api/contents", Authorization=f"token {TOKEN}")
    assert status == 200
    assert [entry["name"] for entry in json.loads(body)["content"]] == ["here.txt"]
    status, _, body = ask(server, f"/lab?token={TOKEN}")
    assert status == 200
    assert "JupyterLab" in body


def test_behind_a_proxy_it_is_asked_by_another_name(server: Container) -> None:
    """Not refused for the name, and not let in for it either."""
    host = {"Host": "notebook.example.com"}
    assert ask(server, "/api/contents", **host)[0] == 403
    assert ask(server, "/api/contents", **host, Authorization=f"token {TOKEN}")[0] == 200


def test_the_token_is_in_no_list_of_processes_and_no_environment(server: Container) -> None:
    """All processes here are looked at, the server's among them."""
    lists = {}
    for process in Path("/proc").glob("[0-9]*"):
        try:
            lists[process.name] = (process / "cmdline").read_bytes() + (process / "environ").read_bytes()
        except OSError:
            continue  # it has ended, or isn't ours
    assert any(b"jupyter_config.json" in text for text in lists.values())
    assert not [number for number, text in lists.items() if TOKEN.encode() in text]
    assert TOKEN not in server.log.read_text()


@pytest.mark.long
def test_a_password_logs_in_by_its_hash(container: Container) -> None:
    from jupyter_server.auth import passwd

    container.serve("jupyter", JUPYTER_PASSWORD_HASH=passwd(PASSWORD))
    base = url(container)
    for password, status, path in (("a wrong one", 401, "/login"), (PASSWORD, 200, "/lab")):
        jar = http.cookiejar.CookieJar()
        browser = urllib.request.build_opener(urllib.request.HTTPCookieProcessor(jar))
        browser.open(f"{base}/login").close()
        form = {"password": password, "_xsrf": next(c.value for c in jar if c.name == "_xsrf") or ""}
        try:
            answer = browser.open(f"{base}/login?next=/lab", urllib.parse.urlencode(form).encode())
        except urllib.error.HTTPError as error:
            answer = error
        with answer:
            assert (answer.status, urllib.parse.urlsplit(answer.url).path) == (status, path)
    assert ask(container, "/api/contents")[0] == 403
    assert ask(container, "/api/contents", Authorization="token ")[0] == 403


@pytest.mark.long
@pytest.mark.skipif(CHROMIUM is None, reason="chromium is not on PATH")
@pytest.mark.parametrize(
    ("query", "shown"),
    [("", 'id="login_submit"'), (f"?token={TOKEN}", 'id="jp-MainLogo"')],
    ids=["no token", "the token"],
)
def test_a_browser_shows_the_lab_or_the_login(
    server: Container, tmp_path: Path, query: str, shown: str
) -> None:
    assert CHROMIUM is not None
    options = ("--headless", "--no-sandbox", "--disable-gpu", "--virtual-time-budget=20000", "--dump-dom")
    page = subprocess.run(
        [CHROMIUM, *options, f"--user-data-dir={tmp_path}", f"{url(server)}/lab{query}"],
        capture_output=True,
        text=True,
        timeout=120,
        check=True,
    ).stdout
    assert shown in page
