"""What a profile states in words and numbers: the closing table, the fit's errors, the surface, the memory needed."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from statistics import median

from simulation.profiles.fit.fitting import Fit, fit
from simulation.profiles.fit.picture import draw
from simulation.profiles.fit.rows import Row
from simulation.profiles.fit.surface import sentence, surface_of
from simulation.profiles.fit.validation import Errors, cross_validate
from simulation.profiles.measure.open_loop import BUSIEST, check_open_loop
from simulation.profiles.measure.run import OUT_OF_MEMORY
from simulation.profiles.model.errors import ProfileError
from simulation.profiles.model.storage import Profile


def conclude(profile: Profile, picture: Path) -> Profile:
    """Fit, validate and draw; the profile with findings and errors in its metadata."""
    metadata = profile.metadata
    findings: list[str] = []
    numbers: dict[str, object] = {}
    fitted: Fit | None = None
    try:
        fitted = fit(profile.rows, metadata.machine.tick_s)
        errors = cross_validate(profile.rows, metadata.machine.tick_s)
        checked = check_open_loop(profile.of("surface"), fitted)
    except ProfileError as error:
        findings.append(f"No latency model: {error}.")
    else:
        numbers = {
            "tick_s": fitted.tick_s,
            "cross_validated": {name: entry.to_json() for name, entry in errors.items()},
            "open_loop": checked.to_json() if checked else None,
        }
        findings += _fit_sentences(fitted, errors, checked)
    surface = surface_of(profile.rows)
    if surface is not None:
        findings.append(sentence(surface))
    findings += memory_sentences(profile.rows)
    machine = metadata.machine
    title = f"{metadata.pipeline} on {machine.cpu_model}, {machine.cpu_cores} cores, {metadata.begun}"
    draw(picture, title, surface, profile.rows, fitted)
    return replace(profile, metadata=replace(metadata, fit=numbers, findings=tuple(findings)))


def _fit_sentences(fitted: Fit, errors: Mapping[str, Errors], checked: Errors | None) -> list[str]:
    sentences = [
        f"Fit of {len(fitted.nodes)} kinds of nodes, effective tick {fitted.tick_s * 1e3:g} ms; error on points left "
        f"out in turn (mean absolute, P50 / P95): "
        + ", ".join(f"{name} {entry.p50:.1%} / {entry.p95:.1%} of {entry.points}" for name, entry in errors.items())
        + "."
    ]
    if checked is not None:
        sentences.append(
            f"Open loop, not used for fitting: {checked.points} points below {BUSIEST:.0%} of their share, "
            f"simulated with "
            f"the same arrivals, are off by {checked.p50:.1%} (P50) and {checked.p95:.1%} (P95) in the mean."
        )
    return sentences


def memory_sentences(rows: Sequence[Row]) -> list[str]:
    """By node, the least memory limit that held at each concurrency."""
    sentences = []
    for node in dict.fromkeys(row.node for row in rows if row.family == "memory"):
        node_rows = [row for row in rows if row.family == "memory" and row.node == node]
        parts = []
        for concurrency in sorted({row.concurrency for row in node_rows}):
            mine = [row for row in node_rows if row.concurrency == concurrency]
            killed = max((row.memory_mib for row in mine if row.note == OUT_OF_MEMORY), default=0)
            held = [row.memory_mib for row in mine if row.feasible and row.memory_mib > killed]
            least = f"{min(held)} MiB" if held else f"more than {killed} MiB"
            parts.append(f"{least} at {concurrency} at once" + (f" (killed at {killed})" if killed else ""))
        tokens = node_rows[0].tokens
        sentences.append(f"Memory of {node} with {tokens} tokens a call: {', '.join(parts)}.{_effect(node_rows)}")
    return sentences


def _effect(rows: Sequence[Row]) -> str:
    """How much slower single calls are under the least limit that holds than under the largest."""
    held = [row for row in rows if row.feasible and row.concurrency == 1 and row.p50_s is not None]
    sizes = sorted({row.memory_mib for row in held})
    if len(sizes) < 2:
        return ""
    low, high = (median(row.p50_s or 0.0 for row in held if row.memory_mib == size) for size in (sizes[0], sizes[-1]))
    return f" P50 at {sizes[0]} MiB is {low / high:.2f} of that at {sizes[-1]} MiB."


def closing_rows(profile: Profile) -> list[tuple[str, str, str]]:
    """Node, what, and its value: medians over repeats at the middle number of tokens, and the times of change."""
    lines = []
    sizes = sorted({row.tokens for row in profile.of("alone")})
    middle = sizes[len(sizes) // 2] if sizes else 0
    for node in profile.metadata.classes:
        node_rows = [row for row in profile.of("alone") if row.node == node and row.tokens == middle]
        for share in sorted({row.share for row in node_rows}):
            seconds = [row.mean_s for row in node_rows if row.share == share and row.mean_s is not None]
            if seconds:
                lines.append((node, f"{middle} tokens, idle, {share:g} cores", f"{median(seconds) * 1e3:.2f} ms"))
    for family in dict.fromkeys(row.family for row in profile.rows if not row.tokens):
        for share in sorted({row.share for row in profile.of(family)}):
            rows = [row for row in profile.of(family) if row.share == share and row.p50_s is not None]
            seconds = [row.p50_s for row in rows if row.p50_s is not None]
            where = f" at {share:g} cores" if share else ""
            if seconds:
                lines.append(("every node", family.replace("_", " ") + where, f"{median(seconds) * 1e3:.1f} ms"))
    return lines
