"""A profile as a workload: what the ingress costs is found again, shared machine or constant hops."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from moe.manifest import Manifest, load
from simulation.profiles.fit.rows import Row
from simulation.profiles.model.errors import ProfileError
from simulation.profiles.model.pipeline import host_of, measured_workload
from simulation.profiles.model.storage import Profile, save
from simulation.profiles.model.storage import load as load_profile
from simulation.workloads.workload import TokenLengths
from tests.unit.simulation.profiles import truth
from tests.unit.simulation.profiles.truth import BLANK

CALL_S, TOKEN_S = 0.0004, 2e-6


@pytest.fixture(scope="module")
def manifest(minilm_pipeline: Path) -> Manifest:
    return load(minilm_pipeline, verify=False)


def passes(manifest: Manifest, **more: Any) -> list[Row]:
    """Of an ingress that takes CALL_S a call and its reply, as much for the request itself, and TOKEN_S a token."""
    visits = manifest.layers + 1 + manifest.layers * manifest.router.top_k
    passes = []
    for tokens, calls in ((8, 27.0), (32, 29.0), (128, 30.0)):
        cpu_s = (calls + 1) * CALL_S + tokens * visits * TOKEN_S
        row = replace(BLANK, node="ingress", family="pass", tokens=tokens, cpu_s_per_call=cpu_s, node_calls=calls)
        passes.append(replace(row, **more))
    return passes


def profile(manifest: Manifest) -> Profile:
    return truth.of_nodes(manifest, more=passes(manifest))


def test_the_ingress_is_found_again(manifest: Manifest) -> None:
    host = host_of(truth.profile(passes(manifest)), manifest)
    assert host.cores == truth.MACHINE.cpu_cores
    assert host.send_s + host.receive_s == pytest.approx(CALL_S)
    assert host.start_s + host.answer_s == pytest.approx(CALL_S)
    assert 2 * host.token_s == pytest.approx(TOKEN_S)


def test_a_start_wants_the_part_of_a_core_that_it_was_counted_to_take(manifest: Manifest) -> None:
    known = profile(manifest)
    assert host_of(known, manifest).start_cores == 1.0  # its CPU seconds are not known
    counted = [
        replace(row, cpu_s_per_call=0.02, share=1.0) if row.family == "cold_start" else row for row in known.rows
    ]
    limited = [replace(row, share=0.25, cpu_s_per_call=0.05) for row in counted if row.family == "cold_start"]
    assert host_of(replace(known, rows=(*counted, *limited)), manifest).start_cores == pytest.approx(0.4)


@pytest.mark.slow
def test_requests_that_meet_take_what_the_bursts_say(manifest: Manifest, minilm_pipeline: Path) -> None:
    """Bursts that took longer give a larger number; others disturbed those of the third round."""
    tokens = TokenLengths.fixed(32)

    def overlap(pairs_s: float) -> float:
        bursts = [
            replace(BLANK, node="ingress", family="overlap", tokens=32, repeat=repeat, concurrency=size, p50_s=p50_s)
            for repeat, size, p50_s in ((0, 1, 0.04), (0, 2, pairs_s), (1, 1, 0.041), (1, 2, pairs_s), (2, 1, 0.04))
        ]
        bursts.append(replace(bursts[1], repeat=2, p50_s=0.4, others_cores=1.5))
        made = truth.profile([*profile(manifest).rows, *bursts], profile(manifest).metadata.classes)
        host = measured_workload(minilm_pipeline, made, tokens, slo_s=0.1, shared=True).host
        assert host is not None
        (times,) = host.overlap
        return times

    less, more = overlap(0.052), overlap(0.06)
    assert 0.5 < less < more < 2.0
    plain = measured_workload(minilm_pipeline, profile(manifest), tokens, slo_s=0.1, shared=True).host
    assert plain is not None and plain.overlap == ()


def test_requests_after_pauses_take_what_the_profile_on_disk_says(
    manifest: Manifest, minilm_pipeline: Path, tmp_path: Path
) -> None:
    plain = profile(manifest)
    pauses = [
        replace(BLANK, node="ingress", family="idle", repeat=repeat, pause_s=pause_s, p50_s=0.04 * pause_s**0.02)
        for repeat in range(3)
        for pause_s in (0.01, 0.1, 1.0)
    ]
    save(truth.profile([*plain.rows, *pauses], plain.metadata.classes), tmp_path / "profile.parquet")
    hosts = [
        measured_workload(minilm_pipeline, found, TokenLengths.fixed(32), slo_s=0.1, shared=True).host
        for found in (plain, load_profile(tmp_path / "profile.parquet"))
    ]
    assert hosts[0] is not None and hosts[0].idle == ()
    assert hosts[1] is not None and hosts[1].idle[0] == (0.01, 1.0)
    assert hosts[1].idle[-1] == (1.0, pytest.approx(100**0.02))


@pytest.mark.parametrize("missing", ["cpu_s_per_call", "node_calls"])
def test_a_profile_without_passes_that_were_counted_is_refused(manifest: Manifest, missing: str) -> None:
    with pytest.raises(ProfileError, match="no whole passes with CPU seconds and calls"):
        host_of(truth.profile(passes(manifest, **{missing: None})), manifest)


@pytest.mark.slow
def test_the_ingress_costs_the_same_as_a_server_and_as_a_constant(manifest: Manifest, minilm_pipeline: Path) -> None:
    tokens = TokenLengths.fixed(32)
    shared, apart = (
        measured_workload(minilm_pipeline, profile(manifest), tokens, slo_s=0.1, shared=shared, front_s=0.002)
        for shared in (True, False)
    )
    host = shared.host
    assert host is not None and apart.host is None
    assert shared.request_s == 0.002 and shared.hop_s == 0.0
    calls = manifest.layers + 1 + sum(len(manifest.experts(layer)) for layer in range(manifest.layers))
    visits = manifest.layers + 1 + manifest.layers * manifest.router.top_k
    work_s = (calls + 1) * CALL_S + 32 * visits * TOKEN_S
    assert apart.request_s - 0.002 + 2 * manifest.layers * apart.hop_s == pytest.approx(work_s)
