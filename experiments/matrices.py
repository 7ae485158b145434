"""The SuiteSparse matrices of R1: which they are, and how they are fetched.

    python -m experiments.suitesparse --download [--matrix_dir=FOLDER]

An archive is received into NAME.tar.gz.part, where the next attempt goes on, and only the matrix is taken out of it,
under its own name. It becomes NAME.mtx when its size, its number of entries and gzip's checksum are right.
"""

import gzip
import http
import http.client
import tarfile
import time
import urllib.error
import urllib.request
from pathlib import Path
from typing import IO, NamedTuple

import scipy.io

SITE = "https://sparse.tamu.edu/MM"
CHUNK = 1 << 16
TIMEOUT = 30.0  # seconds without a byte
EVERY = 5.0  # seconds between two lines of progress


class Entry(NamedTuple):
    group: str
    rows: int
    columns: int
    stored: int  # entries in the file; of a symmetric matrix one triangle


# Sizes as the collection's own index has them.
PAPERS = {
    "Maragal_4": Entry("NYPA", 1964, 1034, 26719),
    "Maragal_5": Entry("NYPA", 4654, 3320, 93091),
    "pf2177": Entry("Meszaros", 9728, 10178, 30984),
    "dwt_1007": Entry("HB", 1007, 1007, 4791),
    "bcsstm13": Entry("HB", 2003, 2003, 11973),
    "162bit": Entry("Priebel", 3606, 3597, 37118),
    "N_pid": Entry("Schulthess", 3625, 3923, 8054),
}


def _copy(source: IO[bytes], target: IO[bytes], whole: int | None, label: str) -> None:
    """With a line of progress now and then, on a terminal or not."""
    said = time.monotonic()
    while chunk := source.read(CHUNK):
        target.write(chunk)
        if time.monotonic() - said >= EVERY:
            of = f" of {whole / 1e6:.1f}" if whole else ""
            print(f"{label}: {target.tell() / 1e6:.1f}{of} MB", flush=True)
            said = time.monotonic()
    if whole is not None and target.tell() != whole:
        raise EOFError(f"{target.tell()} of {whole} bytes came")


def _receive(url: str, part: Path, label: str) -> None:
    """The whole of `url` in `part`, from where it was broken off if the server can."""
    begun = part.stat().st_size if part.exists() else 0
    request = urllib.request.Request(url, headers={"Range": f"bytes={begun}-"} if begun else {})
    try:
        answer = urllib.request.urlopen(request, timeout=TIMEOUT)
    except urllib.error.HTTPError as error:
        if begun and error.code == http.HTTPStatus.REQUESTED_RANGE_NOT_SATISFIABLE:
            return  # nothing is missing
        raise
    with answer:
        goes_on = answer.status == http.HTTPStatus.PARTIAL_CONTENT
        length = answer.headers.get("Content-Length")
        with part.open("r+b" if goes_on else "wb") as file:
            file.seek(begun if goes_on else 0)
            _copy(answer, file, file.tell() + int(length) if length else None, label)


def _unpack(archive: Path, name: str, target: Path) -> None:
    """The regular file NAME/NAME.mtx and no other; nothing in the archive says where to write."""
    with gzip.open(archive) as whole:
        while whole.read(CHUNK):  # the checksum is at the end, where tarfile does not go
            pass
    with tarfile.open(archive, "r:gz") as tar:
        for member in tar:
            if member.name == f"{name}/{name}.mtx" and member.isfile():
                source = tar.extractfile(member)
                assert source
                with source, target.open("wb") as file:
                    _copy(source, file, member.size, name)
                break
        else:
            raise ValueError(f"{archive.name} has no file {name}/{name}.mtx")


def _check(path: Path, entry: Entry) -> None:
    """Its size, and that the entries can be read and are as many as they should be."""
    rows, columns, stored, *_ = scipy.io.mminfo(path)
    if (rows, columns, stored) != entry[1:]:
        raise ValueError(f"{rows} x {columns} with {stored} entries; expected {entry[1]} x {entry[2]} with {entry[3]}")
    scipy.io.mmread(path)


def _fetch(name: str, entry: Entry, folder: Path, site: str) -> None:
    part, unfinished = folder / f"{name}.tar.gz.part", folder / f"{name}.unfinished"
    _receive(f"{site}/{entry.group}/{name}.tar.gz", part, name)
    try:
        _unpack(part, name, unfinished)
        _check(unfinished, entry)
    except (tarfile.TarError, OSError, EOFError, ValueError) as error:
        part.unlink()  # it is whole and wrong: to go on from it would not help
        unfinished.unlink(missing_ok=True)
        raise ValueError(f"what came is not {entry.group}/{name} ({error}); it was deleted") from error
    unfinished.replace(folder / f"{name}.mtx")
    part.unlink()


def download(folder: Path, site: str = SITE, wanted: dict[str, Entry] = PAPERS) -> None:
    """Those of `wanted` that are not in the folder yet. What did not come is said at the end, all of it."""
    folder.mkdir(parents=True, exist_ok=True)
    failed = {}
    for i, (name, entry) in enumerate(wanted.items(), 1):
        label = f"[{i}/{len(wanted)}] {name}"
        if (folder / f"{name}.mtx").exists():
            print(f"{label}: is there", flush=True)
            continue
        print(f"{label}: fetching", flush=True)
        try:
            _fetch(name, entry, folder, site)
        except (OSError, http.client.HTTPException, EOFError, ValueError) as error:
            failed[name] = str(error)
            print(f"{label}: {error}", flush=True)
        else:
            print(f"{label}: {(folder / f'{name}.mtx').stat().st_size / 1e6:.1f} MB", flush=True)
    if failed:
        reasons = {reason: [name for name, why in failed.items() if why == reason] for reason in failed.values()}
        said = "; ".join(f"{', '.join(names)}: {reason}" for reason, names in reasons.items())
        raise SystemExit(
            f"{len(failed)} of {len(wanted)} matrices did not come from {site} ({said}). "
            "The same command goes on. Without a network, get NAME.mtx of each on another machine and put them into "
            f"{folder}"
        )
