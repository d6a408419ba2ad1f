"""docs/METRICS.md is held against the series and the decisions that there are."""

from __future__ import annotations

import re
import time
from pathlib import Path

import yaml

from gateway.fleet import rounds
from gateway.fleet.fleet import Fleet
from gateway.fleet.target import Target
from gateway.metrics.metrics import Metrics
from gateway.proxy import decisions
from gateway.routing.policy import least_load
from gateway.routing.scheduler import Scheduler

TEXT = (Path(__file__).parents[3] / "docs/METRICS.md").read_text(encoding="utf-8")
ROW = re.compile(r"^\| `(pharos_\w+)` \| (\w+) \| (.*?) \| (.+) \|$", re.M)


def series() -> Metrics:
    fleet = Fleet()
    scheduler: Scheduler[Target] = Scheduler(fleet, least_load, time.monotonic)
    return Metrics(fleet, scheduler, time.monotonic)


def test_every_series_has_a_row_with_its_type_and_its_labels_and_there_are_no_others() -> None:
    rows = {
        name: (kind, tuple(re.findall(r"`(\w+)`", labels))) for name, kind, labels, _ in ROW.findall(TEXT)
    }
    assert rows == {s.name: (s.kind, s.labels) for s in series().series}


def test_what_is_registered_is_what_is_listed() -> None:
    m = series()
    names = {f.name for f in m.describe()}
    assert {f.name for f in m.collect()} <= {n.removesuffix("_total") for n in names}


def test_every_decision_has_a_row_and_there_are_no_others() -> None:
    rows = re.findall(r"^\| `(\w+)` \| `(\w+)` \| .+ \|$", TEXT, re.M)
    wanted = {(s, str(d)) for s, kinds in decisions.STAGES.items() for kind in kinds for d in kind}
    wanted |= {(s, str(d)) for s, kind in rounds.STAGES.items() for d in kind}
    assert len(rows) == len(set(rows))
    assert set(rows) == wanted


def test_alerts_name_series_and_decisions_that_there_are() -> None:
    blocks = [yaml.safe_load(b) for b in re.findall(r"```yaml\n(.*?)```", TEXT, re.S)]
    rules = [r["expr"] for b in blocks if "groups" in b for g in b["groups"] for r in g["rules"]]
    assert len(rules) > 4
    known = {s.name for s in series().series}
    known |= {f"{s.name}_{end}" for s in series().timed for end in ("bucket", "sum", "count")}
    outcomes = {str(d) for kinds in decisions.STAGES.values() for kind in kinds for d in kind}
    for rule in rules:
        assert set(re.findall(r"pharos_\w+", rule)) <= known, rule
        for named in re.findall(r'outcome=~?"(.*?)"', rule):
            assert set(named.split("|")) <= outcomes, rule
