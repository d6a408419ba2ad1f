"""llama-swap: a proxy that starts and stops one engine process per model.

`/running` is the only place that tells what is in memory: `/v1/models` of v250 says `loaded` for a model
that is still starting, and older versions say nothing there. Its running and waiting requests are only in
`/api/events`, a stream without an end, so no probe reads them. Any path under `/upstream/` loads a model,
evicts another and restarts the model's ttl, and `/props?model=` does too: neither is ever asked.
"""

from __future__ import annotations

import msgspec

from engines.probes import Path, Probe, ProbeError, cold, json_probe
from engines.recipes.base import Findings, Recipe
from engines.recipes.common import OPENAI_MODELS, named, slots_of
from engines.signals import WHOLE_BACKEND, Reading, Residency, Signal, Value

RUNNING = Path("/running", "a list of its processes: starts none, restarts no ttl (v250)")
API_VERSION = Path("/api/version", "build information, from v173 on")
METRICS = Path("/metrics", "the host's gauges; nothing of models or requests (v250)")


class Process(msgspec.Struct):
    model: str | None = None
    state: str | None = None
    cmd: str | None = None


class Running(msgspec.Struct):
    running: list[Process] | None = None


STATES = {
    "starting": Residency.LOADING,
    "ready": Residency.LOADED,
    # It serves nobody new: a request that comes now waits for the end of the stop and for a whole load.
    "stopping": Residency.COLD,
}


def _residency(body: Running) -> Reading | None:
    if body.running is None:
        return None
    return {named(p.model, i): STATES.get(p.state or "") for i, p in enumerate(body.running)}


def _capacity(body: Running) -> Reading | None:
    """The slots of each process that is a llama-server and was told how many.

    9 streams against `llama-server … -np 2` ran as 2 and 7 waiting (v250, `saturated`). Another engine's
    command line is not read, and llama-swap's own limit of requests (10) is no capacity: above the
    slots they wait.
    """
    slots: dict[str, Value | None] = {
        named(p.model, i): _llama_server_slots(p.cmd or "") for i, p in enumerate(body.running or [])
    }
    return slots or None


def _llama_server_slots(cmd: str) -> int | None:
    words = cmd.split()
    for at, word in enumerate(words):
        if word.rsplit("/", 1)[-1] in ("llama-server", "llama-server.exe"):
            return slots_of(words[at + 1 :])
    return None


class Build(msgspec.Struct):
    version: str | None = None
    commit: str | None = None


def _version(body: Build) -> Reading | None:
    """Ollama answers this path too, with a version alone."""
    if body.version is None or body.commit is None:
        return None
    if not body.version.strip():
        raise ProbeError("the version is empty")
    return {WHOLE_BACKEND: body.version}


VERSION: Probe = json_probe("llamaswap-version", Signal.VERSION, API_VERSION, Build, _version)
RESIDENCY: Probe = json_probe(
    "llamaswap-residency", Signal.RESIDENCY, RUNNING, Running, _residency, unlisted=cold
)
CAPACITY: Probe = json_probe("llamaswap-capacity", Signal.CAPACITY, RUNNING, Running, _capacity)


def advice(findings: Findings) -> list[str]:
    if any("401" in why for why in findings.dropped.values()):
        return ["It wants one of its apiKeys: put the key into the config (`api_key`)."]
    notes = [
        "Its running and waiting requests are not known (only an endless stream, /api/events, has them): "
        "Pharos goes by the requests it sends itself.",
        "It refuses more than 10 requests at a time for one model with a 429 unless the model's "
        "concurrencyLimit says otherwise: keep that above the engine's own slots.",
    ]
    if not any(load.capacity for load in findings.snapshot.load.values()):
        notes.append(
            "How many requests a model can work on is read from the command line of a loaded llama-server "
            "(-np N) and is not known now: put `capacity: N` into its entry of the config."
        )
    notes.append(
        "With sendLoadingState a stream begins at once with made-up reasoning text while the model loads: "
        "leave it off to keep times to the first token true."
    )
    return notes


RECIPE = Recipe(
    kind="llama-swap",
    asked_before=frozenset({"ollama"}),  # it answers /api/version too
    title="llama-swap",
    probes=(VERSION, OPENAI_MODELS, RESIDENCY, CAPACITY),
    fingerprint=(RESIDENCY,),
    ports=(8080,),
    record_paths=(METRICS,),
    advice=advice,
)
