"""A watch of a file, run to its end."""

from qipf import ShiftMonitor
from qipf.monitor.lines import LineSource
from qipf.monitor.parsing import LineParser
from qipf.monitor.watch import Watch

#: Number of lines of `stream`.
LINES = 57


def watch(
    field,
    path,
    state=None,
    reports=None,
    warnings=None,
    stopping=lambda: False,
    follow=False,
    monitor=None,
    **options,
):
    """Run a watch; return the reports and the warnings."""
    reports, warnings = [] if reports is None else reports, [] if warnings is None else warnings
    if monitor is None:
        exists = state is not None and state.exists()
        monitor = ShiftMonitor.load(state, field) if exists else ShiftMonitor(field, window=10)
    with LineSource(path, follow, stopping) as source:
        Watch(monitor, source, state, reports.append, warnings.append, **options).run(
            LineParser(10, source.name)
        )
    return reports, warnings
