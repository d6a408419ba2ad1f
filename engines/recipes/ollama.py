"""Ollama: knows its models and what is in memory, and shows nothing of its load.

Seen on 0.24.0 and 0.32.15. There is no count of running or waiting requests anywhere, so these two and
the KV usage stay unknown; the capacity is in the first line of its log only.
"""

from __future__ import annotations

import re
from typing import TypeVar

import msgspec

from engines.probes import Path, Probe, ProbeError, count, json_probe, log_line
from engines.recipes.base import Findings, Recipe
from engines.recipes.common import OPENAI_MODELS
from engines.signals import WHOLE_BACKEND, ModelInfo, Reading, Residency, Signal, Snapshot

VERSION = Path("/api/version", "a constant, answered in 0.2 ms also during loads and prefills")
TAGS = Path("/api/tags", "reads the manifests on disk; no GET of Ollama loads a model (0.24.0, 0.32.15)")
PS = Path("/api/ps", "reads a list in memory: never blocked by a load, a prefill or 40 waiting requests")


# -- version -----------------------------------------------------------------------------------


class Version(msgspec.Struct):
    version: str | None = None
    commit: str | None = None
    build_date: str | None = None


def _version(body: Version) -> Reading | None:
    """llama-swap answers this path too, with `v250`, a commit and a build date: that is no Ollama."""
    if body.version is None or body.commit is not None or body.build_date is not None:
        return None
    if not body.version[:1].isdigit():
        raise ProbeError(f"/api/version says {body.version[:80]!r}; Ollama's starts with a digit")
    return {WHOLE_BACKEND: body.version}


OLLAMA_VERSION = json_probe("ollama-version", Signal.VERSION, VERSION, Version, _version)


def keeps_slots_only(version: str) -> bool:
    """Three prompts in turn on two places: all cold in 0.12.11 and 0.24.0, all warm in 0.32.15. From 0.30 on
    it runs llama-server, which moves what a slot held to the host's memory (8 GiB) when another takes it."""
    numbers = re.findall(r"\d+", version)[:2]
    return len(numbers) == 2 and (int(numbers[0]), int(numbers[1])) < (0, 30)


# -- what it has, and how large ----------------------------------------------------------------


class Tag(msgspec.Struct):
    name: str | None = None
    size: int | None = None


class Tags(msgspec.Struct):
    models: list[Tag] | None = None


def _name(path: Path, at: int, name: str | None) -> str:
    if not name:
        raise ProbeError(f"{path.url}: models[{at}] has no name")
    return name


def _tags(body: Tags) -> Reading | None:
    """Programs that imitate this page write sizes of 0 (SGLang): their list is not Ollama's."""
    if body.models is None or not all(tag.size for tag in body.models):
        return None
    return {_name(TAGS, at, tag.name): None for at, tag in enumerate(body.models)}


def _sizes(body: Tags) -> Reading | None:
    """Bytes on disk; a size of 0 is unknown."""
    if body.models is None:
        return None
    return {
        _name(TAGS, at, tag.name): count("/api/tags: size", tag.size) if tag.size else None
        for at, tag in enumerate(body.models)
    }


OLLAMA_TAGS = json_probe("ollama-tags", Signal.MODELS, TAGS, Tags, _tags)
OLLAMA_TAGS_SIZE = json_probe("ollama-tags-size", Signal.SIZE_BYTES, TAGS, Tags, _sizes)


# -- what is in memory -------------------------------------------------------------------------

SAME_FILE_BYTES = 64 * 1024
"""Names that share a weights file differ in size by their own template, system prompt and parameters only."""


def maybe_shared(model: str, snapshot: Snapshot) -> Residency | None:
    """What a model is that `/api/ps` leaves out: cold, or unknown when it may share a loaded file.

    Two names can be made of one weights file. Ollama then runs one process for both and lists only
    the name that loaded it, although the other is served warm. Nothing that a GET shows ties the two:
    the digests are per name. Their sizes are, though, nearly the same (33 bytes apart on 0.24.0 and
    0.32.15). So a model whose size is within 64 KiB of a loaded one's, or whose size or the loaded
    one's is unknown, is unknown. The price: two files of one size (a model and its fine-tune) make
    the other unknown as well while one of them is loaded.
    """
    loaded = [info for name, info in _models(snapshot).items() if info.state is Residency.LOADED]
    mine = _models(snapshot)[model].size_bytes
    if any(_close(mine, info.size_bytes) for info in loaded):
        return None
    return Residency.COLD


def _models(snapshot: Snapshot) -> dict[str, ModelInfo]:
    return dict(snapshot.models or {})


def _close(a: int | None, b: int | None) -> bool:
    return a is None or b is None or abs(a - b) < SAME_FILE_BYTES


class Loaded(msgspec.Struct):
    name: str | None = None
    size: int | None = None
    size_vram: int | None = None


class Ps(msgspec.Struct):
    models: list[Loaded] | None = None


def _residency(body: Ps) -> Reading | None:
    """A model that is being loaded is not listed, and so reads as cold (0.24.0, 0.32.15)."""
    if body.models is None:
        return None
    return {_name(PS, at, model.name): Residency.LOADED for at, model in enumerate(body.models)}


def _vram(body: Ps) -> Reading | None:
    """Bytes on the GPU. 0 is true on a host without one, when the model says what it takes in all;
    other programs that imitate this page write 0 because they do not know.
    """
    if body.models is None:
        return None
    return {_name(PS, at, model.name): _vram_bytes(model) for at, model in enumerate(body.models)}


def _vram_bytes(model: Loaded) -> int | None:
    if model.size_vram is None or not model.size:
        return None
    return count("/api/ps: size_vram", model.size_vram)


OLLAMA_PS = json_probe("ollama-ps", Signal.RESIDENCY, PS, Ps, _residency, unlisted=maybe_shared)
OLLAMA_PS_VRAM = json_probe("ollama-ps-vram", Signal.VRAM_BYTES, PS, Ps, _vram)


# -- how many at a time ------------------------------------------------------------------------

# The server's first line. 0 means that it chooses by itself (before 0.11): unknown. The value is quoted,
# so a `"` ends it and no text of a request can look like it.
OLLAMA_LOG_NUM_PARALLEL: Probe = log_line(
    "ollama-log-num-parallel",
    Signal.CAPACITY,
    r'msg="server config" env="map\[[^"]*?\bOLLAMA_NUM_PARALLEL:(?P<value>[1-9]\d{0,5})[ \]]',
)


UNTRUE_USAGE = frozenset(
    {
        "message.usage.input_tokens",  # message_start guesses: 12 for a prompt of 20, 2216 for 2113
        "usage.input_tokens_details.cached_tokens",  # 0, whatever the cache had
        "response.usage.input_tokens_details.cached_tokens",
    }
)
"""Of /v1/messages and /v1/responses, on 0.24.0 and 0.32.15."""


# -- what will surprise ------------------------------------------------------------------------


class RemoteTag(msgspec.Struct):
    name: str | None = None
    remote_host: str | None = None


class RemoteTags(msgspec.Struct):
    models: list[RemoteTag] = []


class Context(msgspec.Struct):
    name: str | None = None
    context_length: int | None = None


class Contexts(msgspec.Struct):
    models: list[Context] = []


def advice(findings: Findings) -> list[str]:
    shot = findings.snapshot
    notes = [
        "Ollama does not show how many requests it is working on. The gateway counts its own, so let all "
        "clients go through it: a request that reaches Ollama by another way is not seen."
    ]
    if Signal.CAPACITY not in shot.source:
        notes.append(
            "How many requests Ollama works on at a time is not known. Put its OLLAMA_NUM_PARALLEL (1 unless "
            "you set it) into the config as `capacity: N`, or name its log there as `logs:`, which says it."
        )
    if shot.models is not None and not shot.models:
        notes.append("It has no model yet, so no request will be sent here: `ollama pull <model>`.")
    if any(info.vram_bytes == 0 for info in _models(shot).values()):
        notes.append("A loaded model has 0 bytes of VRAM: it runs on the CPU.")
    notes += _remote(findings) + _contexts(findings)
    if shot.version == "0.30.0":
        notes.append(
            "Ollama 0.30.0 counts only the newly computed part of a prompt, so token usage reads too low: "
            "update to 0.30.1 or later."
        )
    return notes


def _remote(findings: Findings) -> list[str]:
    tags = _hint(findings, TAGS, RemoteTags)
    remote = [str(t.name) for t in tags.models if t.remote_host] if tags else []
    if not remote:
        return []
    return [
        f"{', '.join(remote)}: not run here but sent on to another host, prompts included. Remove with "
        "`ollama rm`, or start Ollama with OLLAMA_NO_CLOUD=1, if that is not wanted."
    ]


def _contexts(findings: Findings) -> list[str]:
    ps = _hint(findings, PS, Contexts)
    return [
        f"{m.name} is loaded with a context of {m.context_length} tokens, and Ollama cuts a longer prompt "
        "without telling anybody. Start it with OLLAMA_CONTEXT_LENGTH=N for more."
        for m in (ps.models if ps else [])
        if m.context_length
    ]


Shape = TypeVar("Shape", bound=msgspec.Struct)


def _hint(findings: Findings, path: Path, shape: type[Shape]) -> Shape | None:
    body = findings.bodies.get(path.url)
    if body is None:
        return None
    try:
        return msgspec.json.decode(body, type=shape)
    except (msgspec.DecodeError, RecursionError):
        return None


RECIPE = Recipe(
    kind="ollama",
    title="Ollama",
    native_api=True,
    probes=(
        OLLAMA_VERSION,
        OLLAMA_TAGS,
        OPENAI_MODELS,
        OLLAMA_TAGS_SIZE,
        OLLAMA_PS,
        OLLAMA_PS_VRAM,
        OLLAMA_LOG_NUM_PARALLEL,
    ),
    fingerprint=(OLLAMA_VERSION, OLLAMA_PS),
    ports=(11434,),
    untrue_usage=UNTRUE_USAGE,
    only_slots=keeps_slots_only,
    advice=advice,
)
