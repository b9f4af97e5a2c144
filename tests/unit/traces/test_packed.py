"""Files as they were published: packed in every way, in folders, and damaged in every way."""

from __future__ import annotations

import bz2
import gzip
import io
import lzma
import struct
import tarfile
import zipfile
import zlib
from collections.abc import Callable
from pathlib import Path

import pytest
import rarfile
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.parameters import examples
from traces import hours as measuring
from traces import loading
from traces.catalog import SAMPLES
from traces.errors import TraceError
from traces.sources import natural, sources

LLM = (SAMPLES / "made_azure_llm_2024.csv").read_bytes()


def zipped(content: bytes, name: str = "folder/trace.csv") -> bytes:
    held = io.BytesIO()
    with zipfile.ZipFile(held, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("folder/", "")
        archive.writestr(name, content)
    return held.getvalue()


def tarred(content: bytes, mode: str, name: str = "folder/trace.csv") -> bytes:
    held = io.BytesIO()
    with tarfile.open(fileobj=held, mode=mode) as archive:  # type: ignore[call-overload]
        folder = tarfile.TarInfo("folder")
        folder.type = tarfile.DIRTYPE
        archive.addfile(folder)
        entry = tarfile.TarInfo(name)
        entry.size = len(content)
        archive.addfile(entry, io.BytesIO(content))
    return held.getvalue()


def rar_stored(content: bytes, name: str = "trace.txt") -> bytes:
    """A rar 3 archive with one member stored unpacked, after the format's public description."""

    def header(kind: int, flags: int, body: bytes) -> bytes:
        rest = struct.pack("<BHH", kind, flags, 7 + len(body)) + body
        return struct.pack("<H", zlib.crc32(rest) & 0xFFFF) + rest

    size, text = len(content), name.encode()
    about = struct.pack("<IIBIIBBHI", size, size, 3, zlib.crc32(content), 0x5821_0000, 29, 0x30, len(text), 0o100644)
    main = header(0x73, 0, b"\0" * 6)
    return b"Rar!\x1a\x07\x00" + main + header(0x74, 0x8000, about + text) + content + header(0x7B, 0x4000, b"")


PACKERS: dict[str, Callable[[bytes], bytes]] = {
    "plain": bytes,
    "gzip": gzip.compress,
    "gzip in two parts": lambda content: gzip.compress(content[:999]) + gzip.compress(content[999:]),
    "xz": lzma.compress,
    "bzip2": bz2.compress,
    "zip": zipped,
    "tar": lambda content: tarred(content, "w"),
    "tar.gz": lambda content: tarred(content, "w:gz"),
    "tar.xz": lambda content: tarred(content, "w:xz"),
    "rar": rar_stored,
}


@pytest.mark.parametrize("how", PACKERS)
@pytest.mark.parametrize("name", ["made_azure_llm_2024.csv", "made_azure_functions.csv", "made_mooncake.jsonl"])
def test_a_packed_file_holds_what_the_plain_one_does(tmp_path: Path, how: str, name: str) -> None:
    path = tmp_path / "published"
    path.write_bytes(PACKERS[how]((SAMPLES / name).read_bytes()))
    assert loading.load(path).sha256 == loading.load(SAMPLES / name).sha256


@pytest.mark.parametrize("how", [how for how in PACKERS if how != "plain"])
def test_a_truncated_archive_is_reported(tmp_path: Path, how: str) -> None:
    path = tmp_path / "published"
    packed = PACKERS[how](LLM)
    for kept in (len(packed) // 3, len(packed) * 9 // 20, len(packed) // 2):
        path.write_bytes(packed[:kept])
        with pytest.raises(TraceError, match=r"published.*:\d+: "):
            loading.load(path)


def test_a_tar_cut_off_between_two_rows_is_reported(tmp_path: Path) -> None:
    path = tmp_path / "published.tar"
    packed = tarred(LLM, "w")
    begin = packed.index(LLM[:100])
    path.write_bytes(packed[: begin + LLM.index(b"\n", 2000) + 1])
    with pytest.raises(TraceError, match=r"published\.tar.*:\d+: .*damaged.*unexpected end of data"):
        loading.load(path)


@pytest.mark.parametrize("how", PACKERS)
@given(data=st.data())
@settings(max_examples=examples(25), suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)
def test_damaged_bytes_only_ever_raise_trace_errors(tmp_path: Path, how: str, data: st.DataObject) -> None:
    raw = bytearray(PACKERS[how](LLM[:1500]))
    for _ in range(data.draw(st.integers(1, 5))):
        at = data.draw(st.integers(0, len(raw) - 1))
        raw[at : at + data.draw(st.integers(0, 3))] = data.draw(st.binary(max_size=4))
        if not raw:
            raw = bytearray(b"\0")
    path = tmp_path / "damaged"
    path.write_bytes(bytes(raw))
    try:
        loading.load(path)
        measuring.hours(path)
    except TraceError as error:
        assert str(error).startswith(str(path)), error


@given(st.binary(max_size=300))
@settings(max_examples=examples(25), suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)
def test_garbage_behind_any_known_beginning_only_ever_raises_trace_errors(tmp_path: Path, junk: bytes) -> None:
    heads = [path.read_bytes().splitlines(keepends=True)[0] for path in sorted(SAMPLES.glob("*.*"))]
    heads += [
        b"",
        b"PK\x03\x04",
        b"Rar!\x1a\x07\x00",
        b"Rar!\x1a\x07\x01\x00",
        b"\x1f\x8b\x08\x00",
        b"\xfd7zXZ\x00",
        b"BZh9",
    ]
    path = tmp_path / "garbage"
    for head in heads:
        path.write_bytes(head + junk)
        try:
            trace = loading.load(path)
        except TraceError:
            continue
        assert trace.requests >= 0


def test_a_member_is_named_in_messages(tmp_path: Path) -> None:
    path = tmp_path / "a.zip"
    path.write_bytes(zipped(b"TIMESTAMP,ContextTokens,GeneratedTokens\n2024-05-10 00:00:00+00:00,1,1\nx,1,1\n"))
    with pytest.raises(TraceError, match=r"a\.zip!folder/trace\.csv:3: column TIMESTAMP: 'x' is not YYYY"):
        loading.load(path)


def test_the_first_known_file_of_an_archive_or_folder_is_read(tmp_path: Path) -> None:
    folder = tmp_path / "published"
    folder.mkdir()
    (folder / "a-readme.md").write_text("# Some words\n")
    (folder / "b-noise.bin").write_bytes(b"\xff\xfe\x00")
    (folder / "trace.csv").write_bytes(LLM)
    assert loading.load(folder).sha256 == loading.load(SAMPLES / "made_azure_llm_2024.csv").sha256
    (folder / "trace.csv").unlink()
    with pytest.raises(
        TraceError, match=r"none of its 2 files is in a known form; the first: .*a-readme\.md:1: the file is empty"
    ):
        loading.load(folder)
    empty = tmp_path / "empty"
    empty.mkdir()
    with pytest.raises(TraceError, match="holds no files"):
        loading.load(empty)


def test_durations_and_memory_beside_the_counts_are_passed_over(tmp_path: Path) -> None:
    held = io.BytesIO()
    counts = (SAMPLES / "made_azure_functions.csv").read_bytes()
    with tarfile.open(fileobj=held, mode="w:xz") as archive:
        for name, content in (
            ("README.md", b"# The published days\n\nof 2019\n"),
            ("LICENSE", b"\xff\xfe"),
            ("app_memory_percentiles.anon.d01.csv", b"HashOwner,HashApp,SampleCount\no,a,1\n"),
            ("function_durations_percentiles.anon.d01.csv", b"HashOwner,HashApp,HashFunction,Average\no,a,f,1\n"),
            ("invocations_per_function_md.anon.d01.csv", counts),
        ):
            entry = tarfile.TarInfo(name)
            entry.size = len(content)
            archive.addfile(entry, io.BytesIO(content))
    path = tmp_path / "azurefunctions-dataset2019.tar.xz"
    path.write_bytes(held.getvalue())
    assert loading.identify(path).format == "azure-functions-2019"
    assert loading.load(path).sha256 == loading.load(SAMPLES / "made_azure_functions.csv").sha256


def test_a_rar_that_needs_a_program_which_is_not_there_says_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rarfile, "CURRENT_SETUP", None)
    for tool in ("UNRAR_TOOL", "UNAR_TOOL", "BSDTAR_TOOL", "SEVENZIP_TOOL", "SEVENZIP2_TOOL"):
        monkeypatch.setattr(rarfile, tool, "no-such-program-here")
    packed = bytearray(rar_stored(LLM))
    method = packed.index(bytes((29, 0x30))) + 1
    packed[method] = 0x33
    begin = 20
    length = struct.unpack_from("<H", packed, begin + 5)[0]
    struct.pack_into("<H", packed, begin, zlib.crc32(bytes(packed[begin + 2 : begin + length])) & 0xFFFF)
    path = tmp_path / "packed.rar"
    path.write_bytes(bytes(packed))
    with pytest.raises(TraceError, match=r"a rar archive, and no program to unpack it.*install bsdtar"):
        loading.load(path)


def test_files_are_walked_in_natural_order(tmp_path: Path) -> None:
    for name in ("chunk-10-trace.csv", "chunk-2-trace.csv", "chunk-1-trace.csv"):
        (tmp_path / name).write_text("0,0,0,,0,0\n")
    assert [source.name for source in sources(tmp_path)] == [f"chunk-{i}-trace.csv" for i in (1, 2, 10)]
    assert sorted(["a10", "a9", "a"], key=natural) == ["a", "a9", "a10"]
