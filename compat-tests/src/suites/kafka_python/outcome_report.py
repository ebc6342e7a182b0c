"""Writes what becomes of each test as one line of JSON, into the file that REPORT names."""

import json
import os


def pytest_collection_modifyitems(items):
    for item in items:
        write(item.nodeid, "begun", "")


def pytest_runtest_logreport(report):
    if report.when == "call" or report.outcome != "passed":
        write(report.nodeid, report.outcome, reason(report) or report.longreprtext)


def pytest_collectreport(report):
    if report.failed:
        write(report.nodeid, "failed", report.longreprtext)


def reason(report):
    return report.longrepr[2] if isinstance(report.longrepr, tuple) else ""


def write(name, outcome, detail):
    with open(os.environ["REPORT"], "a", encoding="utf-8") as file:
        file.write(json.dumps([name, outcome, detail[-4000:]]) + "\n")
