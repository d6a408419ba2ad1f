"""Answers made of what all backends list."""

from __future__ import annotations

import difflib
import json
import time

from gateway.fleet.fleet import Fleet
from gateway.proxy.refusals import Refusal

STARTED = int(time.time())  # clients want a creation date for a model, and this is when we first could say it


def models(fleet: Fleet, name: str = "") -> bytes:
    """OpenAI's model list, or with a name that one model. Raises Refusal (404)."""
    served = fleet.models()
    if not name:
        return _json({"object": "list", "data": [_entry(n) for n in sorted(served)]})
    if name not in served:
        raise no_such_model(fleet, name)
    return _json(_entry(name))


def _entry(name: str) -> dict[str, object]:
    return {"id": name, "object": "model", "created": STARTED, "owned_by": "pharos"}


def no_such_model(fleet: Fleet, name: str) -> Refusal:
    served = sorted(fleet.models())
    near = difflib.get_close_matches(name[:200], served, n=1)
    if near:
        hint = f"did you mean {near[0]!r}?"
    elif served:
        hint = f"served now: {', '.join(served[:10])}" + (" …" if len(served) > 10 else "")
    else:
        hint = "no engine is up: see `manage.py pharos_doctor`"
    return Refusal(404, "model_not_found", f"No engine serves the model {name[:200]!r}; {hint}.")


def _json(value: object) -> bytes:
    return json.dumps(value, ensure_ascii=False).encode("utf-8", "replace")
