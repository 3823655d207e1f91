"""The admin HTTP of a node: it serves from `open` to `close`, with the certificate of the moment."""

from __future__ import annotations

import asyncio
import ssl
from pathlib import Path

import pytest
from prometheus_client.registry import CollectorRegistry

from certificates import Authority
from headrace.api.admin import Admin
from headrace.api.app import application, bind
from headrace.api.server import Bounds
from headrace.net.tls import TlsFiles, UnusableCertificate, server_context


async def serving(admin: Admin) -> int:
    """Open it on a free port, which is returned."""
    bound = bind("http://127.0.0.1:0", "127.0.0.1", 0)
    port = int(bound.getsockname()[1])
    app = application(lambda: "", CollectorRegistry())
    await admin.open(bound, f"http://127.0.0.1:{port}", app, lambda _what, _why: None, Bounds())
    return port


async def status(port: int, context: ssl.SSLContext | None = None) -> bytes:
    """The first line of the answer to `/readyz`."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port, ssl=context)
    writer.write(b"GET /readyz HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n")
    answer = await reader.read()
    writer.close()
    return answer.split(b"\r\n", 1)[0]


def test_it_serves_until_it_is_closed() -> None:
    async def life() -> None:
        admin = Admin(lambda: None)
        port = await serving(admin)
        assert admin.url == f"http://127.0.0.1:{port}"
        assert await status(port) == b"HTTP/1.1 200 OK"
        await admin.close()
        with pytest.raises(OSError, match="onnect"):
            await status(port)

    asyncio.run(life())


def test_one_that_was_never_opened_is_reloaded_and_closed() -> None:
    admin = Admin(lambda: None)
    admin.reload()
    asyncio.run(admin.close())
    assert admin.url == ""


def test_a_start_without_a_certificate_gives_up_the_socket() -> None:
    def no_certificate() -> ssl.SSLContext:
        raise UnusableCertificate("server.pem", "expired")

    async def start() -> None:
        bound = bind("http://127.0.0.1:0", "127.0.0.1", 0)
        app = application(lambda: "", CollectorRegistry())
        with pytest.raises(UnusableCertificate):
            await Admin(no_certificate).open(bound, "", app, lambda _what, _why: None, Bounds())
        assert bound.fileno() == -1

    asyncio.run(start())


def test_a_certificate_that_cannot_be_used_leaves_the_old_one(tmp_path: Path) -> None:
    authority = Authority(tmp_path)
    certificate, key = authority.issue("localhost")
    known = ssl.create_default_context(cafile=str(authority.ca))
    known.check_hostname = False

    def context() -> ssl.SSLContext:
        return server_context(TlsFiles(str(certificate), str(key), "", "none"), "http/1.1")

    async def life() -> None:
        admin = Admin(context)
        port = await serving(admin)
        certificate.write_bytes(b"none")
        with pytest.raises(UnusableCertificate):
            admin.reload()
        assert await status(port, known) == b"HTTP/1.1 200 OK"
        await admin.close()

    asyncio.run(life())
