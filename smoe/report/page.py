"""The HTML page: one file, pictures inside it, nothing loaded from anywhere."""

from __future__ import annotations

import base64
import json
from collections.abc import Mapping
from typing import Any

import jinja2

from autoscaler.prices import money
from platform_words.durations import duration
from smoe.report.closing import kept, verdict
from smoe.report.folding import folded
from smoe.report.model import Action

MOST_ACTIONS = 300

PAGE = """<!doctype html>
<html lang="en"><head><meta charset="utf-8"><meta name="viewport" content="width=device-width, initial-scale=1">
<title>{{ title }}</title>
<style>
 body { font: 15px/1.5 system-ui, sans-serif; color: #24323d; background: #f5f6f7; margin: 0 auto; max-width:
 1080px; padding: 24px; } h1 { font-size: 1.5rem; margin: 0 0 .2rem } h2 { font-size: 1.1rem; margin: 2rem 0 .5rem
 } p { margin: .3rem 0 .8rem; color: #55636d } .tiles { display: grid; grid-template-columns: repeat(auto-fit,
 minmax(min(220px, 45%), 1fr)); gap: 12px; margin: 18px 0 } .tile { background: #fff; border-radius: 8px; padding:
 12px 14px; border-left: 4px solid #9aa5ad }
 .tile b { display: block; font-size: 1.25rem } .tile small { color: #55636d }
 .good { border-color: #3a8f5c } .bad { border-color: #c23b3b }
 figure { background: #fff; border-radius: 8px; margin: 0; padding: 12px } img { max-width: 100%; display: block;
 margin: auto } table { border-collapse: collapse; width: 100%; background: #fff; font-size: .87rem }
 th, td { text-align: left; padding: 4px 10px; border-bottom: 1px solid #e6e9eb; vertical-align: top } th { color:
 #55636d } .n { text-align: right; white-space: nowrap; font-variant-numeric: tabular-nums }
 pre { background: #fff; padding: 12px; border-radius: 8px; overflow: auto; font-size: .8rem } details {
 margin-top: 1rem } td details { margin: 0 } td:nth-child(3) { min-width: 9.5em } </style></head><body>
<h1>{{ title }}</h1>
<p><b>{{ verdict }}</b></p>
{% if subtitle %}<p>{{ subtitle }}</p>{% endif %}{% if origin %}
<p>{{ origin }}</p>{% endif %}
<div class="tiles">{% for tile in tiles %}
 <div class="tile {{ tile.mood }}"><small>{{ tile.name }}</small><b>{{ tile.value }}</b><small>{{ tile.note
 }}</small></div>{% endfor %} </div>
{% for figure in figures %}
<h2>{{ figure.title }}</h2><p>{{ figure.about }}</p>
<figure><img alt="{{ figure.title }}" src="data:image/png;base64,{{ figure.data }}"></figure>
{% endfor %}
<h2>Windows above the SLO</h2>
{% if violations %}<table><tr>{% for head in ("from (s)", "to (s)", "P95 (ms)", "answers")
%}<th class="n">{{ head }}</th>{% endfor %}</tr>
{% for row in violations %}<tr><td class="n">{{ "%.0f"|format(row.start_s) }}</td><td class="n">{{
"%.0f"|format(row.end_s) }}</td> <td class="n">{{
"none" if row.p95_s is none else "%.1f"|format(1000 * row.p95_s) }}</td><td class="n">{{
row.answers }}</td></tr> {% endfor %}</table>{% else %}<p>None.</p>{% endif %}
<h2>The decisions that moved most money</h2>
{% if explained %}<ul>{% for sentence in explained %}<li>{{ sentence }}</li>{% endfor %}</ul>
{% else %}<p>None.</p>{% endif %}
<h2>What the controller did, and why</h2>
{% if actions %}<table><tr><th class="n">time (s)</th><th>function</th><th>change</th><th>reason</th></tr>
{% for row in actions %}<tr><td class="n">{{ "%.0f"|format(row.at_s) }}</td><td>{% if row.functions|length > 1
%}<details><summary>{{ row.who }}</summary>{{ row.functions|join(", ") }}</details>{% else %}{{ row.who }}{% endif
%}</td><td>{{ row.change }}{% if not row.applied %} <b>not applied</b>{% endif %}</td><td>{{ row.reason }}</td></tr>
{% endfor %}</table>{% if left_out %}<p>{{ left_out }} more are in report.json's counts and in the log.</p>{% endif %}
{% else %}<p>It changed nothing.</p>{% endif %}
{% if source %}<p>Arrivals: {{ source }}.</p>{% endif %}
<details><summary>Settings: trace, seeds and everything else that was set</summary><pre>{{ meta }}</pre></details>
<details><summary>All numbers (the same as report.json)</summary><pre>{{ numbers }}</pre></details>
</body></html>
"""


def page(
    numbers: Mapping[str, Any], pictures: Mapping[str, bytes], actions: tuple[Action, ...], start_s: float, slo_s: float
) -> str:
    """The whole HTML text. ``pictures`` are PNG by the names latency, scale, experts, actions."""
    meta = numbers["meta"]
    environment = jinja2.Environment(autoescape=True, undefined=jinja2.StrictUndefined)
    folds = folded(actions)
    rows = [
        {
            "at_s": one.actions[0].time_s - start_s,
            "who": one.who,
            "functions": one.functions,
            "change": one.change,
            "reason": one.why,
            "applied": one.actions[0].applied,
        }
        for one in folds[:MOST_ACTIONS]
    ]
    return environment.from_string(PAGE).render(
        title=f"sMoE run: {meta.get('pipeline', 'pipeline')} under policy {meta.get('policy', 'unknown')}",
        subtitle=subtitle(meta.get("trace", {})),
        source=str(meta.get("trace", {}).get("source", "")),
        origin=origin(meta),
        verdict=verdict(numbers, slo_s),
        tiles=_tiles(numbers, slo_s),
        figures=[
            {"title": title, "about": about, "data": base64.b64encode(pictures[name]).decode()}
            for name, title, about in FIGURES
        ],
        violations=numbers["windows"]["violations"],
        actions=rows,
        explained=numbers["explained"],
        left_out=sum(len(one.functions) for one in folds[MOST_ACTIONS:]),
        meta=json.dumps(meta, indent=1, ensure_ascii=False, sort_keys=True),
        numbers=json.dumps(
            {key: value for key, value in numbers.items() if key != "meta"}, indent=1, ensure_ascii=False
        ),
    )


def subtitle(trace: Mapping[str, Any]) -> str:
    """What was replayed, in plain words; empty where ``trace`` (``traces.results.describe``) does not have it."""
    if "requests" not in trace or "duration_s" not in trace:
        return ""
    cv = "" if trace.get("iat_cv") is None else f", {trace['pattern']} arrivals (CV {trace['iat_cv']:.1f})"
    return f"{trace['requests']:,} requests in {trace['duration_s']:g} s{cv}"


def origin(meta: Mapping[str, Any]) -> str:
    """Command, time, version, commit and machine of a run, as far as ``meta`` has them."""
    machine = meta.get("machine", {})
    cores = f"{machine['cpu_cores']} cores, {machine['cpu_model']}" if "cpu_model" in machine else ""
    revision, _, changes = (meta.get("commit") or "").partition("+")
    commit = f" (commit {revision[:12]}{', with changes' if changes else ''})" if revision else ""
    version = f"sMoE {meta['version']}{commit}" if "version" in meta else ""
    return " · ".join(part for part in (meta.get("command"), meta.get("begun"), version, cores) if part)


FIGURES = (
    ("latency", "Latency against the SLO",
     "Measured by the client, from sending until the whole answer; a window's P95 counts the answers that came in it."),
    ("scale", "Load, replicas and cost",
     "Provisioned cost is what a cluster's owner pays (replicas by time); "
        "busy cost counts only the seconds in which calls were served."),
    ("experts", "Which experts got the tokens", "Shares of each layer's tokens: an even layer would be one colour."),
    ("actions", "What the controller changed, and when", "Filled: applied. Hollow: not applied (dry run or failure). "
        "A number: so many functions in one row had the same change."),
)  # fmt: skip


def _tiles(numbers: Mapping[str, Any], slo_s: float) -> list[dict[str, str]]:
    requests, windows, cost = numbers["requests"], numbers["windows"], numbers["cost"]
    latency = requests["latency_s"]
    p95 = latency["p95"] if latency else None
    attained = requests["slo_attainment"]
    return [
        _tile("P95", duration(p95), f"SLO {duration(slo_s)}", None if p95 is None else kept(numbers, slo_s)),
        _tile(
            "P50 / P99",
            f"{duration(latency['p50'])} / {duration(latency['p99'])}" if latency else "no data",
            "ok answers",
            None,
        ),
        _tile("within the SLO", "no data" if attained is None else f"{100 * attained:.1f} %", "of all requests", None),
        _tile(
            "windows above",
            f"{windows['violated']} of {windows['judged']}",
            f"worst {duration(windows['worst_p95_s'])}",
            windows["violated"] == 0 if windows["judged"] else None,
        ),
        _tile(
            "requests",
            str(requests["requests"]),
            f"{requests['failed']} failed of {requests['planned']} planned",
            requests["failed"] == 0 if requests["requests"] else None,
        ),
        *(
            _tile(
                f"cost {meter}",
                _money(cost[f"{meter}_per_hour"], numbers["currency"]),
                _total(cost[f"{meter}_total"], numbers["currency"]),
                None,
            )
            for meter in ("provisioned", "busy")
        ),
        _tile("changes", str(numbers["actions"]["count"]), f"{numbers['actions']['applied']} applied", None),
    ]


def _tile(name: str, value: str, note: str, good: bool | None) -> dict[str, str]:
    return {"name": name, "value": value, "note": note, "mood": "" if good is None else "good" if good else "bad"}


def _money(value: float | None, currency: str) -> str:
    return "no data" if value is None else f"{money(value, currency)}/h"


def _total(value: float | None, currency: str) -> str:
    return "not measured" if value is None else f"{money(value, currency)} in all"
