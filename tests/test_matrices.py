"""Fetching R1's matrices, from a server on this machine."""

import contextlib
import gzip
import http.server
import io
import tarfile
import threading

import numpy as np
import pytest
import scipy.io
import scipy.sparse

from experiments import matrices, suitesparse
from experiments.matrices import Entry

X = scipy.sparse.coo_matrix(np.arange(1.0, 13).reshape(4, 3))
WANTED = {"small": Entry("Group", 4, 3, 12)}


def matrix_market() -> bytes:
    file = io.BytesIO()
    scipy.io.mmwrite(file, X)
    return file.getvalue()


def archive(*members: tuple[str, bytes]) -> bytes:
    file = io.BytesIO()
    with tarfile.open(fileobj=file, mode="w:gz") as tar:
        for name, content in members:
            info = tarfile.TarInfo(name)
            info.size = len(content)
            tar.addfile(info, io.BytesIO(content))
    return file.getvalue()


GOOD = archive(("small/readme.txt", b"words"), ("small/small.mtx", matrix_market()))


class Server(http.server.HTTPServer):
    def __init__(self):
        super().__init__(("127.0.0.1", 0), Handler)
        self.files = {"/Group/small.tar.gz": GOOD}
        self.most: int | None = None  # bytes after which an answer breaks off
        self.ranges: list[str | None] = []  # that were asked for
        self.site = f"http://127.0.0.1:{self.server_port}"


class Handler(http.server.BaseHTTPRequestHandler):
    server: Server

    def do_GET(self):
        content = self.server.files.get(self.path)
        if content is None:
            self.send_error(404)
            return
        asked = self.headers.get("Range")
        self.server.ranges.append(asked)
        start = int(asked.removeprefix("bytes=").removesuffix("-")) if asked else 0
        if asked and start >= len(content):
            self.send_error(416)
            return
        self.send_response(206 if asked else 200)
        self.send_header("Content-Length", str(len(content) - start))
        self.end_headers()
        with contextlib.suppress(ConnectionError):
            self.wfile.write(content[start:][: self.server.most])

    def log_message(self, *args):
        pass


@pytest.fixture
def server():
    server = Server()
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    yield server
    server.shutdown()
    server.server_close()
    thread.join()


def test_the_matrix_alone_is_kept_and_fetched_once(server, tmp_path, capsys):
    matrices.download(tmp_path / "new", server.site, WANTED)
    (path,) = (tmp_path / "new").iterdir()
    assert path.name == "small.mtx" and path.read_bytes() == matrix_market()
    assert [p.name for p in suitesparse.files(tmp_path)] == ["small.mtx"]
    matrices.download(tmp_path / "new", server.site, WANTED)
    assert len(server.ranges) == 1
    said = capsys.readouterr().out
    assert "[1/1] small: fetching" in said and "small: is there" in said


def test_it_goes_on_where_it_was_broken_off(server, tmp_path):
    server.most = 100
    with pytest.raises(SystemExit, match=r"1 of 1 matrices did not come.*small: 100 of .*same command goes on"):
        matrices.download(tmp_path, server.site, WANTED)
    assert [p.name for p in tmp_path.iterdir()] == ["small.tar.gz.part"]
    server.most = None
    matrices.download(tmp_path, server.site, WANTED)
    assert server.ranges == [None, "bytes=100-"] and [p.name for p in tmp_path.iterdir()] == ["small.mtx"]


def test_a_whole_part_is_not_fetched_again(server, tmp_path):
    (tmp_path / "small.tar.gz.part").write_bytes(GOOD)
    matrices.download(tmp_path, server.site, WANTED)
    assert (tmp_path / "small.mtx").exists()


def test_a_server_that_cannot_go_on_sends_all_of_it(server, tmp_path, monkeypatch):
    (tmp_path / "small.tar.gz.part").write_bytes(b"x" * 50)
    answer = Handler.send_response
    monkeypatch.setattr(Handler, "send_response", lambda self, code, *m: answer(self, 200, *m))
    server.files["/Group/small.tar.gz"] = b"x" * 50 + GOOD  # what comes after the 50 bytes it was asked to leave out
    matrices.download(tmp_path, server.site, WANTED)
    assert (tmp_path / "small.mtx").exists()


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        (b"<html>log in first</html>", "Not a gzipped file"),
        (archive(("../small.mtx", matrix_market())), "has no file small/small.mtx"),
        (archive(("small/small.mtx", matrix_market().replace(b"4 3 12", b"4 3 11"))), "expected 4 x 3 with 12"),
        (archive(("small/small.mtx", matrix_market()[:-10])), "deleted"),
        (gzip.compress(gzip.decompress(GOOD))[:-8] + b"\0" * 8, "CRC"),
    ],
    ids=["a page", "elsewhere", "another size", "an entry is missing", "checksum"],
)
def test_what_is_not_the_matrix_is_deleted(server, tmp_path, content, reason):
    server.files["/Group/small.tar.gz"] = content
    folder = tmp_path / "folder"
    with pytest.raises(SystemExit, match=reason):
        matrices.download(folder, server.site, WANTED)
    assert not list(folder.iterdir()) and list(tmp_path.iterdir()) == [folder]


def test_what_does_not_come_costs_only_itself(server, tmp_path):
    with pytest.raises(SystemExit, match=r"1 of 2 matrices did not come from http.*absent: .*404"):
        matrices.download(tmp_path, server.site, {"absent": Entry("Group", 1, 1, 1)} | WANTED)
    assert (tmp_path / "small.mtx").exists()


def test_without_a_network_it_says_what_to_do(server, tmp_path):
    server.shutdown()
    server.server_close()
    with pytest.raises(SystemExit, match=r"refused.*Without a network, get NAME\.mtx of each"):
        matrices.download(tmp_path, server.site, WANTED)
