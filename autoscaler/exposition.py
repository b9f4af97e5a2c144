"""What a controller exposes over HTTP: ``/metrics`` for Prometheus, ``/view``, its last window, ``/healthz``.

Without a password, as metrics are; ``deploy/`` lets only Prometheus and the gateway reach the port.
"""

from __future__ import annotations

import socketserver
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from wsgiref.simple_server import WSGIRequestHandler, WSGIServer, make_server

from prometheus_client import CollectorRegistry, make_wsgi_app
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric

from autoscaler.contract import Decision, TickReport
from autoscaler.errors import SettingsError
from autoscaler.loop import short
from autoscaler.platforms.shadow import METERS, ShadowBill
from autoscaler.state.targets import Targets
from autoscaler.view import result_of, worth_reporting

SLO = "smoe_controller_slo_seconds"
"""Gauge {pipeline}: target of the P95; absent without one."""
TTFT_SLO = "smoe_controller_ttft_slo_seconds"
"""Gauge {pipeline}: target of the P95 of a decoder's time to first token; absent without one."""
TPOT_SLO = "smoe_controller_tpot_slo_seconds"
"""Gauge {pipeline}: target of the P95 of a decoder's time from token to token; absent without one."""
COST = "smoe_controller_cost_per_hour"
"""Gauge {pipeline, meter}: cost of an hour like the last window, in the price sheet's currency; meter is busy or
provisioned."""
DECISION = "smoe_controller_decision_seconds"
"""Gauge {pipeline}: policy and limits in the last tick."""
LAST_TICK = "smoe_controller_last_tick_timestamp_seconds"
"""Gauge {pipeline}: Unix time of the last window's end."""
DECISIONS = "smoe_controller_decisions_total"
"""Counter {pipeline, result}: decisions; result is applied, failed, held, kept or dry run."""
SHADOW_COST = "smoe_controller_shadow_cost_total"
"""Counter {pipeline, meter, of}: with ``--shadow``: cost of the run; of is real or shadow."""
WINDOWS = "smoe_controller_windows_total"
"""Counter {pipeline, policy}: windows by the policy that decided: hpa where it stood in for another."""
LAST_DECISION = "smoe_controller_last_decision_timestamp_seconds"
"""Gauge {pipeline, function, result, present, ``wish``, target, limits, reason}: Unix time of a function's last change
or limit met."""
HOUR_S = 3600.0
REPORTED = 20
"""Functions whose last decision is exposed: each is a series that ends when newer ones take its place."""
TEXT = 200
"""Characters of a reason that are exposed."""
EVERYWHERE = "0.0.0.0"  # noqa: S104  (Prometheus comes from elsewhere)


class ControllerMetrics:
    """A collector of the controller's own numbers; label ``pipeline`` everywhere. ``bill``: of a shadow."""

    def __init__(self, pipeline: str, targets: Targets, bill: ShadowBill | None = None) -> None:
        self._bill = bill
        self._pipeline = pipeline
        self._targets = targets
        self._last: TickReport | None = None
        self._results: Counter[str] = Counter()
        self._windows: Counter[str] = Counter()
        self._decided: dict[str, tuple[list[str], float]] = {}
        """Function → labels and time of its last decision, the newest at the end."""

    def add(self, report: TickReport) -> None:
        """Take in one tick."""
        self._results.update(result_of(one, report) for one in report.decisions)
        self._windows[report.policy] += 1
        self._last = report
        notable = [one for one in report.decisions if worth_reporting(one)][-REPORTED:]
        for decision in notable:
            self._decided.pop(decision.function, None)
            self._decided[decision.function] = _labels(decision, report), report.observation.end_s
        for function in list(self._decided)[:-REPORTED]:
            del self._decided[function]

    def collect(self) -> Iterator[Metric]:
        targets = []
        for name, words, target_s in (
            (SLO, "Target of the P95 latency", self._targets.slo_s),
            (TTFT_SLO, "Target of the P95 of the time to a text's first token", self._targets.ttft_s),
            (TPOT_SLO, "Target of the P95 of the time between a text's tokens", self._targets.tpot_s),
        ):
            targets.append(GaugeMetricFamily(name, words, labels=["pipeline"]))
            if target_s is not None:
                targets[-1].add_metric([self._pipeline], target_s)
        cost = GaugeMetricFamily(COST, "Cost of an hour as the last window was", labels=["pipeline", "meter"])
        decision = GaugeMetricFamily(DECISION, "Seconds that the last decision took", labels=["pipeline"])
        tick = GaugeMetricFamily(LAST_TICK, "Unix time of the last window's end", labels=["pipeline"])
        if self._last is not None:
            observation = self._last.observation
            for meter, value in (("busy", self._last.cost.busy), ("provisioned", self._last.cost.provisioned)):
                if value is not None:
                    cost.add_metric([self._pipeline, meter], value * HOUR_S / observation.window_s)
            decision.add_metric([self._pipeline], self._last.decision_s)
            tick.add_metric([self._pipeline], observation.end_s)
        made = CounterMetricFamily(DECISIONS, "Decisions by what became of them", labels=["pipeline", "result"])
        for result, count in sorted(self._results.items()):
            made.add_metric([self._pipeline, result], count)
        windows = CounterMetricFamily(WINDOWS, "Windows by the policy that decided", labels=["pipeline", "policy"])
        for policy, count in sorted(self._windows.items()):
            windows.add_metric([self._pipeline, policy], count)
        last_decision = GaugeMetricFamily(
            LAST_DECISION,
            "Unix time of a function's last decision that changed something or met a limit",
            labels=["pipeline", "function", "result", "present", "wish", "target", "limits", "reason"],
        )
        for labels, end_s in list(self._decided.values()):
            last_decision.add_metric([self._pipeline, *labels], end_s)
        yield from (*targets, cost, decision, tick, made, windows, last_decision)
        if self._bill is not None:
            yield self._shadow_cost(self._bill)

    def _shadow_cost(self, bill: ShadowBill) -> Metric:
        family = CounterMetricFamily(
            SHADOW_COST, "Cost of the run as it was and as it would have been", labels=["pipeline", "meter", "of"]
        )
        for meter in METERS:
            family.add_metric([self._pipeline, meter, "real"], bill.real[meter])
            family.add_metric([self._pipeline, meter, "shadow"], bill.shadow[meter])
        return family


def _labels(decision: Decision, report: TickReport) -> list[str]:
    return [
        decision.function,
        result_of(decision, report),
        short(decision.present),
        short(decision.desired),
        short(decision.target),
        _cut("; ".join(decision.limits_hit)),
        _cut(decision.reason),
    ]


def _cut(text: str) -> str:
    return text if len(text) <= TEXT else text[: TEXT - 1] + "…"


class _Server(socketserver.ThreadingMixIn, WSGIServer):
    daemon_threads = True


class _NoRequestLog(WSGIRequestHandler):
    timeout = 10

    def log_message(self, format: str, *args: object) -> None:
        """Scrapes are not worth a line."""


class Exposition:
    """The server; ``view`` gives the document of ``/view``, ``trouble`` what is wrong with this program (empty where
    nothing is), with which ``/healthz`` answers 503. Raises SettingsError where the port is taken."""

    def __init__(
        self,
        port: int,
        registry: CollectorRegistry,
        view: Callable[[], bytes],
        trouble: Callable[[], str] = lambda: "",
        host: str = EVERYWHERE,
    ) -> None:
        metrics = make_wsgi_app(registry)

        def app(environ: dict[str, object], start_response: Callable[..., object]) -> object:
            path = environ.get("PATH_INFO")
            if path == "/healthz":
                said = trouble()
                status = "503 Service Unavailable" if said else "200 OK"
                start_response(status, [("Content-Type", "text/plain; charset=utf-8"), ("Cache-Control", "no-store")])
                return [(said or "OK").encode() + b"\n"]
            if path == "/view":
                start_response("200 OK", [("Content-Type", "application/json"), ("Cache-Control", "no-store")])
                return [view()]
            return metrics(environ, start_response)

        try:
            self._server = make_server(host, port, app, server_class=_Server, handler_class=_NoRequestLog)  # type: ignore[arg-type]
        except OSError as error:
            raise SettingsError(f"metrics_port is {port}, which cannot be listened on: {error.strerror}") from error
        self.port = int(self._server.server_port)
        self._thread = threading.Thread(target=self._server.serve_forever, name="exposition", daemon=True)
        self._thread.start()

    def close(self) -> None:
        """Stop serving."""
        self._server.shutdown()
        self._server.server_close()
        self._thread.join(timeout=5.0)
