from __future__ import annotations

import gzip
import hashlib
import re
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest

from tacit.data.sources import Published, contents, download_file, folders
from tacit.errors import BadData, MissingFiles

BODY = bytes(range(256)) * 4000
SUM = hashlib.sha256(BODY).hexdigest()


class Mirror(BaseHTTPRequestHandler):
    """A web server that can resume, and that cuts the first answer short on /cut."""

    asked: list[str | None]

    def do_GET(self):
        wanted = self.headers.get("Range")
        self.server.asked.append(wanted)
        first = int(re.findall(r"\d+", wanted)[0]) if wanted else 0
        if self.path == "/gone":
            return self.send_error(404)
        if first >= len(BODY):
            return self.send_error(416)
        self.send_response(206 if wanted else 200)
        self.send_header("Content-Length", str(len(BODY) - first))
        self.end_headers()
        self.wfile.write(BODY[first : 500_000 if self.path == "/cut" and not wanted else None])

    def log_message(self, *_):
        pass


@pytest.fixture
def mirror(monkeypatch):
    monkeypatch.setenv("no_proxy", "127.0.0.1")
    server = ThreadingHTTPServer(("127.0.0.1", 0), Mirror)
    server.asked = []
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    server.url = f"http://127.0.0.1:{server.server_port}"
    yield server
    server.shutdown()
    thread.join()
    server.server_close()


def test_a_download_appears_whole_and_leaves_nothing_else(mirror, tmp_path):
    files = (
        Published("a.bin", SUM, urls=(f"{mirror.url}/gone", f"{mirror.url}/a.bin")),
    )  # the first mirror does not have it
    assert contents("toy", files, [tmp_path / "toy"], verify=True, download=True) == [BODY]
    assert [p.name for p in (tmp_path / "toy").iterdir()] == ["a.bin"]
    asked = len(mirror.asked)
    contents("toy", files, [tmp_path / "toy"], verify=True, download=True)
    assert len(mirror.asked) == asked  # it is there now


def test_an_interrupted_download_resumes(mirror, tmp_path):
    target = tmp_path / "a.bin"
    with pytest.raises((ConnectionError, OSError)):
        download_file("toy", f"{mirror.url}/cut", target, SUM)
    assert not target.exists()
    assert (tmp_path / "a.bin.part").stat().st_size == 500_000
    download_file("toy", f"{mirror.url}/cut", target, SUM)
    assert target.read_bytes() == BODY
    assert mirror.asked == [None, "bytes=500000-"]


def test_a_part_that_was_already_whole_is_taken(mirror, tmp_path):
    (tmp_path / "a.bin.part").write_bytes(BODY)
    download_file("toy", f"{mirror.url}/a.bin", tmp_path / "a.bin", SUM)
    assert (tmp_path / "a.bin").read_bytes() == BODY


def test_a_download_with_the_wrong_sum_is_thrown_away(mirror, tmp_path):
    with pytest.raises(BadData, match="is not the published file: its sha256 is"):
        download_file("toy", f"{mirror.url}/a.bin", tmp_path / "a.bin", "0" * 64)
    assert list(tmp_path.iterdir()) == []


def test_when_every_mirror_fails_the_error_says_why_and_what_to_put_where(mirror, tmp_path):
    files = (Published("a.bin", SUM, urls=(f"{mirror.url}/gone", "http://127.0.0.1:9/a.bin")),)
    with pytest.raises(MissingFiles) as caught:
        contents("toy", files, [tmp_path / "toy"], verify=True, download=True)
    text = str(caught.value)
    assert text.startswith("toy: missing a.bin. The download failed (")
    assert "Not Found" in text
    assert "refused" in text
    assert f"Put it in {tmp_path / 'toy'} (published at {mirror.url}/)" in text


def test_a_cut_gzip_file_is_refused(tmp_path):
    (tmp_path / "a.gz").write_bytes(gzip.compress(BODY)[:-20])
    with pytest.raises(BadData, match=r"cannot be unpacked .* Delete it and get it again"):
        contents("toy", (Published("a.gz"),), [tmp_path], verify=True, download=False)


def test_a_file_packed_by_others_is_known_by_what_is_inside(tmp_path):
    (tmp_path / "a.gz").write_bytes(gzip.compress(BODY, compresslevel=1))
    assert contents("toy", (Published("a.gz", "0" * 64, SUM),), [tmp_path], verify=True, download=False) == [
        BODY
    ]


def test_files_are_looked_for_in_the_given_folder_then_the_environments_then_the_cache(tmp_path, monkeypatch):
    monkeypatch.setenv("TACIT_DATA", str(tmp_path / "env"))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    assert folders("toy", tmp_path / "arg")[:2] == [tmp_path / "arg" / "toy", tmp_path / "arg"]
    assert folders("toy", None)[:2] == [tmp_path / "env" / "toy", tmp_path / "env"]
    monkeypatch.delenv("TACIT_DATA")
    assert folders("toy", None) == [tmp_path / "cache" / "tacit" / "toy"]
