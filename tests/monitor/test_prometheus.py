"""Prometheus metrics of a monitored stream."""

import builtins
import socket
import urllib.error
import urllib.request

import numpy as np
import pytest

from qipf import QIPFError, QIPFInputError, ShiftMonitor
from qipf.calibration.conformal import Calibration
from qipf.monitor.prometheus import metrics_server
from qipf.monitor.watch import Report


@pytest.fixture
def verdict(rng):
    monitor = ShiftMonitor(Calibration(rng.normal(size=300), rng.uniform(size=300) < 0.1))
    return monitor.update_scores(np.append(rng.normal(loc=3, size=60), np.nan))


def scraped(port):
    with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=30) as answer:
        lines = answer.read().decode().splitlines()
    return {line.split()[0]: float(line.split()[1]) for line in lines if line[:1] != "#"}


@pytest.mark.slow
def test_the_last_report_is_served(verdict):
    with metrics_server(0) as (take, port):
        assert scraped(port) == {}
        take(Report(4, 70, 9, verdict))
        told = scraped(port)
    assert told == {
        "qipf_predictions_total": 61,
        "qipf_abstained_total": 1,
        "qipf_bad_lines_total": 9,
        "qipf_verdicts_total": 4,
        "qipf_shift_alarm": 1,
        "qipf_shift_log_evidence": verdict.log_evidence,
        "qipf_shift_p_value": verdict.p_value,
        "qipf_shift_change_point": verdict.change_point,
        "qipf_window_ks": verdict.window.ks,
        "qipf_window_superiority": verdict.window.superiority,
        "qipf_window_mean_p": verdict.window.mean_p,
        "qipf_window_abstained": 1,
        "qipf_accuracy": verdict.accuracy.accuracy,
        "qipf_accuracy_low": verdict.accuracy.low,
        "qipf_accuracy_high": verdict.accuracy.high,
    }
    with pytest.raises(urllib.error.URLError):
        scraped(port)  # it ends with the block


@pytest.mark.slow
def test_unknown_values_are_left_out(rng):
    calm = ShiftMonitor(Calibration(rng.normal(size=300))).update_scores(rng.normal(size=5))
    with metrics_server(0) as (take, port):
        take(Report(1, 5, 0, calm))
        told = scraped(port)
    assert told["qipf_shift_alarm"] == 0
    assert not {"qipf_shift_change_point", "qipf_accuracy"} & set(told)


def test_an_unusable_port_is_rejected():
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        for port in (taken.getsockname()[1], 99999):
            with (
                pytest.raises(QIPFInputError, match=f"Cannot serve metrics .* port {port}"),
                metrics_server(port),
            ):
                pass


def test_without_the_package_the_error_names_it(monkeypatch):
    real = builtins.__import__

    def without(name, *rest):
        if name.startswith("prometheus_client"):
            raise ImportError(name)
        return real(name, *rest)

    monkeypatch.setattr(builtins, "__import__", without)
    with pytest.raises(QIPFError, match="pip install"), metrics_server(0):
        pass
