"""What will surprise whoever runs this backend, and the mend, in plain words. Pure.

A recipe says what is peculiar to its engine; here is what is true of any: the address, the key, the config.
"""

from __future__ import annotations

from collections.abc import Iterator
from urllib.parse import urlsplit

from engines.examine import Examination
from engines.fetch import Fault
from engines.recipes import RECIPES
from engines.signals import Signal
from gateway.doctor.patients import Patient

LOOPBACK = ("localhost", "127.0.0.1", "::1")
NO_SUCH_NAME = ("Name or service not known", "nodename nor servname", "name resolution", "getaddrinfo failed",
                "No address associated", "idna")  # fmt: skip


def notes(patient: Patient, found: Examination) -> tuple[str, ...]:
    return tuple(dict.fromkeys([*patient.notes, *_all(patient, found)]))


def _all(patient: Patient, found: Examination) -> Iterator[str]:
    if found.looks_like is not None:
        yield (
            f"It was taken for {found.kind}, and answers as {RECIPES[found.looks_like].title} does: "
            f"say kind: {found.looks_like}, or leave the kind out."
        )
    if found.error is not None:
        yield from _mends(patient, found)
        return
    if found.busy:
        yield (
            f"{', '.join(found.busy)} did not answer in time: it is busy. What is not known now may be "
            "known when it is idle, so ask again then."
        )
    yield from found.advice
    yield from _key(patient, found)
    yield from _capacity(patient, found)
    yield from _aliases(patient, found)


# -- what went wrong ---------------------------------------------------------------------------


def _mends(patient: Patient, found: Examination) -> Iterator[str]:
    error = found.error or ""
    if "SSL" in error or "CERTIFICATE" in error.upper():
        yield _tls(patient, error)
    elif found.fault is Fault.REFUSED:
        yield from _refused(patient, error)
    elif found.fault is Fault.TIMEOUT:
        yield (
            "In a long prompt or a load some engines answer nothing: ask again when it is idle. If it never "
            "answers, look at the address and at a firewall between here and there."
        )
        if patient.url.startswith("https:"):  # llama.cpp waits for more of what it takes for a request line
            yield f"Some engines that do not speak TLS answer nothing to it: try {_plain(patient)}."
    elif found.fault is Fault.LOADING:
        yield "It is there and still loads its model: wait until it is ready, and ask again."
    elif found.fault is Fault.DENIED:
        yield _denied(patient)
    elif "\\x15\\x03" in error and patient.url.startswith("http:"):
        yield f"It speaks TLS: write https://{urlsplit(patient.url).netloc}."
    elif patient.kind is not None and found.looks_like is None:
        yield f"It does not answer as {RECIPES[patient.kind].title} does: leave the kind out to have it told."


def _tls(patient: Patient, error: str) -> str:
    if "CERTIFICATE" in error.upper():
        return (
            "Its certificate is not one that a public authority vouches for: use http:// inside your own "
            "network, or put a certificate there that is known."
        )
    return f"It does not speak TLS there: write {_plain(patient)}."


def _plain(patient: Patient) -> str:
    return f"http://{urlsplit(patient.url).netloc}"


def _refused(patient: Patient, error: str) -> Iterator[str]:
    where = urlsplit(patient.url)
    if any(words in error for words in NO_SUCH_NAME):
        yield f"No machine is known by the name {where.hostname}: check its spelling, or give its address."
        return
    ports = ", ".join(f"{r.title} {r.ports[0]}" for r in RECIPES.values() if r.ports)
    yield f"Is the engine running, and is {_port(where.port, where.scheme)} its port? Usual ones: {ports}."
    if where.hostname not in LOOPBACK:
        yield (
            "Most engines listen to their own machine alone unless told otherwise: start Ollama there with "
            "OLLAMA_HOST=0.0.0.0, others with --host 0.0.0.0, and let the port through its firewall."
        )


def _port(port: int | None, scheme: str) -> str:
    return str(port) if port else f"{443 if scheme == 'https' else 80} (as none was given)"


def _denied(patient: Patient) -> str:
    if patient.key is not None:
        return "It refuses the key that was sent: is it this engine's key?"
    return (
        "It wants an API key: put it into its entry of the config as `api_key: ${NAME}`, or name the "
        "variable that holds it with --key-env NAME."
    )


# -- what the config says ----------------------------------------------------------------------


def _key(patient: Patient, found: Examination) -> Iterator[str]:
    denied = any("it wants an API key" in why for why in found.dropped.values())
    if denied and not any("api_key" in note for note in found.advice):
        yield _denied(patient)


def _capacity(patient: Patient, found: Examination) -> Iterator[str]:
    told = patient.config.capacity
    known = Signal.CAPACITY in found.snapshot.source
    if told is None:
        if not known and not any("capacity" in note for note in found.advice):
            yield (
                "How many requests it works on at a time is not known: put the number into its entry of the "
                "config as `capacity: N`."
            )
    elif known:
        says = {load.capacity for load in found.snapshot.load.values() if load.capacity is not None}
        numbers = " or ".join(str(n) for n in sorted(says))
        yield (
            f"capacity: {told} of the config is not used, as the engine says {numbers} itself"
            + ("." if says == {told} else ": one of the two is wrong, or the line can go.")
        )
    else:
        yield f"capacity: {told} of the config is used, as the engine does not say its own."


def _aliases(patient: Patient, found: Examination) -> Iterator[str]:
    listed = found.snapshot.models
    for engine_name, client_name in patient.config.aliases.items():
        if listed is None:
            state = "whether the engine lists that is not known"
        elif engine_name in listed:
            state = "the engine lists it"
        else:
            have = ", ".join(list(listed)[:8]) or "none"
            state = f"the engine does not list that now (it lists: {have}), so the alias leads nowhere"
        yield f"Alias {client_name} -> {engine_name}: {state}."
