"""moto's S3 server on loopback: it checks signatures and policies on demand, and names its errors as
AWS does."""

from __future__ import annotations

import json
import subprocess
import sys
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import urlencode

from support.object_stores import PATIENCE, free_port, wait_for_port

# The service in a request's signature decides for whom moto takes it to be.
SIGNED = "AWS4-HMAC-SHA256 Credential=admin/20260101/us-east-1/{}/aws4_request, Signature=0"
READS = {"Version": "2012-10-17", "Statement": {"Effect": "Allow", "Action": "s3:GetObject", "Resource": "*"}}
UNCHECKED = 1 << 30


@dataclass
class Moto:
    """A running server.

    Attributes:
        url: of it.
    """

    url: str

    def put(self, path: str, data: bytes = b"", **fields: str) -> None:
        """Makes the bucket or object at `path`; signatures aren't to be checked at that time."""
        # Without a type of its own urllib says that it is a form, which moto takes apart.
        given = {"Authorization": SIGNED.format("s3"), "Content-Type": "application/octet-stream"}
        self._ask("PUT", path, data, {**given, **fields})

    def upload(self, folder: Path, prefix: str) -> None:
        """All files of `folder`."""
        for file in folder.iterdir():
            self.put(f"{prefix}/{file.name}", file.read_bytes())

    def check_after(self, requests: int) -> None:
        """Has signatures and policies checked after so many requests."""
        self._ask("POST", "moto-api/reset-auth", str(requests).encode(), {"Content-Type": "text/plain"})

    def user(self, name: str) -> tuple[str, str]:
        """Makes a user who may do nothing; (access key ID, secret)."""
        self._iam(Action="CreateUser", UserName=name)
        said = self._iam(Action="CreateAccessKey", UserName=name)
        key, secret = (
            said.split(f"<{tag}>", 1)[1].split("<", 1)[0] for tag in ("AccessKeyId", "SecretAccessKey")
        )
        return key, secret

    def let_read(self, name: str) -> None:
        """The user may read all objects."""
        self._iam(Action="PutUserPolicy", UserName=name, PolicyName="reads", PolicyDocument=json.dumps(READS))

    def _iam(self, **fields: str) -> str:
        data = urlencode({"Version": "2010-05-08", **fields}).encode()
        return self._ask("POST", "", data, {"Authorization": SIGNED.format("iam")})

    def _ask(self, method: str, path: str, data: bytes, fields: dict[str, Any]) -> str:
        request = urllib.request.Request(f"{self.url}/{path}", data, fields, method=method)
        with urllib.request.urlopen(request, timeout=PATIENCE) as answer:
            return str(answer.read().decode())


@contextmanager
def moto_server() -> Iterator[Moto]:
    """A server of its own, in a process."""
    port = free_port()
    server = subprocess.Popen(
        [sys.executable, "-W", "ignore", "-m", "moto.server", "-H", "127.0.0.1", "-p", str(port)],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    try:
        wait_for_port(port, server)
        yield Moto(f"http://127.0.0.1:{port}")
    finally:
        server.terminate()
        server.wait(PATIENCE)
