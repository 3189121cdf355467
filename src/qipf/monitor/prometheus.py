"""Prometheus metrics of a monitored stream, served by the official client library."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from qipf.errors import QIPFInputError, missing_extra
from qipf.monitor.watch import Report


class StreamMetrics:
    """Collector of the metrics of the last report."""

    def __init__(self) -> None:
        self.report: Report | None = None

    def collect(self) -> Iterator[Any]:
        """Yield the metrics; called by `prometheus_client`."""
        from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily

        report = self.report
        if report is None:
            return
        verdict, window = report.verdict, report.verdict.window
        start = None if verdict.start is None else verdict.start.ks_p_value
        accuracy = {} if verdict.accuracy is None else vars(verdict.accuracy)
        for name, text, count in [
            ("qipf_predictions", "Predictions seen.", verdict.seen),
            ("qipf_abstained", "Predictions not accepted.", verdict.abstained),
            ("qipf_bad_lines", "Input lines without logits.", report.bad_lines),
            ("qipf_verdicts", "Verdicts reported.", report.number),
        ]:
            yield CounterMetricFamily(name, text, value=count)
        for name, text, value in [
            ("qipf_shift_alarm", "1 after a shift was detected.", int(verdict.alarm)),
            ("qipf_shift_log_evidence", "Log evidence of a shift.", verdict.log_evidence),
            ("qipf_shift_p_value", "Anytime-valid p-value of no shift.", verdict.p_value),
            ("qipf_shift_change_point", "First prediction of the shift.", verdict.change_point),
            ("qipf_start_p_value", "P-value of the first window against held-out data.", start),
            ("qipf_window_ks", "Kolmogorov-Smirnov distance to held-out data.", window.ks),
            ("qipf_window_superiority", "P(higher score than held out).", window.superiority),
            ("qipf_window_mean_p", "Mean conformal p-value.", window.mean_p),
            ("qipf_window_abstained", "Predictions not accepted in the window.", window.abstained),
            ("qipf_accuracy", "Estimated accuracy of the window.", accuracy.get("accuracy")),
            ("qipf_accuracy_low", "Lower confidence bound.", accuracy.get("low")),
            ("qipf_accuracy_high", "Upper confidence bound.", accuracy.get("high")),
        ]:
            if value is not None:
                yield GaugeMetricFamily(name, text, value=value)


@contextmanager
def metrics_server(
    port: int, address: str = "127.0.0.1"
) -> Iterator[tuple[Callable[[Report], None], int]]:
    """Serve metrics while the block runs; yield a function that takes reports, and the port.

    Parameters
    ----------
    port : 0 selects a free port.
    address : by default only this machine can read the metrics.
    """
    try:
        from prometheus_client import CollectorRegistry, start_http_server
    except ImportError as error:
        raise missing_extra("Metrics need the package prometheus-client", "monitor") from error
    registry, metrics = CollectorRegistry(), StreamMetrics()
    registry.register(metrics)
    try:
        server, thread = start_http_server(port, addr=address, registry=registry)
    except (OSError, OverflowError) as error:
        raise QIPFInputError(
            f"Cannot serve metrics on {address}, port {port}: {str(error).rstrip('.')}."
        ) from error

    def take(report: Report) -> None:
        metrics.report = report

    try:
        yield take, server.server_port
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
