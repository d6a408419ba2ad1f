"""The status pages of a double: recorded ones with the machine's state put in. Pure."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from engines.doubles.clone import Json, rfc3339, style_of, substituted
from engines.doubles.kinds import Imitation
from engines.doubles.machine import Machine
from engines.doubles.recordings import CAPTURES, NoRecording, pages
from engines.signals import Residency


@dataclass(frozen=True, slots=True)
class Scene:
    """All a page is made from. `now` since the epoch, `machine_now` on the machine's clock, seconds."""

    imitation: Imitation
    names: Sequence[str]
    machine: Machine
    now: float
    speed: float = 1.0

    @property
    def state(self) -> str:
        return f"{self.imitation.recording}/{self.imitation.idle}"

    def wall(self, machine_at: float) -> float:
        return self.now + (machine_at - self.machine.now) / self.speed


Painter = Callable[[Scene, bytes], bytes]


def paint(scene: Scene, path: str, body: bytes) -> bytes:
    """The page of `path`, made from its recorded body."""
    painter = PAINTERS.get(scene.imitation.kind, {}).get(path)
    return painter(scene, body) if painter else body


def _json(scene: Scene, body: bytes, change: Callable[[Scene, Json], Json]) -> bytes:
    end = body[len(body.rstrip()) :]
    return style_of([body.rstrip()])(change(scene, json.loads(body))) + end


def _page(change: Callable[[Scene, Json], Json]) -> Painter:
    return lambda scene, body: _json(scene, body, change)


def recorded(state: str, path: str) -> Json:
    """Raises NoRecording."""
    page = pages(state).get(("GET", path))
    if page is None:
        raise NoRecording(f"{CAPTURES / state} has no {path}")
    return json.loads(page.body)


# -- Prometheus --------------------------------------------------------------------------------


def gauge(body: bytes, name: str, value: float, *, labels: str = "") -> bytes:
    """The value of every sample of a metric (with `labels` among its own), written as it was recorded."""
    inside = rb"\{[^}\n]*%s[^}\n]*\}" % re.escape(labels.encode())
    pattern = rb"(?m)^(%s%s )(\S+)$" % (
        re.escape(name.encode()),
        inside if labels else b"(?:" + inside + b")?",
    )

    def put(match: re.Match[bytes]) -> bytes:
        whole = float(value).is_integer() and b"." not in match[2]
        return match[1] + (str(int(value)) if whole else repr(float(value))).encode()

    return re.sub(pattern, put, body)


def _added(body: bytes, name: str, more: int) -> bytes:
    """A counter, from its recorded value on."""
    match = re.search(rb"(?m)^%s(?:\{[^}\n]*\})? (\S+)$" % re.escape(name.encode()), body)
    return body if match is None or not more else gauge(body, name, float(match[1]) + more)


def _relabelled(body: bytes, old: str, new: str) -> bytes:
    escaped = new.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")
    return body.replace(f'model_name="{old}"'.encode(), f'model_name="{escaped}"'.encode())


# -- llama.cpp ---------------------------------------------------------------------------------


def _llamacpp_models(scene: Scene, value: Json) -> Json:
    new = substituted(value, {scene.imitation.names[0]: scene.names[0]})
    new["data"][0]["meta"]["size"] = scene.machine.size_of(scene.names[0])
    return new


def _llamacpp_props(scene: Scene, value: Json) -> Json:
    return value | {"total_slots": scene.machine.physics.slots, "model_alias": scene.names[0]}


def _llamacpp_slots(scene: Scene, value: Json) -> Json:
    """A slot never used shows nothing of a request; one that works shows that of `busy`."""
    busy = recorded(f"{scene.imitation.recording}/busy", "/slots")
    idle, working = busy[0], next(s for s in busy if s["is_processing"])
    slots = []
    resident = scene.machine.residents.get(scene.names[0])
    for slot in resident.slots if resident else []:
        if slot.job is None:
            slots.append(idle | {"id": slot.number})
            continue
        job = slot.job
        decoded = {"n_decoded": job.tokens, "n_remain": job.out_tokens - job.tokens}
        slots.append(
            working
            | {
                "id": slot.number,
                "n_prompt_tokens": job.prompt_tokens + job.tokens,
                "n_prompt_tokens_processed": (job.prompt_tokens - job.cached_tokens) if job.tokens else 0,
                "n_prompt_tokens_cache": job.cached_tokens,
                "next_token": [working["next_token"][0] | decoded],
            }
        )
    return slots


def _llamacpp_metrics(scene: Scene, body: bytes) -> bytes:
    machine = scene.machine
    body = gauge(body, "llamacpp:requests_processing", machine.running())
    body = gauge(body, "llamacpp:requests_deferred", machine.waiting())
    body = _added(body, "llamacpp:prompt_tokens_total", machine.prompt_tokens)
    body = _added(body, "llamacpp:prompt_tokens_cached_total", machine.cached_tokens)
    return _added(body, "llamacpp:tokens_predicted_total", machine.out_tokens)


ROUTER_STATES = {
    Residency.LOADED: ("router-loaded", "loaded"),
    Residency.LOADING: ("router-loading", "loading"),
    Residency.COLD: ("router-unloaded", "unloaded"),
}


def _router_models(scene: Scene, value: Json) -> Json:
    return value | {"data": [_router_entry(scene, name, value["data"]) for name in scene.names]}


def _router_entry(scene: Scene, name: str, known: Json) -> Json:
    folder, word = ROUTER_STATES[scene.machine.residency(name)]
    listed = [
        *known,
        *recorded(f"{scene.imitation.recording}/{folder}", "/v1/models")["data"],
    ]
    fitting = [e for e in listed if e["status"]["value"] == word]
    entry = next((e for e in fitting if e["id"] == name), fitting[0])
    new = json.loads(json.dumps(entry).replace(json.dumps(entry["id"])[1:-1], json.dumps(name)[1:-1]))
    args = new["status"]["args"]
    slots = str(scene.machine.physics.slots)
    args[args.index("--parallel") + 1] = slots
    new["status"]["preset"] = re.sub(r"parallel = \d+", f"parallel = {slots}", new["status"]["preset"])
    if "meta" in new:
        new["meta"]["size"] = scene.machine.size_of(name)
    return new


def _router_props(scene: Scene, value: Json) -> Json:
    return value | {"max_instances": scene.machine.physics.max_loaded}


# -- vLLM and SGLang ---------------------------------------------------------------------------


def _named_entries(scene: Scene, value: Json) -> Json:
    """The list of an engine that has one model under several names."""
    (entry,) = value["data"]
    old = entry["id"]
    new = [substituted(entry, {old: name}) for name in scene.names]
    return value | {"data": new}


def _vllm_metrics(scene: Scene, body: bytes) -> bytes:
    machine = scene.machine
    body = gauge(body, "vllm:num_requests_running", machine.running())
    body = gauge(body, "vllm:num_requests_waiting", machine.waiting())
    body = gauge(body, "vllm:num_requests_waiting_by_reason", machine.waiting(), labels='reason="capacity"')
    body = gauge(body, "vllm:kv_cache_usage_perc", float(machine.kv_usage))
    body = _added(body, "vllm:prompt_tokens_total", machine.prompt_tokens + machine.cached_tokens)
    body = _added(body, "vllm:generation_tokens_total", machine.out_tokens)
    return _relabelled(body, scene.imitation.names[0], scene.names[0])


def _vllm_load(scene: Scene, value: Json) -> Json:
    return value | {"server_load": scene.machine.running() + scene.machine.waiting()}


def _sglang_loads(scene: Scene, value: Json) -> Json:
    machine = scene.machine
    (rank,) = value["loads"]
    used = machine.used_tokens
    shown = {
        "timestamp": scene.now,
        "num_running_reqs": machine.running(),
        "num_waiting_reqs": machine.waiting(),
        "num_used_tokens": used,
        "num_total_tokens": used,
        "num_active_tokens": used,
        "max_total_num_tokens": machine.physics.cache_tokens,
        "max_running_requests": machine.physics.slots,
        "token_usage": round(machine.kv_usage, 4),
        "total_prefill_uncached_tokens": rank.get("total_prefill_uncached_tokens", 0) + machine.prompt_tokens,
        "queues": rank.get("queues", {}) | {"waiting": machine.waiting()},
    }
    new = rank | {k: v for k, v in shown.items() if k in rank}  # ?include=core leaves some out
    return value | {"timestamp": rfc3339(scene.now, like=value["timestamp"]), "loads": [new]}


def _sglang_metrics(scene: Scene, body: bytes) -> bytes:
    machine = scene.machine
    body = gauge(body, "sglang:num_running_reqs", machine.running())
    body = gauge(body, "sglang:num_queue_reqs", machine.waiting())
    body = gauge(body, "sglang:token_usage", round(machine.kv_usage, 2))
    body = gauge(body, "sglang:num_used_tokens", machine.used_tokens)
    busy = 'endpoint="/v1/chat/completions"'
    body = gauge(body, "sglang:http_requests_active", machine.running() + machine.waiting(), labels=busy)
    return _relabelled(body, scene.imitation.names[0], scene.names[0])


# -- Ollama ------------------------------------------------------------------------------------


def _like_recorded(entries: Json, key: str, name: str) -> Json:
    known = next((e for e in entries if e[key] == name), None)
    if known is not None:
        return dict(known)
    digest = hashlib.sha256(name.encode()).hexdigest()
    renamed = substituted(entries[0], {entries[0][key]: name})
    assert isinstance(renamed, dict)
    if "digest" in renamed:
        renamed["digest"] = digest
    if "size" in renamed:  # two names of nearly one size would look like one file
        renamed["size"] += (1 + int(digest[:3], 16)) * 2**20
    return renamed


def _ollama_tags(scene: Scene, value: Json) -> Json:
    return value | {"models": [_like_recorded(value["models"], "name", n) for n in scene.names]}


def _ollama_models(scene: Scene, value: Json) -> Json:
    return value | {"data": [_like_recorded(value["data"], "id", n) for n in scene.names]}


def _ollama_ps(scene: Scene, value: Json) -> Json:
    """Loaded models only, the one that stays longest first."""
    listed = []
    for r in scene.machine.residents.values():
        if r.state is Residency.LOADED:
            at = r.expires_at if r.expires_at is not None else scene.machine.now
            listed.append((at, r.model))
    tags = recorded(scene.state, "/api/tags")["models"]
    new = []
    for at, model in sorted(listed, reverse=True):
        entry = _like_recorded(value["models"], "name", model)
        entry["digest"] = _like_recorded(tags, "name", model)["digest"]
        entry["size"] = scene.machine.size_of(model)
        entry["expires_at"] = rfc3339(scene.wall(at), like=entry["expires_at"])
        new.append(entry)
    return value | {"models": new}


# -- llama-swap --------------------------------------------------------------------------------

SWAP_STATES = {Residency.LOADED: "ready", Residency.LOADING: "starting"}


def _swap_running(scene: Scene, value: Json) -> Json:
    (entry,) = value["running"]
    new = []
    for resident in scene.machine.residents.values():
        same = resident.model == entry["model"]
        mine = json.loads(json.dumps(entry).replace(entry["model"], json.dumps(resident.model)[1:-1]))
        mine["state"] = SWAP_STATES[resident.state]
        mine["cmd"] = re.sub(r"-np \d+", f"-np {scene.machine.physics.slots}", mine["cmd"])
        new.append(mine if same else mine | {"name": "", "description": ""})
    return value | {"running": new}


def _swap_models(scene: Scene, value: Json) -> Json:
    """v250 says `loaded` of a model that is still starting."""
    plain = next(e for e in value["data"] if "name" not in e)
    new = []
    for name in scene.names:
        known = next((e for e in value["data"] if e["id"] == name), plain | {"id": name})
        there = scene.machine.residency(name) is not Residency.COLD
        new.append(known | {"status": {"value": "loaded" if there else "unloaded"}})
    return value | {"data": new}


PAINTERS: dict[str, dict[str, Painter]] = {
    "llamacpp": {
        "/v1/models": _page(_llamacpp_models),
        "/models": _page(_llamacpp_models),
        "/props": _page(_llamacpp_props),
        "/slots": _page(_llamacpp_slots),
        "/metrics": _llamacpp_metrics,
    },
    "llamacpp-router": {
        "/v1/models": _page(_router_models),
        "/models": _page(_router_models),
        "/props": _page(_router_props),
    },
    "vllm": {
        "/v1/models": _page(_named_entries),
        "/load": _page(_vllm_load),
        "/metrics": _vllm_metrics,
    },
    "sglang": {
        "/v1/models": _page(_named_entries),
        "/v1/loads": _page(_sglang_loads),
        "/v1/loads?include=core": _page(_sglang_loads),
        "/metrics": _sglang_metrics,
    },
    "ollama": {
        "/api/tags": _page(_ollama_tags),
        "/api/ps": _page(_ollama_ps),
        "/v1/models": _page(_ollama_models),
    },
    "llama-swap": {
        "/running": _page(_swap_running),
        "/v1/models": _page(_swap_models),
        "/models": _page(_swap_models),
    },
    "mlx-lm": {"/v1/models": _page(_named_entries)},
}
