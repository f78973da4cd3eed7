"""What `/metrics` shows, in the form of Prometheus. No label holds what a client wrote."""

from __future__ import annotations

from collections.abc import Callable

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, exposition, generate_latest

MEDIA = exposition.CONTENT_TYPE_LATEST

_SECONDS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 120)


class Metrics:
    """Counters of one service.

    Args:
        workers: returns the number of workers that are there.
        replaced: returns how many were lost so far.
        places: returns the number of requests that are worked on.
    """

    def __init__(
        self, workers: Callable[[], float], replaced: Callable[[], float], places: Callable[[], float]
    ) -> None:
        self._registry = CollectorRegistry()
        kept = self._registry
        self.requests = Counter(
            "iet_requests",
            "Requests that were answered, or whose client went.",
            ("path", "status"),
            registry=kept,
        )
        self.request_seconds = Histogram(
            "iet_request_seconds",
            "From the head of a request to its end.",
            ("path",),
            buckets=_SECONDS,
            registry=kept,
        )
        self.audits = Counter(
            "iet_audits", "Texts that workers were given, by outcome.", ("outcome",), registry=kept
        )
        self.audit_seconds = Histogram(
            "iet_audit_seconds", "Of a text, with its wait for a worker.", buckets=_SECONDS, registry=kept
        )
        shown = {
            "iet_requests_at_work": ("Requests that are worked on.", places),
            "iet_workers": ("Workers that are there.", workers),
            "iet_workers_lost": ("Workers that died or were killed, and were replaced.", replaced),
        }
        for name, (said, value) in shown.items():
            Gauge(name, said, registry=kept).set_function(value)

    def show(self) -> bytes:
        """Return all of them."""
        shown: bytes = generate_latest(self._registry)
        return shown
