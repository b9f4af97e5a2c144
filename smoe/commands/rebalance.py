"""``smoe placement rebalance``: at intervals, whether another placement of experts is worth its move (heterogeneous
machines)."""

from __future__ import annotations

import json
import time
from contextlib import closing
from pathlib import Path
from typing import Any

import click
import requests

from functions.memory.regions import RegionError
from gateway.client.client import GatewayClient
from gateway.client.errors import GatewayClientError
from moe.manifest import Manifest
from moe.names import INGRESS
from placement.errors import PlacementError
from placement.heterogeneous import Choice, Profile, chosen, held_now, places_of, read_profile, seen_by
from placement.moves.cluster import deployed, places_now
from placement.moves.coordinator import Coordinator
from placement.prism import METHODS, Method
from platform_words.headers import CALLER_KEY
from smoe.commands.options import connect, gateway_option, json_option, password_option, state_option
from smoe.errors import SmoeError
from smoe.pipelines import ensure_pipeline

STATISTICS_TIMEOUT_S = 5.0


@click.command()
@click.argument("pipeline", default="minilm")
@click.option(
    "--nodes",
    "profile_file",
    type=click.Path(path_type=Path, exists=True, dir_okay=False),
    required=True,
    help="Profile of the machines in JSON: memory, speed, links between them (docs/placement.md).",
)
@click.option("--method", type=click.Choice(METHODS), default="auto", help="How plans are made.")
@click.option(
    "--every",
    "every_s",
    type=click.FloatRange(min=1.0),
    default=300.0,
    help="Seconds between decisions; a plan has to repay its move within them.",
)
@click.option("--once", is_flag=True, help="Decide once and end.")
@click.option("--dry-run", is_flag=True, help="Decide once, and move nothing.")
@state_option
@gateway_option
@password_option
@json_option
def rebalance(
    pipeline: str,
    profile_file: Path,
    method: Method,
    every_s: float,
    once: bool,
    dry_run: bool,
    state: Path,
    gateway_url: str | None,
    password_file: Path | None,
    as_json: bool,
) -> None:
    """Place PIPELINE's experts where they are called (Prism), again and again while it serves.

    Every ingress reports which experts were called from its machine. Where another placement saves more than its move
    costs, Eq. (3) and (4), experts move as `smoe placement migrate` moves them.
    """
    _, manifest = ensure_pipeline(pipeline, state / "pipelines")
    profile = read_profile(profile_file)
    with Coordinator(lambda: connect(state, gateway_url, password_file), manifest, state) as coordinator:
        while True:
            try:
                with closing(connect(state, gateway_url, password_file)) as client:
                    _print(decided(client, coordinator, profile, manifest, every_s, method, dry_run), as_json)
            except (SmoeError, GatewayClientError, PlacementError, RegionError) as error:
                if once or dry_run:
                    raise
                click.echo(f"no decision: {error}", err=True)
            if once or dry_run:
                return
            time.sleep(every_s)


def statistics(client: GatewayClient, manifest: Manifest) -> list[tuple[str, Any]]:
    """What each ready ingress has counted, with where it is from. Raises SmoeError where one does not answer: without
    it its node's calls would be missing."""
    rows, ingress = [], manifest.function_name(INGRESS)
    shown = {CALLER_KEY: client.caller_key(ingress)}
    for replica in client.replicas().get(ingress, []):
        if replica["state"] != "ready":
            continue
        where = f"the ingress at {replica['address']}"
        with requests.Session() as session:
            session.trust_env = False
            try:
                url = f"http://{replica['address']}/statistics"
                reply = session.get(url, headers=shown, timeout=STATISTICS_TIMEOUT_S)
                reply.raise_for_status()
                rows.append((where, reply.json()))
            except (requests.RequestException, ValueError) as error:
                raise SmoeError(f"{where} gave no statistics ({type(error).__name__})") from error
    return rows


def decided(
    client: GatewayClient,
    coordinator: Coordinator,
    profile: Profile,
    manifest: Manifest,
    horizon_s: float,
    method: Method,
    dry_run: bool,
) -> dict[str, Any]:
    """One decision, and its move where it is worth one; a move that was broken off is taken back first, or
    finished where all but its release was done. Raises SmoeError, PlacementError, RegionError."""
    if not dry_run:
        _settle(coordinator)
    places = places_now(client, deployed(client, manifest.name).deployments)
    stated = seen_by(statistics(client, manifest), profile, manifest)
    choice = chosen(stated, held_now(places, profile, manifest), profile, manifest, horizon_s, method)
    document = _document(choice, float(stated.frequency.sum()))
    if choice.worth and not dry_run:
        moved = coordinator.move(places_of(choice.held, profile, manifest, places))
        document |= {"moved": True, "moved_s": round(moved.settled_s, 3)}
    return document


def _settle(coordinator: Coordinator) -> None:
    switched = coordinator.broken_off == "releasing"
    if (coordinator.resume() if switched else coordinator.roll_back()) is not None:
        click.echo(f"a move that was broken off is {'finished' if switched else 'taken back'}", err=True)


def _document(choice: Choice, calls: float) -> dict[str, Any]:
    verdict = choice.verdict
    return {
        "calls": calls,
        "worth": choice.worth,
        "fits": choice.fits,
        "copied": verdict.copied,
        "now_s": round(verdict.now_s, 4),
        "then_s": round(verdict.then_s, 4),
        "move_s": round(verdict.move_s, 4),
        "moved": False,
    }


def _print(document: dict[str, Any], as_json: bool) -> None:
    if as_json:
        click.echo(json.dumps(document))
        return
    why = "" if document["fits"] else "; what runs now is not within the profile's memory"
    end = "worth a move" if document["worth"] else "nothing moves"
    if document["moved"]:
        end = f"moved in {document['moved_s']:.2f} s"
    click.echo(
        f"{document['calls']:.0f} calls: remote ones cost {document['now_s']:.3f} s, "
        f"by the new plan {document['then_s']:.3f} s "
        f"and {document['move_s']:.3f} s for {document['copied']} copies{why}: {end}"
    )
