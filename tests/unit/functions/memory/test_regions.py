from __future__ import annotations

import hashlib
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from functions.memory.regions import Region, RegionError, Regions, check_name

CONTENT = bytes(range(256)) * 40
REGION = Region("p/weights/one.bin", len(CONTENT), hashlib.sha256(CONTENT).hexdigest())


def test_a_region_is_whole_only_after_all_its_bytes_came(tmp_path: Path) -> None:
    regions = Regions(tmp_path)
    filling = regions.fill(REGION)
    filling.append(CONTENT[:1000])
    assert regions.held() == {}
    assert regions.unfinished() == {REGION.name: 1000}
    with pytest.raises(RegionError, match="1000 of 10240"):
        filling.finish()
    filling.append(CONTENT[1000:])
    path = filling.finish()
    filling.close()
    assert regions.held() == {REGION.name: len(CONTENT)}
    assert path.read_bytes() == CONTENT
    assert path.stat().st_mode & 0o777 == 0o400


@given(st.lists(st.integers(0, len(CONTENT)), max_size=5).map(sorted))
def test_a_filling_that_was_broken_off_goes_on_where_it_stopped(
    tmp_path_factory: pytest.TempPathFactory, stops: list[int]
) -> None:
    folder = tmp_path_factory.mktemp("regions")
    for stop in [*stops, len(CONTENT)]:
        filling = Regions(folder).fill(REGION)  # a manager that starts again
        filling.append(CONTENT[filling.offset : max(stop, filling.offset)])
        if stop == len(CONTENT):
            filling.finish()
            filling.close()
            break
        filling.close()
    assert Regions(folder).path(REGION.name).read_bytes() == CONTENT


def test_wrong_content_is_thrown_away(tmp_path: Path) -> None:
    regions = Regions(tmp_path)
    filling = regions.fill(REGION)
    filling.append(bytes(len(CONTENT)))
    with pytest.raises(RegionError, match="sha256"):
        filling.finish()
    assert regions.unfinished() == regions.held() == {}


def test_more_than_a_region_has_is_refused(tmp_path: Path) -> None:
    filling = Regions(tmp_path).fill(REGION)
    with pytest.raises(RegionError, match="more than"):
        filling.append(CONTENT + b"x")


def test_a_node_without_room_says_so(tmp_path: Path) -> None:
    (tmp_path / "p").mkdir()
    (tmp_path / "p" / "other").write_bytes(bytes(100))
    with pytest.raises(RegionError, match="holds 100 of 10300"):
        Regions(tmp_path, limit_bytes=10_300).fill(REGION)
    Regions(tmp_path, limit_bytes=10_340).fill(REGION).close()


def test_release_gives_back_whole_and_unfinished_regions(tmp_path: Path) -> None:
    regions = Regions(tmp_path)
    filling = regions.fill(REGION)
    filling.append(CONTENT[:10])
    filling.close()
    assert regions.release(REGION.name) == 10
    assert regions.release(REGION.name) == 0


@pytest.mark.parametrize(
    "name", ["", "one", "/p/a", "p/../a", "../p/a", "p/a.part", "p//a", "p/.hidden", "p/a\n", "p/é"]
)
def test_names_that_could_leave_the_folder_are_refused(name: str) -> None:
    with pytest.raises(RegionError):
        check_name(name)


@given(st.text(max_size=20))
def test_an_allowed_name_stays_in_the_folder(name: str) -> None:
    try:
        check_name(name)
    except RegionError:
        return
    assert (Path("/folder") / name).resolve().is_relative_to("/folder")
