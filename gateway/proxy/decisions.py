"""Every branch that a request can take, by stage: what metrics count and the debug line tells.

A fixed set of values, so that the series made of them stay few. A request may pass a stage several times,
once for each engine it is tried on.
"""

from __future__ import annotations

from enum import StrEnum

from gateway.routing.policy import Why
from gateway.routing.prefix import Outcome


class Admission(StrEnum):
    OK = "ok"
    UNAUTHORIZED = "unauthorized"
    BAD_REQUEST = "bad_request"
    TOO_LARGE = "too_large"
    MODEL_NOT_ALLOWED = "model_not_allowed"
    RATE_LIMITED = "rate_limited"
    QUOTA_EXCEEDED = "quota_exceeded"


class UsageAsked(StrEnum):
    """Of streams whose usage comes only if it is asked for."""

    PHAROS = "pharos_asked"
    CLIENT = "client_asked"


class Unrouted(StrEnum):
    """Why no target was chosen; `Why` says why one was."""

    UNKNOWN_MODEL = "unknown_model"
    UNAVAILABLE = "unavailable"
    QUEUE_FULL = "queue_full"
    DRAINING = "draining"
    CLIENT_LEFT = "client_left"


class Queue(StrEnum):
    IMMEDIATE = "immediate"
    WAITED = "waited"


class Load(StrEnum):
    COLD_START = "cold_start"  # sent knowing that its model had to be loaded
    UNEXPECTED = "unexpected_load"  # sent as to a loaded model, and the engine says that it loaded it
    CONTROL = "control"  # an Ollama request without a prompt: it loads or unloads and generates nothing


class Upstream(StrEnum):
    OK = "ok"
    ERROR_STATUS = "error_status"  # given to the client
    CONNECT_FAILED = "connect_failed"
    BUSY_RETRIED = "busy_retried"  # 429 or 503, and another engine was asked
    ERROR_RETRIED = "error_retried"  # another 5xx, or it lacks the route
    DIED = "died_mid_reply"
    UNFINISHED = "unfinished"  # it ended its reply properly, without ending the generation
    STALLED = "stalled"
    CLIENT_LEFT = "client_left"
    PHAROS_ERROR = "pharos_error"


Decision = Admission | UsageAsked | Why | Unrouted | Queue | Load | Outcome | Upstream

STAGES: dict[str, tuple[type[StrEnum], ...]] = {
    "admission": (Admission,),
    "usage": (UsageAsked,),
    "route": (Why, Unrouted),
    "queue": (Queue,),
    "load": (Load,),
    "prefix": (Outcome,),
    "upstream": (Upstream,),
}

_STAGE_OF = {kind: stage for stage, kinds in STAGES.items() for kind in kinds}


def stage_of(decision: StrEnum) -> str:
    return _STAGE_OF[type(decision)]


REFUSED: dict[str, Decision] = {
    "invalid_api_key": Admission.UNAUTHORIZED,
    "invalid_request": Admission.BAD_REQUEST,
    "model_required": Admission.BAD_REQUEST,
    "encoded_body": Admission.BAD_REQUEST,
    "request_too_large": Admission.TOO_LARGE,
    "rate_limit_exceeded": Admission.RATE_LIMITED,
    "insufficient_quota": Admission.QUOTA_EXCEEDED,
    "model_not_found": Unrouted.UNKNOWN_MODEL,
    "model_unavailable": Unrouted.UNAVAILABLE,
    "queue_full": Unrouted.QUEUE_FULL,
    "draining": Unrouted.DRAINING,
}
"""Code of a refusal before any engine was asked -> what it counts as."""
