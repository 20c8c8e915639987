"""A package index on this machine: handmade wheels behind a small HTTP server, as PEP 503 pages or as PEP 691 JSON."""

from __future__ import annotations

import gzip
import hashlib
import io
import json
import tarfile
import threading
import zipfile
from base64 import b64encode
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

JSON = "application/vnd.pypi.simple.v1+json"


def wheel_bytes(name: str, version: str, requires: tuple[str, ...] = (), tag: str = "py3-none-any") -> bytes:
    """Return an installable wheel with one empty module; equal arguments give equal bytes."""
    info = f"{name}-{version}.dist-info"
    files = {
        f"{name}/__init__.py": "",
        f"{info}/METADATA": f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n"
        + "".join(f"Requires-Dist: {line}\n" for line in requires),
        f"{info}/WHEEL": f"Wheel-Version: 1.0\nGenerator: test\nRoot-Is-Purelib: true\nTag: {tag}\n",
    }
    record = "".join(f"{path},{_record_hash(text)},{len(text)}\n" for path, text in files.items())
    files[f"{info}/RECORD"] = f"{record}{info}/RECORD,,\n"
    output = io.BytesIO()
    with zipfile.ZipFile(output, "w") as archive:
        for path, text in files.items():
            archive.writestr(zipfile.ZipInfo(path), text)
    return output.getvalue()


def sdist_bytes(name: str, version: str, files: Mapping[str, str]) -> bytes:
    """Return a source distribution with these files below its folder; equal arguments give equal bytes."""
    output = io.BytesIO()
    with gzip.GzipFile(fileobj=output, mode="wb", mtime=0) as packed, tarfile.open(fileobj=packed, mode="w") as archive:
        for path, text in files.items():
            info = tarfile.TarInfo(f"{name}-{version}/{path}")
            info.size = len(text.encode())
            archive.addfile(info, io.BytesIO(text.encode()))
    return output.getvalue()


def _record_hash(text: str) -> str:
    return "sha256=" + b64encode(hashlib.sha256(text.encode()).digest(), altchars=b"-_").decode().rstrip("=")


@dataclass(kw_only=True)
class PackageIndex:
    """Projects by name, their files by file name; `password` closes the index.

    `as_json` adds sizes and dates, `metadata` the files beside the wheels (PEP 658), `hashes` the sha256.
    """

    url: str = ""
    files: dict[str, dict[str, bytes]] = field(default_factory=dict)
    uploaded: dict[str, str] = field(default_factory=dict)
    as_json: bool = True
    hashes: bool = True
    metadata: bool = False
    password: str | None = None
    asked: list[str] = field(default_factory=list)

    @property
    def closed_url(self) -> str:
        """The URL with a user and the password."""
        return self.url.replace("://", f"://user:{self.password}@")

    def add(
        self,
        name: str,
        version: str,
        *requires: str,
        tag: str = "py3-none-any",
        uploaded: str = "2026-01-01T00:00:00Z",
    ) -> bytes:
        """Publish a wheel and return its bytes."""
        filename = f"{name.replace('-', '_')}-{version}-{tag}.whl"
        data = wheel_bytes(name.replace("-", "_"), version, requires, tag)
        self.files.setdefault(name, {})[filename] = data
        self.uploaded[filename] = uploaded
        return data

    def add_sdist(
        self, name: str, version: str, files: Mapping[str, str], *, uploaded: str = "2026-01-01T00:00:00Z"
    ) -> bytes:
        """Publish a source distribution and return its bytes."""
        filename = f"{name.replace('-', '_')}-{version}.tar.gz"
        data = sdist_bytes(name.replace("-", "_"), version, files)
        self.files.setdefault(name, {})[filename] = data
        self.uploaded[filename] = uploaded
        return data

    def page(self, project: str) -> tuple[str, bytes]:
        """Return the media type and the bytes of a project's page; the links of JSON are absolute, others relative."""
        files = self.files[project]
        if not self.as_json:
            links = [f'<a href="/files/{name}{self._fragment(data)}">{name}</a>' for name, data in files.items()]
            return "text/html", "\n".join(links).encode()
        listed = [
            {
                "filename": name,
                "url": self.url.replace("/simple/", f"/files/{name}"),
                "hashes": {"sha256": hashlib.sha256(data).hexdigest()} if self.hashes else {},
                "size": len(data),
                "upload-time": self.uploaded[name],
            }
            for name, data in files.items()
        ]
        versions = sorted({name.removesuffix(".tar.gz").split("-")[1] for name in files})
        meta = {"api-version": "1.1"}
        return JSON, json.dumps({"meta": meta, "name": project, "versions": versions, "files": listed}).encode()

    def metadata_of(self, filename: str) -> bytes:
        """Return the METADATA of a wheel."""
        data = next(files[filename] for files in self.files.values() if filename in files)
        with zipfile.ZipFile(io.BytesIO(data)) as archive:
            return archive.read(next(name for name in archive.namelist() if name.endswith("METADATA")))

    def _fragment(self, data: bytes) -> str:
        return f"#sha256={hashlib.sha256(data).hexdigest()}" if self.hashes else ""


@contextmanager
def serve(index: PackageIndex) -> Iterator[PackageIndex]:
    """Serve an index on the loopback device until the end of the block."""

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            index.asked.append(self.path)
            expected = b64encode(f"user:{index.password}".encode()).decode()
            if index.password and self.headers.get("Authorization") != f"Basic {expected}":
                self._send(401, "text/plain", b"")
                return
            _, place, name, *_ = [*self.path.split("/"), "", ""]
            if place == "simple" and name in index.files:
                self._send(200, *index.page(name))
                return
            found = [files[name] for files in index.files.values() if place == "files" and name in files]
            if index.metadata and name.endswith(".whl.metadata"):
                found = [index.metadata_of(name.removesuffix(".metadata"))]
            self._send(200 if found else 404, "application/octet-stream", found[0] if found else b"")

        def _send(self, status: int, media_type: str, body: bytes) -> None:
            self.send_response(status)
            self.send_header("Content-Type", media_type)
            self.send_header("Content-Length", str(len(body)))
            if status == 401:
                self.send_header("WWW-Authenticate", "Basic")
            self.end_headers()
            if self.command == "GET":
                self.wfile.write(body)

        def do_HEAD(self) -> None:
            self.do_GET()

        def log_message(self, format: str, *args: object) -> None:  # noqa: A002 - signature of the base class
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02})
    thread.start()
    try:
        index.url = f"http://127.0.0.1:{server.server_address[1]}/simple/"
        yield index
    finally:
        server.shutdown()
        thread.join()
        server.server_close()
