"""Downloads over HTTP, from a server that is honest, broken or hostile: all is kept, or one sentence and nothing."""

from __future__ import annotations

import gzip
import hashlib
import io
import tarfile
from collections.abc import Callable, Iterator
from functools import partial
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread

import pytest

from bifl.data import fetching
from bifl.data.fetching import LARGEST, Published, contents, from_archive, from_mirror, local_only
from bifl.errors import DataError

FILES = {"one": b"1" * 1000, "two": b"2" * 2000}
Site = dict[str, bytes]  # path → what is sent for it; a path that ends in … is cut off before its end


@pytest.fixture
def site() -> Iterator[Site]:
    """What a server at 127.0.0.1 has; its address is under the empty path."""
    pages: Site = {}

    class Server(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            page = pages.get(self.path)
            cut = self.path + "…" in pages
            self.send_response(404 if page is None and not cut else 200)
            body = pages[self.path + "…"] if cut else page or b""
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body[: len(body) // 2] if cut else body)

        def log_message(self, *words: object) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Server)
    Thread(target=server.serve_forever, args=(0.01,), daemon=True).start()
    pages[""] = f"http://127.0.0.1:{server.server_port}".encode()
    yield pages
    server.shutdown()
    server.server_close()


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("BIFL_DATA", str(tmp_path / "data"))
    return tmp_path / "data"


def published(site: Site, *mirrors: str, archive: str = "") -> Published:
    """Two files at mirrors of the server, or in an archive there."""
    address = site[""].decode()
    sources = [partial(from_mirror, f"{address}/{mirror}/{{}}.gz") for mirror in mirrors]
    packed = [partial(from_archive, f"{address}/{archive}", "files/{}")] if archive else []
    return Published(
        name="Numbers",
        digests={name: hashlib.sha256(raw).hexdigest() for name, raw in FILES.items()},
        places=("numbers/{}.gz",),
        unpack=lambda path, name: gzip.decompress(path.read_bytes()),
        sources=(*sources, *packed),
        kept="numbers/{}.gz",
        advice="here nor there",
    )


def mirror(site: Site, name: str, **changes: bytes) -> None:
    site.update({f"/{name}/{file}.gz": raw for file, raw in ({n: gzip.compress(r) for n, r in FILES.items()} | changes).items()})


def refused(files: Published, folder: Path) -> None:
    with pytest.raises(DataError, match=r"Numbers is not in '.*' and could be fetched neither here nor there") as caught:
        contents(files)
    assert "\n" not in str(caught.value)
    assert not list(folder.rglob("*"))


def test_what_a_mirror_has_is_kept(site: Site, folder: Path) -> None:
    mirror(site, "a")
    assert contents(published(site, "a")) == [*FILES.values()]
    assert sorted(path.name for path in folder.rglob("*.gz")) == ["one.gz", "two.gz"]
    with local_only():
        assert contents(published(site)) == [*FILES.values()]
    (folder / "numbers/one.gz").unlink()
    with local_only(), pytest.raises(DataError, match=r"^Numbers is not in '[^']*'$"):
        contents(published(site, "a"))


DAMAGES: dict[str, Callable[[bytes], bytes]] = {
    "other": lambda raw: gzip.compress(b"3" * 2000),
    "cut": lambda raw: raw[:-5],
    "flipped": lambda raw: raw[:-6] + bytes([raw[-6] ^ 1]) + raw[-5:],
    "no gzip": lambda raw: b"<html>",
    "empty": lambda raw: b"",
    "bomb": lambda raw: gzip.compress(bytes(LARGEST + 1), 1),
}


@pytest.mark.parametrize("damage", [*DAMAGES, "closed", "missing"])
def test_what_is_not_right_is_looked_for_elsewhere_and_else_refused(site: Site, folder: Path, damage: str) -> None:
    right = gzip.compress(FILES["two"])
    mirror(site, "bad")
    del site["/bad/two.gz"]
    if damage in DAMAGES:
        site["/bad/two.gz"] = DAMAGES[damage](right)
    elif damage == "closed":
        site["/bad/two.gz…"] = right
    refused(published(site, "bad"), folder)
    mirror(site, "good")
    assert contents(published(site, "bad", "good")) == [*FILES.values()]


def test_a_folder_that_cannot_be_written_is_one_sentence(site: Site, folder: Path) -> None:
    mirror(site, "a")
    folder.mkdir()
    (folder / "numbers").write_text("")
    with pytest.raises(DataError, match=r"cannot keep Numbers in '.*' \(File exists\): set BIFL_DATA to another folder"):
        contents(published(site, "a"))


# ---- archives ----------------------------------------------------------------------------------------------------------


def entry(name: str, raw: bytes = b"", **facts: object) -> tuple[tarfile.TarInfo, bytes]:
    info = tarfile.TarInfo(name)
    info.size = len(raw)
    for fact, value in facts.items():
        setattr(info, fact, value)
    return info, raw


def tar(*entries: tuple[tarfile.TarInfo, bytes]) -> bytes:
    file = io.BytesIO()
    with tarfile.open(fileobj=file, mode="w") as archive:
        for info, raw in entries:
            archive.addfile(info, io.BytesIO(raw) if raw else None)
    return file.getvalue()


ONE, TWO = (entry(f"files/{name}", raw) for name, raw in FILES.items())


def test_an_archive(site: Site, folder: Path) -> None:
    site["/a.tar.gz"] = gzip.compress(tar(TWO, entry("files/more", b"4"), ONE))
    assert contents(published(site, archive="a.tar.gz")) == [*FILES.values()]


@pytest.mark.parametrize("hostile", ["/tmp/bifl-harm", "../../harm", "files/../../../harm"])
def test_nothing_is_written_where_an_archive_says(site: Site, folder: Path, hostile: str) -> None:
    there = {*folder.parent.rglob("*")}
    site["/a.tar.gz"] = gzip.compress(tar(entry(hostile, b"harm"), ONE, entry(hostile + "2", b"", type=tarfile.SYMTYPE)))
    refused(published(site, archive="a.tar.gz"), folder)
    assert {*folder.parent.rglob("*")} == there
    assert not Path("/tmp/bifl-harm").exists()


@pytest.mark.parametrize(
    "entries",
    [
        (ONE,),
        (ONE, entry("files/two", type=tarfile.SYMTYPE, linkname="one")),
        (ONE, entry("files/two", type=tarfile.LNKTYPE, linkname="files/one")),
        (ONE, entry("files/two", type=tarfile.DIRTYPE)),
        (ONE, entry("files/two", type=tarfile.FIFOTYPE)),
        (ONE, entry("files/two", b"3" * 2000), TWO),
        (ONE, entry("files/two", size=LARGEST + 1)),
        (ONE, entry("files/two", size=10**12)),
    ],
    ids=["missing", "link", "hard link", "folder", "pipe", "twice", "large", "larger"],
)
def test_other_members_are_refused(site: Site, folder: Path, entries: tuple[tuple[tarfile.TarInfo, bytes], ...]) -> None:
    site["/a.tar.gz"] = gzip.compress(tar(*entries))
    refused(published(site, archive="a.tar.gz"), folder)


@pytest.mark.parametrize(
    "damage", [lambda raw: raw[:-30], lambda raw: b"\x1f\x8b" + raw[2:40], lambda raw: gzip.compress(b"x" * 2000)]
)
def test_a_damaged_archive_is_refused(site: Site, folder: Path, damage: Callable[[bytes], bytes]) -> None:
    site["/a.tar.gz"] = damage(gzip.compress(tar(ONE, TWO)))
    refused(published(site, archive="a.tar.gz"), folder)


@pytest.mark.parametrize("kind", [tarfile.REGTYPE, tarfile.XHDTYPE, tarfile.GNUTYPE_LONGNAME], ids=["file", "pax", "long name"])
def test_an_archive_that_ends_before_what_it_announces_is_refused(site: Site, folder: Path, kind: bytes) -> None:
    """Whether in a member that nobody wants, or in a header, which is read into memory."""
    header = entry("files/other", type=kind, size=8**11 - 1)[0].tobuf(tarfile.GNU_FORMAT)
    site["/a.tar.gz"] = gzip.compress(header + bytes(2**20))
    refused(published(site, archive="a.tar.gz"), folder)


def test_an_archive_that_would_be_read_backwards_is_refused(site: Site, folder: Path) -> None:
    """A header with a negative size leads a reader that can go back to the headers before it, again and again."""
    header = bytearray(entry("files/other")[0].tobuf(tarfile.GNU_FORMAT))
    header[124:136] = (-1024).to_bytes(12, "big", signed=True)
    header[148:156] = b" " * 8
    header[148:156] = b"%06o\0 " % sum(header)
    site["/a.tar.gz"] = gzip.compress(tar(entry("a"), entry("b"))[:1024] + header + bytes(1024))
    refused(published(site, archive="a.tar.gz"), folder)


@pytest.mark.parametrize("packed", [gzip.compress(tar(ONE, TWO) + bytes(2**20)), gzip.compress(tar(ONE, TWO), 0)])
def test_an_archive_is_read_no_further_than_any_may_be_long(
    site: Site, folder: Path, monkeypatch: pytest.MonkeyPatch, packed: bytes
) -> None:
    """Packed or not. Without the bound it is one that has everything."""
    site["/a.tar.gz"] = packed
    monkeypatch.setattr(fetching, "LARGEST_ARCHIVE", 10_000)
    refused(published(site, archive="a.tar.gz"), folder)
    monkeypatch.undo()
    monkeypatch.setenv("BIFL_DATA", str(folder))
    assert contents(published(site, archive="a.tar.gz")) == [*FILES.values()]
