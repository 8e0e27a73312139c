"""A stand-in for S3 on loopback that knows objects, lists and ranges, for the real client to talk to."""

from __future__ import annotations

import http.server
import threading
import urllib.parse
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final
from xml.sax.saxutils import escape

CREDENTIALS: Final = {
    "AWS_ACCESS_KEY_ID": "key",
    "AWS_SECRET_ACCESS_KEY": "secret",
    "AWS_EC2_METADATA_DISABLED": "true",
}


class StandIn(http.server.ThreadingHTTPServer):
    """Objects by key of one bucket, and the requests that were made."""

    daemon_threads = True

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), Handler)
        self.objects: dict[str, bytes] = {}
        self.uploads: dict[str, dict[int, bytes]] = {}
        self.is_closed = False
        self.parts_max = 10_000
        self.requests: list[tuple[str, str]] = []

    def uri(self, key: str) -> str:
        query = urllib.parse.urlencode(
            {"endpoint_override": f"127.0.0.1:{self.server_port}", "scheme": "http", "region": "us-east-1"}
        )
        return f"s3://bucket/{key}?{query}"

    def files(self) -> dict[str, bytes]:
        """Return the objects that are no folders: the client makes one where it deleted the last file."""
        return {key: value for key, value in self.objects.items() if not key.endswith("/")}

    def put_all(self, directory: Path, prefix: str) -> None:
        for path in directory.rglob("*.parquet"):
            self.objects[f"{prefix}/{path.relative_to(directory).as_posix()}"] = path.read_bytes()


class Handler(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server: StandIn

    def log_message(self, *_: Any) -> None:
        return

    def _answer(self, status: int, body: bytes = b"", **headers: str) -> None:
        self.send_response(status)
        length = headers.pop("length", str(len(body)))
        for name, value in {"ETag": '"e"', "Last-Modified": "Tue, 14 Nov 2023 22:13:20 GMT", **headers}.items():
            self.send_header(name.replace("_", "-"), value)
        self.send_header("Content-Length", length)
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)

    def parse_request(self) -> bool:
        if super().parse_request():
            if not self.server.is_closed:
                return True
            self._answer(403, b"<Error><Code>AccessDenied</Code><Message>closed</Message></Error>")
        return False

    def _query(self) -> dict[str, str]:
        return dict(urllib.parse.parse_qsl(urllib.parse.urlsplit(self.path).query, keep_blank_values=True))

    def _key(self) -> str:
        path = urllib.parse.unquote(urllib.parse.urlsplit(self.path).path)
        self.server.requests.append((self.command, path))
        return path.removeprefix("/bucket").removeprefix("/")

    def do_HEAD(self) -> None:
        found = self.server.objects.get(self._key())
        self._answer(404) if found is None else self._answer(200, found)

    def do_GET(self) -> None:
        query, key = self._query(), self._key()
        if "list-type" in query:
            self._answer(200, self._list(query.get("prefix", ""), query.get("delimiter", "")))
            return
        found = self.server.objects.get(key)
        if found is None:
            self._answer(404, b"<Error><Code>NoSuchKey</Code></Error>")
            return
        first, _, last = self.headers.get("Range", "bytes=0-").removeprefix("bytes=").partition("-")
        part = found[int(first) : int(last) + 1 if last else None]
        self._answer(206, part, Content_Range=f"bytes {first}-{int(first) + len(part) - 1}/{len(found)}")

    def _list(self, prefix: str, delimiter: str) -> bytes:
        keys, folders = [], set()
        for key, value in sorted(self.server.objects.items()):
            if key.startswith(prefix):
                rest = key[len(prefix) :]
                if delimiter and delimiter in rest:
                    folders.add(prefix + rest.partition(delimiter)[0] + delimiter)
                else:
                    keys.append((key, len(value)))
        contents = "".join(
            f"<Contents><Key>{escape(key)}</Key><Size>{size}</Size>"
            "<LastModified>2023-11-14T22:13:20.000Z</LastModified></Contents>"
            for key, size in keys
        )
        common = "".join(f"<CommonPrefixes><Prefix>{escape(one)}</Prefix></CommonPrefixes>" for one in sorted(folders))
        count = len(keys) + len(folders)
        return (
            f"<ListBucketResult><Name>bucket</Name><Prefix>{escape(prefix)}</Prefix><KeyCount>{count}</KeyCount>"
            f"<MaxKeys>1000</MaxKeys><IsTruncated>false</IsTruncated>{contents}{common}</ListBucketResult>"
        ).encode()

    def _body(self) -> bytes:
        if self.headers.get("Transfer-Encoding", "") == "chunked":
            body = b""
            while size := int(self.rfile.readline(), 16):
                body += self.rfile.read(size)
                self.rfile.readline()
            self.rfile.readline()
        else:
            body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
        return _unchunked(body) if "aws-chunked" in self.headers.get("Content-Encoding", "") else body

    def do_PUT(self) -> None:
        query, key, body = self._query(), self._key(), self._body()
        if int(query.get("partNumber", 1)) > self.server.parts_max:
            self._answer(403, b"<Error><Code>QuotaExceeded</Code><Message>full</Message></Error>")
            return
        if "uploadId" not in query:
            self.server.objects[key] = body
        else:
            self.server.uploads[query["uploadId"]][int(query["partNumber"])] = body
        self._answer(200)

    def do_POST(self) -> None:
        query, key, _ = self._query(), self._key(), self._body()
        if "uploads" in query:
            name = str(len(self.server.uploads))
            self.server.uploads[name] = {}
            head = f"<Bucket>bucket</Bucket><Key>{escape(key)}</Key><UploadId>{name}</UploadId>"
            self._answer(200, f"<InitiateMultipartUploadResult>{head}</InitiateMultipartUploadResult>".encode())
            return
        parts = self.server.uploads.pop(query["uploadId"])
        self.server.objects[key] = b"".join(parts[number] for number in sorted(parts))
        self._answer(200, b"<CompleteMultipartUploadResult><ETag>e</ETag></CompleteMultipartUploadResult>")

    def do_DELETE(self) -> None:
        query, key = self._query(), self._key()
        if "uploadId" in query:
            self.server.uploads.pop(query["uploadId"], None)
        else:
            self.server.objects.pop(key, None)
        self._answer(204)


def _unchunked(body: bytes) -> bytes:
    whole = b""
    while True:
        head, _, body = body.partition(b"\r\n")
        size = int(head.partition(b";")[0], 16)
        if size == 0:
            return whole
        whole, body = whole + body[:size], body[size + 2 :]


@contextmanager
def standing_in() -> Iterator[StandIn]:
    """Give a stand-in that serves."""
    server = StandIn()
    thread = threading.Thread(target=server.serve_forever, args=(0.05,), daemon=True)
    thread.start()
    yield server
    server.shutdown()
    server.server_close()
    thread.join()
