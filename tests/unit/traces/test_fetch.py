"""Downloads against a scripted server: tried again, bounded, checked, recorded."""

from __future__ import annotations

import base64
import hashlib
import json
import socket
from pathlib import Path
from types import SimpleNamespace

import pytest
import requests
from click.testing import CliRunner

from tests.unit.traces.conftest import Script
from traces import catalog, commands
from traces.commands import traces
from traces.errors import FetchError, TraceError
from traces.fetch import Download, Fetched, FetchSettings, NotHereError, fetch
from traces.published import PUBLISHED, Checksum, Published, published

CONTENT = bytes(range(256)) * 5000
SHA256 = hashlib.sha256(CONTENT).hexdigest()
GIT_BLOB = hashlib.sha1(b"blob %d\0" % len(CONTENT) + CONTENT).hexdigest()


def what(*addresses: str, checksum: Checksum | None = None, size: int | None = None) -> Published:
    return Published("one", "azure-llm", "a test", addresses, "one.csv", size, checksum, "CC-BY 4.0", "nobody")


@pytest.fixture(autouse=True)
def waits(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """Seconds between tries, instead of sleeping."""
    waited: list[float] = []
    monkeypatch.setattr("pooch.core.time", SimpleNamespace(sleep=waited.append))
    return waited


def run(wanted: Published, folder: Path, *, tries: int = 3, read_timeout_s: float = 5.0, check: bool = True) -> Fetched:
    settings = FetchSettings(tries=tries, read_timeout_s=read_timeout_s, connect_timeout_s=2.0, check=check)
    return fetch(wanted, folder, settings)


@pytest.mark.parametrize("checksum", [Checksum("sha256", SHA256), Checksum("git-blob", GIT_BLOB), None])
def test_a_file_is_fetched_checked_and_recorded(
    server: Script, tmp_path: Path, checksum: Checksum | None, waits: list[float]
) -> None:
    server.content = CONTENT
    got = run(what(server.address, checksum=checksum), tmp_path)
    assert got.path == tmp_path / "one" / "one.csv" and got.path.read_bytes() == CONTENT and not waits
    assert got.checked == (checksum.kind if checksum else "nothing") and not got.was_there
    record = json.loads((tmp_path / "one" / "one.csv.fetched.json").read_text())
    assert record["sha256"] == got.sha256 == SHA256 and record["bytes"] == len(CONTENT)
    assert record["address"] == server.address and record["licence"] == "CC-BY 4.0"
    assert sorted(path.name for path in got.path.parent.iterdir()) == ["one.csv", "one.csv.fetched.json"]


def test_a_broken_download_begins_again(server: Script, tmp_path: Path, waits: list[float]) -> None:
    server.content = CONTENT
    server.answers = ["cut:500000", "cut:300000", "whole"]
    got = run(what(server.address, checksum=Checksum("sha256", SHA256)), tmp_path)
    assert got.path.read_bytes() == CONTENT and len(waits) == 2 and len(server.asked) == 3


def test_a_download_that_keeps_breaking_off_leaves_nothing_behind(server: Script, tmp_path: Path) -> None:
    server.content = CONTENT
    server.answers = ["cut:700000"]
    with pytest.raises(FetchError, match="gave up after 2 tries"):
        run(what(server.address), tmp_path, tries=2)
    assert len(server.asked) == 2 and list((tmp_path / "one").iterdir()) == []


def test_silence_ends_a_try_after_its_limit(server: Script, tmp_path: Path) -> None:
    server.content = CONTENT
    server.answers = ["stall:2000", "stall:0"]
    with pytest.raises(FetchError, match=r"gave up after 2 tries \(.*(timed out|no byte)"):
        run(what(server.address), tmp_path, tries=2, read_timeout_s=0.1)


@pytest.mark.parametrize("status", ["404", "403", "409"])
def test_a_refusal_goes_on_to_the_next_address_at_once(
    server: Script, tmp_path: Path, status: str, waits: list[float]
) -> None:
    server.content = CONTENT
    server.answers = [status, "whole"]
    got = run(what(server.address, server.address + "2"), tmp_path)
    assert got.sha256 == SHA256 and not waits and got.address.endswith("file2")


def test_a_file_that_is_nowhere_is_reported_with_status_and_place(server: Script, tmp_path: Path) -> None:
    server.answers = ["404"]
    with pytest.raises(FetchError, match=r"answered 404 Not Found\. Fetch it elsewhere and put it at .*one\.csv"):
        run(what(server.address), tmp_path)


def test_a_busy_server_is_asked_again_with_growing_waits(server: Script, tmp_path: Path, waits: list[float]) -> None:
    server.content = CONTENT
    server.answers = ["503", "503", "503", "whole"]
    assert run(what(server.address), tmp_path, tries=4).sha256 == SHA256
    assert waits == [1, 2, 3]


def test_without_internet_one_sentence_says_so(tmp_path: Path) -> None:
    with socket.socket() as closed:
        closed.bind(("127.0.0.1", 0))
        port = closed.getsockname()[1]
    with pytest.raises(FetchError) as error:
        run(what(f"http://127.0.0.1:{port}/x"), tmp_path, tries=2)
    assert "there seems to be no internet from this machine" in str(error.value)
    assert f"put it at {tmp_path / 'one' / 'one.csv'}" in str(error.value) and "object at" not in str(error.value)


def test_a_server_that_does_not_end_gives_way_to_the_next_address(server: Script, tmp_path: Path) -> None:
    server.content, server.answers = CONTENT, ["endless", "whole"]
    sound = Checksum("sha256", SHA256)
    got = run(what(server.address, server.address, checksum=sound, size=len(CONTENT)), tmp_path)
    assert got.checked == "sha256" and len(server.asked) == 2


def test_another_file_gives_way_to_the_next_address(server: Script, tmp_path: Path) -> None:
    server.content = CONTENT
    with pytest.raises(FetchError, match=r"the sha256 .*; the sha256 .* Fetch it elsewhere"):
        run(what(server.address, server.address, checksum=Checksum("sha256", "0" * 64)), tmp_path)
    assert len(server.asked) == 2


@pytest.mark.parametrize(
    ("checksum", "rule"),
    [
        (Checksum("sha256", "0" * 64), "the sha256 of what came"),
        (Checksum("git-blob", "1" * 40), "the git-blob of what"),
    ],
)
def test_a_wrong_checksum_is_refused_and_removed(server: Script, tmp_path: Path, checksum: Checksum, rule: str) -> None:
    server.content = CONTENT
    with pytest.raises(FetchError, match=rule):
        run(what(server.address, checksum=checksum), tmp_path)
    assert list((tmp_path / "one").iterdir()) == []
    got = run(what(server.address, checksum=checksum), tmp_path, check=False)
    assert got.checked == "nothing" and got.sha256 == SHA256


def test_a_wrong_size_is_refused_before_anything_is_downloaded(server: Script, tmp_path: Path) -> None:
    server.content = CONTENT
    with pytest.raises(FetchError, match=f"has {len(CONTENT)} bytes, the published one has 7"):
        run(what(server.address, size=7), tmp_path)


@pytest.mark.parametrize("header", ["Content-MD5", "x-ms-blob-content-md5"])
def test_the_servers_own_checksum_is_followed(server: Script, tmp_path: Path, header: str) -> None:
    server.content = CONTENT
    server.headers[header] = base64.b64encode(hashlib.md5(CONTENT).digest()).decode()
    assert run(what(server.address), tmp_path).checked == "md5 of the server"
    server.content = CONTENT[:-1] + b"!"
    with pytest.raises(FetchError, match="the md5 of what came"):
        run(what(server.address), tmp_path / "other")


def test_a_sound_file_is_not_fetched_twice_and_a_changed_one_is_reported(server: Script, tmp_path: Path) -> None:
    server.content = CONTENT
    first = run(what(server.address), tmp_path)
    again = run(what(server.address), tmp_path)
    assert again.was_there and again.sha256 == first.sha256 and len(server.asked) == 1
    first.path.write_bytes(b"changed")
    with pytest.raises(FetchError, match="is not what was fetched or published"):
        run(what(server.address), tmp_path)


def test_a_file_that_was_taken_without_a_check_is_checked_when_it_is_asked_for_with_one(
    server: Script, tmp_path: Path
) -> None:
    server.content = b"another"
    assert run(what(server.address, checksum=Checksum("sha256", SHA256)), tmp_path, check=False).checked == "nothing"
    with pytest.raises(FetchError, match="is not what was fetched or published"):
        run(what(server.address, checksum=Checksum("sha256", SHA256)), tmp_path)
    assert run(what(server.address, checksum=Checksum("sha256", SHA256)), tmp_path, check=False).was_there


def test_a_published_file_put_there_by_hand_is_known(tmp_path: Path) -> None:
    (tmp_path / "one").mkdir()
    (tmp_path / "one" / "one.csv").write_bytes(CONTENT)
    got = run(what("http://127.0.0.1:9/never", checksum=Checksum("git-blob", GIT_BLOB)), tmp_path)
    assert got.was_there and got.checked == "git-blob"


def test_a_folder_that_cannot_be_made_is_reported(server: Script, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(FetchError, match="cannot be written"):
        run(what(server.address), tmp_path / "file")


def test_progress_grows_to_the_whole_size_and_begins_again_with_the_next_try(server: Script, tmp_path: Path) -> None:
    server.content = CONTENT
    server.answers = ["cut:600000", "whole"]
    reports: list[tuple[int, int | None]] = []
    fetch(what(server.address), tmp_path, progress=lambda done, total: reports.append((done, total)))
    sizes = [done for done, _ in reports]
    assert reports[-1] == (len(CONTENT), len(CONTENT)) and {total for _, total in reports} == {len(CONTENT)}
    second = next(i for i in range(1, len(sizes)) if sizes[i] < sizes[i - 1])
    assert sizes[second:] == sorted(sizes[second:])


def test_an_address_without_encryption_is_not_followed(tmp_path: Path) -> None:
    answer = requests.Response()
    answer.status_code, answer.url = 200, "http://elsewhere/file"
    download = Download(what("https://here/file"), "https://here/file", tmp_path, FetchSettings(), lambda *_: None)
    with pytest.raises(NotHereError, match="here sends on to an address without encryption"):
        download._look_at_answer(answer)


def test_the_command_fetches_and_its_name_can_be_used_afterwards(
    server: Script, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    server.content = b"TIMESTAMP,ContextTokens,GeneratedTokens\n2023-11-16 18:17:03.1,1,1\n2023-11-16 18:17:05.1,1,1\n"
    entry = what(server.address)
    monkeypatch.setattr(commands, "published", lambda name: entry)
    monkeypatch.setattr(catalog, "PUBLISHED", (entry,))
    outcome = CliRunner().invoke(traces, ["fetch", "one", "--out", str(tmp_path), "--json"], catch_exceptions=False)
    assert json.loads(outcome.output)["bytes"] == len(server.content)
    assert catalog.resolve("one", tmp_path) == tmp_path / "one" / "one.csv"
    assert "was there already" in CliRunner().invoke(traces, ["fetch", "one", "--out", str(tmp_path)]).output


def test_every_published_trace_has_a_secure_address_and_a_well_formed_checksum() -> None:
    lengths = {"sha256": 64, "md5": 32, "git-blob": 40}
    assert len({entry.name for entry in PUBLISHED}) == len(PUBLISHED) == 16
    for entry in PUBLISHED:
        assert entry.addresses and all(address.startswith("https://") for address in entry.addresses)
        assert entry.checksum is None or len(bytes.fromhex(entry.checksum.value)) * 2 == lengths[entry.checksum.kind]
        assert published(entry.name) is entry
    with pytest.raises(TraceError, match="there are: functions-2019"):
        published("nothing")
