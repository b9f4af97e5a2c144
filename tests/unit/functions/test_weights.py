"""Weights from folders and object stores: fetched once a machine, proved, mapped; unready with a reason otherwise."""

from __future__ import annotations

import asyncio
import json
import multiprocessing
import os
import shutil
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import fsspec
import pytest
import torch
from fsspec.implementations.memory import MemoryFileSystem

from functions import applications
from functions.app import FunctionApp
from functions.serving.settings import FunctionSettings, SettingsError, from_environment
from functions.serving.weights import Cache, WeightsError, needs, provide
from functions.wire import format as wire
from moe.manifest import load
from moe.runtime import load_node

NODE = "expert-0-0"
FILE = f"weights/{NODE}.safetensors"


@pytest.fixture
def store(bert: Path, tmp_path: Path) -> Path:
    """A pipeline's folder that stands for a bucket."""
    return Path(shutil.copytree(bert, tmp_path / "bucket"))


def settings(store: Path | str, cache: Path | None, *nodes: str) -> FunctionSettings:
    address = store if isinstance(store, str) else f"file://{store}"
    environment = {"smoe_pipeline": address, "smoe_nodes": ",".join(nodes or (NODE,)), "max_inflight": "4"}
    if cache is not None:
        environment["smoe_weights_cache"] = str(cache)
    return from_environment(environment)


def weights_file(folder: Path) -> Path:
    manifest = load(folder, verify=False)
    return folder / manifest.node(NODE).weights.file


def test_only_what_the_function_needs_is_fetched_and_it_computes_the_same(store: Path, tmp_path: Path) -> None:
    provided = provide(settings(store, tmp_path / "cache"), prove=True)
    fetched = {path.name for path in provided.pipeline_dir.rglob("*") if path.is_file()}
    assert fetched == {"pipeline.json", weights_file(store).name}
    x = {"x": torch.randn(3, 32)}
    programs = [load_node(one, load(one, verify=False), NODE) for one in (store, provided.pipeline_dir)]
    torch.testing.assert_close(programs[0].run(x), programs[1].run(x), rtol=0, atol=0)


def test_the_ingress_needs_the_tokenizer_alone(bert: Path) -> None:
    manifest = load(bert, verify=False)
    assert manifest.tokenizer is not None
    assert [need.name for need in needs(manifest, ("ingress",))] == [manifest.tokenizer.file]


def test_weights_are_mapped_from_the_cache_and_not_copied(store: Path, tmp_path: Path) -> None:
    provided = provide(settings(store, tmp_path / "cache"), prove=True)
    blob = weights_file(provided.pipeline_dir).resolve()
    program = load_node(provided.pipeline_dir, load(provided.pipeline_dir, verify=False), NODE)
    maps = [line for line in Path("/proc/self/maps").read_text().splitlines() if str(blob) in line]
    assert program.weights_bytes and maps
    assert blob.parent == (tmp_path / "cache" / "blobs") and blob.stat().st_mode & 0o222 == 0


def test_a_second_replica_of_the_machine_fetches_nothing_but_the_manifest(store: Path, tmp_path: Path) -> None:
    provide(settings(store, tmp_path / "cache"), prove=True)
    weights_file(store).unlink()
    again = provide(settings(store, tmp_path / "cache"), prove=True)
    assert weights_file(again.pipeline_dir).is_file()


def test_a_memory_store_works_as_files_do(store: Path, tmp_path: Path) -> None:
    memory = fsspec.filesystem("memory")
    for path in (store / "pipeline.json", weights_file(store)):
        memory.pipe(f"/bucket/p/{path.relative_to(store)}", path.read_bytes())
    provided = provide(settings("memory://bucket/p", tmp_path / "cache"), prove=True)
    assert weights_file(provided.pipeline_dir).read_bytes() == weights_file(store).read_bytes()
    memory.rm("/bucket", recursive=True)


class StoreWithoutOptions(MemoryFileSystem):  # type: ignore[misc]
    """As S3's: what it is made of are an account's settings, and nothing about how a file is read."""

    protocol = "strict"
    cachable = False

    def __init__(self, *, account: str = "") -> None:
        super().__init__()

    @classmethod
    def _strip_protocol(cls, path: str) -> str:
        return str(super()._strip_protocol(path.removeprefix("strict://")))


def test_a_store_that_takes_no_options_of_reading_serves(store: Path, tmp_path: Path) -> None:
    fsspec.register_implementation("strict", StoreWithoutOptions, clobber=True)
    memory = StoreWithoutOptions()
    with pytest.raises(WeightsError, match=r"strict://bucket/p/pipeline\.json does not exist"):
        provide(settings("strict://bucket/p", tmp_path / "cache"), prove=True)
    for path in (store / "pipeline.json", weights_file(store)):
        memory.pipe(f"/bucket/p/{path.relative_to(store)}", path.read_bytes())
    provided = provide(settings("strict://bucket/p", tmp_path / "cache"), prove=True)
    assert weights_file(provided.pipeline_dir).read_bytes() == weights_file(store).read_bytes()
    memory.rm("/bucket", recursive=True)


def test_a_file_that_is_missing_is_named(store: Path, tmp_path: Path) -> None:
    weights_file(store).unlink()
    with pytest.raises(WeightsError, match=rf"file://.*{weights_file(store).name} does not exist"):
        provide(settings(store, tmp_path / "cache"), prove=True)


@pytest.mark.parametrize(
    ("damage", "expected"),
    [
        (lambda data: data[:-1] + bytes([data[-1] ^ 1]), "sha256"),
        (lambda data: data[:-1], "bytes, not"),
        (lambda data: data + b"x", "bytes, not"),
    ],
    ids=["one bit", "too short", "too long"],
)
def test_a_wrong_file_is_refused_and_nothing_of_it_is_kept(
    store: Path, tmp_path: Path, damage: object, expected: str
) -> None:
    path = weights_file(store)
    path.write_bytes(damage(path.read_bytes()))  # type: ignore[operator]
    with pytest.raises(WeightsError, match=expected):
        provide(settings(store, tmp_path / "cache"), prove=True)
    assert list((tmp_path / "cache" / "blobs").iterdir()) == []


def test_a_damaged_cache_is_fetched_again(store: Path, tmp_path: Path) -> None:
    provided = provide(settings(store, tmp_path / "cache"), prove=True)
    blob = weights_file(provided.pipeline_dir).resolve()
    blob.chmod(0o644)
    blob.write_bytes(b"rubbish")
    provide(settings(store, tmp_path / "cache"), prove=True)
    assert blob.read_bytes() == weights_file(store).read_bytes()


def test_a_store_of_an_unknown_kind_is_a_sentence(tmp_path: Path) -> None:
    with pytest.raises(WeightsError, match=r"nosuch://bucket/p/pipeline\.json could not be read"):
        provide(settings("nosuch://bucket/p", tmp_path / "cache"), prove=True)


def test_an_address_needs_a_cache(store: Path) -> None:
    with pytest.raises(WeightsError, match="smoe_weights_cache must name a folder"):
        provide(settings(store, None), prove=True)


def test_a_node_that_is_not_there_is_named(store: Path, tmp_path: Path) -> None:
    with pytest.raises(SettingsError, match="'expert-9-9', which pipeline tiny does not have"):
        provide(settings(store, tmp_path / "cache", "expert-9-9"), prove=True)


def test_files_of_a_volume_are_proved_where_that_is_asked(store: Path) -> None:
    mounted = replace(settings(store, None), pipeline_dir=store, pipeline_address=None)
    assert provide(mounted, prove=True) is mounted
    weights_file(store).write_bytes(b"rubbish")
    assert provide(mounted, prove=False) is mounted
    with pytest.raises(Exception, match=r"holds 7 bytes"):
        provide(mounted, prove=True)


def _fetch(address: str, cache: Path, opened: Path) -> None:
    class Counting(Cache):
        def _download(self, need: object, blob: Path) -> None:
            (opened / str(os.getpid())).touch()
            super()._download(need, blob)  # type: ignore[arg-type]

    Counting(cache, address, lambda words: None).fetch((NODE,))


@pytest.mark.slow
def test_replicas_that_start_at_once_fetch_each_file_once(store: Path, tmp_path: Path) -> None:
    (tmp_path / "opened").mkdir()
    fork = multiprocessing.get_context("fork")
    arguments = (f"file://{store}", tmp_path / "cache", tmp_path / "opened")
    replicas = [fork.Process(target=_fetch, args=arguments) for _ in range(6)]
    for replica in replicas:
        replica.start()
    for replica in replicas:
        replica.join(60)
    assert [replica.exitcode for replica in replicas] == [0] * 6
    assert len(list((tmp_path / "opened").iterdir())) == 1


@pytest.fixture
def later(store: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[FunctionApp]:
    """A container's function whose weights file is wrong, until it is put right."""
    monkeypatch.setattr("functions.app.become_ready.__defaults__", ((0.01,),))
    good = weights_file(store).read_bytes()
    (tmp_path / "good").write_bytes(good)
    weights_file(store).write_bytes(good[:-1] + b"?")
    app = FunctionApp(settings(store, tmp_path / "cache"))
    yield app
    app.close()


async def until(app: FunctionApp, words: str) -> tuple[int, str]:
    """Status and text of readiness, once it has these words."""
    client = app.test_client()
    async with asyncio.timeout(100):
        while words not in (ready := client.get("/_/ready")).text:
            await asyncio.sleep(0.01)
    return ready.status_code, ready.text


async def test_a_wrong_file_keeps_the_pod_unready_with_the_reason_and_it_never_serves(later: FunctionApp) -> None:
    status, text = await until(later, "sha256")
    assert status == 503 and "does not match pipeline.json" in text
    client = later.test_client()
    assert client.get("/_/health").status_code == 200
    call = client.post("/", data=wire.encode_bytes({"x": torch.randn(1, 32)}))
    error = json.loads(call.data)["error"]
    assert (call.status_code, error["code"], call.headers["X-OpenFaaS-Internal"]) == (503, "starting", "smoe")
    assert error["message"]


@pytest.mark.slow
async def test_it_becomes_ready_by_itself_once_the_file_is_right(
    later: FunctionApp, store: Path, tmp_path: Path
) -> None:
    await until(later, "sha256")
    weights_file(store).write_bytes((tmp_path / "good").read_bytes())
    await until(later, "OK")
    call = later.test_client().post("/", data=wire.encode_bytes({"x": torch.randn(1, 32)}))
    assert call.status_code == 200


@pytest.mark.slow
async def test_a_volume_that_comes_later_is_waited_for(
    bert: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("functions.app.become_ready.__defaults__", ((0.01,),))
    environment = {"smoe_pipeline": str(tmp_path / "p"), "smoe_nodes": NODE}
    with pytest.raises(SettingsError, match="does not exist"):
        from_environment(environment)
    app = FunctionApp(from_environment(environment, later=True))
    await until(app, "cannot be read")
    shutil.copytree(bert, tmp_path / "p")
    await until(app, "OK")
    app.close()


def test_a_local_worker_takes_an_address_too(store: Path, tmp_path: Path) -> None:
    loop = asyncio.new_event_loop()
    host = applications.build(settings(store, tmp_path / "cache"), loop)
    host.close()
    loop.close()
    assert weights_file(next((tmp_path / "cache" / "pipelines").iterdir())).is_file()
