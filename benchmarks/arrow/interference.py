"""What instances that slow each other down change: ``python -m benchmarks.arrow.interference [--data FOLDER]``.

Simulated: two instances of SmolLM2-135M in whole-model times of one core of this kind of machine (``SAMPLES``; or
``--profile``, a profile of ``smoe lab profile``), lengths of the traces / 8, targets of ``--slack`` times an unloaded
request's times. Greatest requests/s at 90 % for colocated instances, one for prefill and one for decode, Arrow and
``deadline``: without interference, with ``--slowdown`` (default: the profile's own, or what ``smoe lab profile smollm2
--neighbour`` measured), and with decodes next to prompts that take twice as long, which was not measured. Two instances
on two cores only: more neighbours were not measured. With ``--chunks`` instead: without interference, iterations of so
many tokens. Seeds: nothing is random. The last line is one JSON object.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import click

from benchmarks.arrow.__main__ import SAMPLES as SYNTHETIC
from benchmarks.arrow.__main__ import TARGETS, Maker, greatest, requests_of
from benchmarks.harness.options import benchmark, data_option, listed
from benchmarks.harness.report import print_result, print_table
from functions.scheduling.arrow import Arrow
from functions.scheduling.deadline import Deadline
from functions.scheduling.pacing import Pacing
from functions.scheduling.peers import Colocated, MinimalLoad
from functions.scheduling.settings import Targets
from simulation.generation.engine import Request
from simulation.generation.hardware import ALONE
from simulation.generation.measured import Measured, Sample, fit
from simulation.profiles.generation.storage import load
from traces import catalog

SAMPLES = (
    *(Sample(0, tokens, ms / 1000) for tokens, ms in ((64, 229), (256, 794), (512, 1676), (1024, 3495))),
    *(Sample(texts, texts * 64, ms / 1000) for texts, ms in ((1, 55), (4, 75), (8, 88), (16, 155))),
    *(Sample(texts, texts * 512, ms / 1000) for texts, ms in ((1, 61), (4, 100), (8, 162), (16, 288))),
)
"""One thread, float32, the whole model."""
MEASURED = (1.01, 1.0, 1.0, 1.04)
"""As ``smoe lab profile smollm2 --quick --neighbour 15`` measured them; docs/results/arrow names the machine."""
TWICE = (1.0, 1.0, 2.0, 1.0)
DIVISOR, CHUNK, KV_TOKENS = 8, 256, 40_000


def shortened(requests: list[Request]) -> list[Request]:
    return [Request(one.arrival_s, max(1, one.prompt // DIVISOR), max(1, one.output // DIVISOR)) for one in requests]


def unloaded(requests: list[Request], times: Measured, slack: float) -> Targets:
    """``slack`` times what the mean prompt and a token of its answer take alone."""
    prompt = sum(one.prompt for one in requests) // len(requests)
    return Targets(slack * times.prefill_s(prompt), slack * times.iteration(1, prompt, ()))


def rates(requests: list[Request], times: Measured, targets: Targets) -> dict[str, float]:
    """Greatest requests/s by schedule. Profiles are those of an instance alone, as schedulers have them."""
    profiles = dict.fromkeys(range(2), replace(times, slowdown=ALONE).profile())
    pacing = Pacing(profiles[0], targets)
    makers: dict[str, tuple[Maker, Pacing | None]] = {
        "colocated": (lambda targets: Colocated(profiles, targets, 1), None),
        "1 + 1": (lambda targets: MinimalLoad(profiles, targets, 1), None),
        "arrow": (lambda targets: Arrow(profiles, targets, 1), None),
        "deadline": (lambda targets: Deadline(profiles, targets), pacing),
    }
    own_rps = len(requests) / requests[-1].arrival_s
    return {
        name: own_rps * greatest(requests, make, targets, times, paced)[0] for name, (make, paced) in makers.items()
    }


@benchmark
@click.option("--requests", "most", type=click.IntRange(10, 20_000), default=500, help="First of each trace.")
@click.option("--slack", default=5.0, type=click.FloatRange(1.1, 1000), help="Targets over unloaded times.")
@click.option("--slowdown", default="", callback=listed(float), help="Prefill by prefill, by decode; decode by both.")
@click.option("--chunks", default="", callback=listed(int), help="Tokens of an iteration, comma list.")
@click.option("--profile", type=click.Path(path_type=Path, exists=True), default=None, help="Of a decoder.")
@click.option("--traces", default="llm-code,llm-conv", callback=listed(str), help="Of the traces, comma list.")
@data_option
def main(
    most: int,
    slack: float,
    slowdown: tuple[float, ...],
    chunks: tuple[int, ...],
    profile: Path | None,
    traces: tuple[str, ...],
    data: Path | None,
) -> None:
    times = load(profile).measured if profile else fit(SAMPLES, CHUNK, KV_TOKENS)
    slowdowns = slowdown or (times.slowdown if profile else MEASURED)
    if len(slowdowns) != 4:
        raise click.UsageError(f"--slowdown takes four numbers, got {len(slowdowns)}")
    folder = catalog.data_folder(data)
    names = [name for name in traces if name in TARGETS] if folder else list(SYNTHETIC)
    result: dict[str, dict[str, dict[str, float]]] = {}
    for name in names:
        requests = shortened(requests_of(name, folder, most))
        targets = unloaded(requests, times, slack)
        factors = {"alone": ALONE, "measured": tuple(slowdowns), "decodes next to prompts twice as long": TWICE}
        cases = {which: replace(times, slowdown=factor) for which, factor in factors.items()}
        if max(chunks, default=0) > times.chunk_tokens:
            raise click.UsageError(f"--chunks takes at most the {times.chunk_tokens} tokens that were measured")
        if chunks:
            cases = {f"parts of {chunk}": replace(times, slowdown=ALONE, chunk_tokens=chunk) for chunk in chunks}
        result[name] = {which: rates(requests, case, targets) for which, case in cases.items()}
        rows = [
            (which, *(f"{one:.3f}" for one in by.values()), f"{by['1 + 1'] / by['colocated']:.2f}")
            for which, by in result[name].items()
        ]
        heads = ("case", *next(iter(result[name].values())), "1 + 1 over colocated")
        print_table(f"Simulated, {name} / {DIVISOR}: requests/s of two instances", heads, rows)
    print_result({"simulated": True, "slowdown": slowdowns, "slack": slack, "requests_s": result}, seed=0)


if __name__ == "__main__":
    main()
