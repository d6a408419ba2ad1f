"""Slows whoever tries keys at the login form. Pure: a clock in, seconds to wait out.

Each client may miss a few times, then once in a while; and so may all clients together, so that many
addresses do not help. Who is told to wait is not kept waiting by us: he gets an answer at once that says when
to come back. Clients on this machine are not held up by what others do.
"""

from __future__ import annotations

import ipaddress
from collections import OrderedDict
from collections.abc import Callable

BURST, EVERY_S = 5, 10.0
"""Of one client: so many tries at once, then one in so many seconds."""
ALL_BURST, ALL_EVERY_S = 60, 1.0
KEPT = 1024
"""Clients remembered. Whoever has more addresses than that is held by the limit for all."""


class Brake:
    def __init__(self, now: Callable[[], float]) -> None:
        self.now = now
        self._due: OrderedDict[str, float] = OrderedDict()  # client -> when its tries so far are paid for
        self._all_due = 0.0

    def take(self, client: str | None) -> float:
        """Seconds until the client of this address may try; 0: it may now, and that was one try."""
        now, who = self.now(), _group(client)
        due = max(now, self._due.get(who, 0.0))
        all_due = max(now, self._all_due)
        wait_s = due - now - (BURST - 1) * EVERY_S
        if not is_loopback(client):
            wait_s = max(wait_s, all_due - now - (ALL_BURST - 1) * ALL_EVERY_S)
        if wait_s > 0:
            return wait_s
        self._due[who] = due + EVERY_S
        self._due.move_to_end(who)
        if len(self._due) > KEPT:
            self._due.popitem(last=False)
        if not is_loopback(client):
            self._all_due = all_due + ALL_EVERY_S
        return 0.0

    def forgive(self, client: str | None) -> None:
        """It had the right key."""
        self._due.pop(_group(client), None)
        if not is_loopback(client):
            self._all_due -= ALL_EVERY_S


def address(client: str | None) -> ipaddress.IPv4Address | ipaddress.IPv6Address | None:
    try:
        found = ipaddress.ip_address((client or "").partition("%")[0])
    except ValueError:
        return None
    mapped = found.ipv4_mapped if isinstance(found, ipaddress.IPv6Address) else None
    return mapped or found


def is_loopback(client: str | None) -> bool:
    found = address(client)
    return found is not None and found.is_loopback


def _group(client: str | None) -> str:
    """Whoever has one IPv6 address has the 2^64 beside it too."""
    found = address(client)
    if isinstance(found, ipaddress.IPv6Address):
        return str(ipaddress.ip_network((found, 64), strict=False))
    return str(found)
