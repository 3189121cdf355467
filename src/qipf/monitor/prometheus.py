"""Prometheus metrics of a watched stream, served by the official client library."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from qipf.errors import QIPFInputError
from qipf.monitor.watch import Report


class StreamMetrics:
    """What Prometheus is told: the last report that was put here."""

    def __init__(self) -> None:
        self.report: Report | None = None

    def collect(self) -> Iterator[Any]:
        """The metrics by name, as `prometheus_client` asks for them."""
        from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily

        report = self.report
        if report is None:
            return
        verdict, window = report.verdict, report.verdict.window
        counters: dict[str, tuple[str, float]] = {
            "qipf_predictions": ("Predictions seen.", verdict.seen),
            "qipf_abstained": ("Predictions not to be acted on.", verdict.abstained),
            "qipf_bad_lines": ("Input lines without logits.", report.bad_lines),
            "qipf_verdicts": ("Verdicts told.", report.number),
        }
        gauges: dict[str, tuple[str, float]] = {
            "qipf_shift_alarm": ("1 once the stream was found to differ.", int(verdict.alarm)),
            "qipf_shift_log_evidence": ("Log of the evidence of a shift.", verdict.log_evidence),
            "qipf_shift_p_value": ("Anytime-valid p-value of no shift.", verdict.p_value),
            "qipf_window_ks": ("Kolmogorov-Smirnov distance to held-out data.", window.ks),
            "qipf_window_superiority": (
                "P(more uncertain than a held-out prediction).",
                window.superiority,
            ),
            "qipf_window_mean_p": ("Mean conformal p-value.", window.mean_p),
            "qipf_window_abstained": ("Abstained in the window.", window.abstained),
        }
        if verdict.since is not None:
            gauges["qipf_shift_since"] = ("Prediction the shift began with.", verdict.since)
        if verdict.accuracy is not None:
            accuracy = verdict.accuracy
            gauges["qipf_accuracy"] = ("Estimated accuracy of the window.", accuracy.accuracy)
            gauges["qipf_accuracy_low"] = ("Lower bound of it.", accuracy.low)
            gauges["qipf_accuracy_high"] = ("Upper bound of it.", accuracy.high)
        for name, (text, value) in counters.items():
            yield CounterMetricFamily(name, text, value=value)
        for name, (text, value) in gauges.items():
            yield GaugeMetricFamily(name, text, value=value)


@contextmanager
def metrics_server(
    port: int, address: str = "127.0.0.1"
) -> Iterator[tuple[Callable[[Report], None], int]]:
    """Serve metrics while the block runs; gives what takes reports, and the port that is used.

    Parameters
    ----------
    port : 0 takes any that is free.
    address : loopback, unless others are to see the metrics.
    """
    try:
        from prometheus_client import CollectorRegistry, start_http_server
    except ImportError as error:
        raise QIPFInputError(
            "Metrics need the package prometheus-client: pip install 'qipf[monitor]'."
        ) from error
    registry, metrics = CollectorRegistry(), StreamMetrics()
    registry.register(metrics)
    try:
        server, thread = start_http_server(port, addr=address, registry=registry)
    except (OSError, OverflowError) as error:
        told = f"Cannot serve metrics on {address}, port {port}: {str(error).rstrip('.')}."
        raise QIPFInputError(told) from error

    def take(report: Report) -> None:
        metrics.report = report

    try:
        yield take, server.server_port
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
