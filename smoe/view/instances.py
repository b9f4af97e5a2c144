"""A decoder's instances as their ingress reports them: roles, texts, pages."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import requests
from rich.table import Table

from gateway.client.client import GatewayClient
from gateway.client.errors import GatewayRefusedError, GatewayUnreachableError
from platform_words.headers import CALLER_KEY
from smoe.view.model import InstanceRow

TIMEOUT_S = 2.0


def generation_of(client: GatewayClient, ingress: str) -> Mapping[str, Any] | None:
    """What the first ready ingress of a decoder reports; None where there is none, or it does not answer. With several
    ingresses each schedules texts of its own."""
    try:
        feed, key = client.replicas(), client.caller_key(ingress)
    except (GatewayRefusedError, GatewayUnreachableError):
        return None
    for replica in feed.get(ingress, []):
        if replica["state"] == "ready":
            return _asked(str(replica["address"]), key)
    return None


def _asked(address: str, key: str) -> Mapping[str, Any] | None:
    with requests.Session() as session:
        session.trust_env = False
        try:
            reply = session.get(f"http://{address}/statistics", headers={CALLER_KEY: key}, timeout=TIMEOUT_S)
            reply.raise_for_status()
            document = reply.json()
        except (requests.RequestException, ValueError):
            return None
    generation = document.get("generation") if isinstance(document, dict) else None
    return generation if isinstance(generation, dict) else None


def rows_of(document: Mapping[str, Any]) -> tuple[InstanceRow, ...]:
    """By instance."""
    names = ("instance", "role", "running", "queue", "arriving", "pages_used", "pages")
    return tuple(
        InstanceRow(**{name: one[name] for name in names}, interval_s=one.get("interval_s") or None)
        for one in sorted(document["instances"], key=lambda one: int(one["instance"]))
    )


def words_of(document: Mapping[str, Any]) -> str:
    """``arrow, TTFT 2000 ms, TPOT 150 ms, parts of 256 tokens: 12 flips, 340 texts moved, 4.1 ms each``."""
    parts = f", parts of {document['chunk_tokens']} tokens" if "chunk_tokens" in document else ""  # of older ingresses
    if document["schedule"] == "colocated":
        return f"instances{parts}"
    moved = document["moved"]
    targets = f"TTFT {document['ttft_s'] * 1000:g} ms, TPOT {document['tpot_s'] * 1000:g} ms"
    each = f", {moved['took_ms']:.1f} ms each" if moved["texts"] else ""
    return (
        f"instances by {document['schedule']}, {targets}{parts}: {document['flips']} flips, {moved['texts']} texts "
        f"moved{each}"
    )


def instances_table(rows: Sequence[InstanceRow]) -> Table:
    """A line an instance."""
    table = Table(box=None, padding=(0, 3, 0, 0), pad_edge=False, header_style="dim")
    table.add_column("instance", no_wrap=True)
    table.add_column("role", no_wrap=True)
    for name in ("running", "queue", "arriving", "KV", "interval ms"):
        table.add_column(name, justify="right", no_wrap=True)
    for row in rows:
        table.add_row(
            str(row.instance),
            row.role,
            str(row.running),
            str(row.queue),
            str(row.arriving),
            f"{row.pages_used / row.pages:.0%}" if row.pages else "",
            f"{row.interval_s * 1000:.0f}" if row.interval_s else "",
        )
    return table
