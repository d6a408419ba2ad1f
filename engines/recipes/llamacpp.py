"""llama.cpp's llama-server: one model (plain), or many that it loads and evicts itself (router mode).

What was seen on b9093, b10092, b10434 and b11434:

- while the model loads, every path answers 503; a router answers at once and lists each model's state;
- `/metrics` and `/slots` are the main loop's work: up to b10092 they wait for the running prefill batch
  (10 s for 2048 tokens on a small CPU), and they wake a server that put itself to sleep. `/props` and
  `/v1/models` do neither;
- in router mode `/metrics`, `/slots` and `/props` with `?model=` load that model and evict another, so
  none of them is asked: a router shows which models are in memory, and not what they are doing.
"""

from __future__ import annotations

import re

import msgspec

from engines.probes import Guard, Path, Probe, ProbeError, Witness, count, json_probe, prom
from engines.recipes.base import Findings, Recipe, SleepCheck
from engines.recipes.common import OPENAI_MODELS, V1_MODELS, named, slots_of
from engines.signals import WHOLE_BACKEND, Reading, Residency, Signal, Value

PROPS = Path("/props", "answered without the main loop: never blocked, never wakes a sleeping server")
METRICS = Path(
    "/metrics",
    "reads counters; without ?model= a router answers 400 and loads nothing",
    wakes=True,  # up to b10434; b11434 answers from a snapshot
)
SLOTS = Path(
    "/slots",
    "reads the slots; without ?model= a router answers 400 and loads nothing",
    wakes=True,  # always
)
HEALTH = Path("/health", "answered without the main loop")
MODELS = Path("/models", "the same list as /v1/models, answered without the main loop")


# -- /props ------------------------------------------------------------------------------------


class Defaults(msgspec.Struct):
    n_ctx: int | None = None  # tokens of one slot


class Props(msgspec.Struct):
    build_info: str | None = None
    total_slots: int | None = None
    is_sleeping: bool | None = None
    role: str | None = None  # "router", or absent
    max_instances: int | None = None  # of a router: models in memory at a time
    model_ftype: str | None = None  # not yet in b9093; in b10068 and later
    default_generation_settings: Defaults | None = None


BUILD = re.compile(r"b(\d+)-\S+")


def _version(props: Props) -> Reading | None:
    if props.build_info is None:
        return None
    if not BUILD.fullmatch(props.build_info):
        raise ProbeError(
            f"build_info {props.build_info[:80]!r} is not a llama.cpp build (b<number>-<commit>)"
        )
    return {WHOLE_BACKEND: props.build_info}


def build_number(version: str) -> int | None:
    """11434 of `b11434-1a2b3c4`. None of `b1-7e4c0a9`.

    A package built from a copy of the source without its history counts the commits of that copy: the
    wheels of b10068, b10092 and b10434 all call themselves b1. No build below 1000 has this API.
    """
    match = BUILD.fullmatch(version)
    number = int(match[1]) if match and len(match[1]) < 9 else 0
    return number if number >= 1000 else None


def since(build: int) -> Guard:
    """A version guard. A build whose number means nothing does not pass."""
    return lambda version: (build_number(version) or 0) >= build


def _capacity(props: Props) -> Reading | None:
    return None if not props.total_slots else {WHOLE_BACKEND: count("total_slots", props.total_slots)}


def _plain_residency(props: Props) -> Reading | None:
    """A plain server answers 200 here only with its one model loaded, or asleep."""
    if props.is_sleeping is None or not props.total_slots:
        return None
    return {WHOLE_BACKEND: Residency.COLD if props.is_sleeping else Residency.LOADED}


_props = msgspec.json.Decoder(Props)


def props_of(body: bytes | None) -> Props:
    """The body of /props; an empty one when it cannot be read."""
    try:
        return _props.decode(body or b"{}")
    except (msgspec.DecodeError, ValueError, RecursionError):
        return Props()


def asleep(body: bytes) -> bool:
    return props_of(body).is_sleeping is True


def counts_its_queue(body: bytes) -> bool:
    """Whether /props comes from a build after b9093, whatever its number says.

    `model_ftype` is absent in b9093 and there in b10068 and later; from b8772 on requests_deferred is true.
    """
    return props_of(body).model_ftype is not None


# -- /v1/models --------------------------------------------------------------------------------


class Status(msgspec.Struct):
    value: str | None = None
    args: list[str] | None = None  # the command line of the model's own process


class Meta(msgspec.Struct):
    size: int | None = None  # bytes of the weights


class Model(msgspec.Struct):
    id: str | None = None
    owned_by: str | None = None
    status: Status | None = None  # router mode only
    meta: Meta | None = None  # of a loaded model only


class Models(msgspec.Struct):
    data: list[Model] | None = None


STATES = {
    "unloaded": Residency.COLD,
    "loading": Residency.LOADING,
    "loaded": Residency.LOADED,
    "sleeping": Residency.COLD,  # its weights are freed; the next request loads them again
}
"""Other words (`downloading`, …) no recording has shown: such a model's state is unknown."""


def _own(models: Models) -> list[Model]:
    """The list, when it is llama.cpp's own: llama-swap lists `status` too, and means another thing by it."""
    return [m for m in models.data or [] if m.owned_by == "llamacpp"]


def _router_residency(models: Models) -> Reading | None:
    if not any(m.status for m in _own(models)):
        return None
    return {
        named(m.id, i): STATES.get((m.status and m.status.value) or "") for i, m in enumerate(_own(models))
    }


def _router_capacity(models: Models) -> Reading | None:
    """The slots a router gives each model: its process's own command line says so, also before it runs."""
    slots: dict[str, Value | None] = {
        named(m.id, i): slots_of(m.status.args or []) for i, m in enumerate(_own(models)) if m.status
    }
    return slots or None


def _size(models: Models) -> Reading | None:
    sizes: dict[str, Value | None] = {}
    for i, model in enumerate(_own(models)):
        size = model.meta.size if model.meta else None
        sizes[named(model.id, i)] = count("meta.size", size) if size else None
    return sizes or None


# -- /slots ------------------------------------------------------------------------------------


class Slot(msgspec.Struct):
    is_processing: bool | None = None


def _slots_running(slots: list[Slot]) -> Reading | None:
    if not slots or any(slot.is_processing is None for slot in slots):
        return None
    return {WHOLE_BACKEND: sum(slot.is_processing is True for slot in slots)}


# -- the recipe --------------------------------------------------------------------------------

VERSION: Probe = json_probe("llamacpp-version", Signal.VERSION, PROPS, Props, _version)
RUNNING: Probe = prom("llamacpp-running", METRICS, Signal.RUNNING, "llamacpp:requests_processing")
SLOTS_RUNNING: Probe = json_probe("llamacpp-slots-running", Signal.RUNNING, SLOTS, list[Slot], _slots_running)
WAITING: Probe = prom(
    "llamacpp-waiting",
    METRICS,
    Signal.WAITING,
    "llamacpp:requests_deferred",
    # older builds left waiting requests in the socket's backlog and counted 0 with a queue
    when=since(8772),
    witness=Witness(PROPS, counts_its_queue, "/props has model_ftype, so it is newer than b9093"),
)
"""A request whose client left stays counted until a slot comes free (b10434: 17 s with both slots busy)."""

CAPACITY: Probe = json_probe("llamacpp-capacity", Signal.CAPACITY, PROPS, Props, _capacity)
ROUTER_RESIDENCY: Probe = json_probe(
    "llamacpp-router-residency", Signal.RESIDENCY, V1_MODELS, Models, _router_residency
)
ROUTER_CAPACITY: Probe = json_probe(
    "llamacpp-router-capacity", Signal.CAPACITY, V1_MODELS, Models, _router_capacity
)
RESIDENCY: Probe = json_probe("llamacpp-residency", Signal.RESIDENCY, PROPS, Props, _plain_residency)
SIZE: Probe = json_probe("llamacpp-size", Signal.SIZE_BYTES, V1_MODELS, Models, _size)


def advice(findings: Findings) -> list[str]:
    props = props_of(findings.bodies.get(PROPS.url))
    if any("401" in why for why in findings.dropped.values()):
        return [
            "It was started with --api-key and does not show its load without that key: put it into the "
            "config (`api_key`)."
        ]
    if props.role == "router":
        return _router_advice(props)
    return [*_load_advice(findings), *_context_advice(props), *_sleep_advice(props)]


def _load_advice(findings: Findings) -> list[str]:
    waiting = findings.dropped.get(WAITING.name, "")
    notes = []
    if "501" in waiting:
        notes.append(
            "Started without --metrics, so how many requests wait inside it is not known: "
            "start it with --metrics."
        )
    elif "version guard" in waiting:
        notes.append(
            "How many requests wait inside it is not known: builds before b8772 report 0 with a full queue, "
            f"and this one ({findings.snapshot.version}) does not show that it is newer. Update llama.cpp."
        )
    if Signal.RUNNING not in findings.snapshot.source and "501" in findings.dropped.get(
        SLOTS_RUNNING.name, ""
    ):
        notes.append(
            "Started with --no-slots and without --metrics, so how many requests it works on is not known: "
            "start it with --metrics."
        )
    version = findings.snapshot.version
    if version is not None and build_number(version) is None:
        notes.append(
            f"It calls itself {version}: a packager's number, which says nothing of its age. Where the age "
            "matters it is told from what the server answers."
        )
    return notes


def _context_advice(props: Props) -> list[str]:
    context = props.default_generation_settings and props.default_generation_settings.n_ctx
    if not context or not props.total_slots or props.total_slots < 2:
        return []
    return [
        f"Each of its {props.total_slots} slots has {context} tokens of context, and a longer prompt is "
        "refused: -c is shared out among the -np slots, so raise -c or lower -np for longer ones."
    ]


def _sleep_advice(props: Props) -> list[str]:
    if not props.is_sleeping:
        return []
    return [
        "It is asleep (--sleep-idle-seconds), and is left so: its load is not asked for until it is awake. "
        "Before b11434 reading the load of an awake one keeps it awake: start those without --metrics and "
        "with --no-slots if they shall sleep."
    ]


def _router_advice(props: Props) -> list[str]:
    kept = f"{props.max_instances} model(s)" if props.max_instances else "a few models"
    return [
        f"Router mode: it keeps {kept} in memory (--models-max), and a request for another one evicts one. "
        "Up to b10092 that cuts the evicted model's running streams; later builds let the new request wait.",
        "In router mode its running and waiting requests are not known: asking would load models. "
        "Pharos goes by the requests it sends itself.",
    ]


RECIPE = Recipe(
    kind="llamacpp",
    title="llama.cpp",
    probes=(
        VERSION,
        OPENAI_MODELS,
        ROUTER_RESIDENCY,
        RESIDENCY,
        SIZE,
        RUNNING,
        SLOTS_RUNNING,
        WAITING,
        CAPACITY,
        ROUTER_CAPACITY,
    ),
    fingerprint=(VERSION,),
    ports=(8080,),
    server_header="llama.cpp",
    sleep=SleepCheck(PROPS, asleep),
    record_paths=(HEALTH, MODELS),
    load_interval_s=2.5,  # a poll a second can keep an abandoned request alive (b10434, b11434)
    closes_after_stream=True,  # 0.4 ms after the last chunk, announcing keep-alive (b10068, b10092, b10434)
    advice=advice,
)
