"""Where a day begins and ends in the zone in which tokens are counted.

Days are numbered from 1970-01-01 by the date on the wall there, so a day of 23 or 25 hours is one day. Times
are seconds since the epoch, as `time.time` gives them.
"""

from __future__ import annotations

from datetime import UTC, date, datetime, timedelta, tzinfo
from pathlib import Path
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

EPOCH = date(1970, 1, 1)


class Days:
    def __init__(self, zone: tzinfo = UTC) -> None:
        self.zone = zone
        self._day = self._from = self._until = 0  # the day asked for last, and when it is

    def day(self, at: float) -> int:
        if not self._from <= at < self._until:
            self._day = self.number(datetime.fromtimestamp(at, self.zone).date())
            # Where clocks go back over midnight the day before comes back for an hour.
            self._from, self._until = self._whole(self._day)
        return self._day

    def begins(self, day: int) -> datetime:
        """The first moment of the day, with the zone's offset then.

        Where the clock goes forward over midnight that is the moment it does so; where it shows midnight
        twice, the first of the two.
        """
        when = EPOCH + timedelta(days=day)
        start = datetime(when.year, when.month, when.day, tzinfo=self.zone)
        return datetime.fromtimestamp(start.timestamp(), self.zone)

    def left(self, at: float) -> float:
        """Seconds until the next day begins."""
        day = self.day(at)
        if self._from <= at < self._until:
            return self._until - at
        return max(0.0, self.begins(day + 1).timestamp() - at)

    def number(self, when: date) -> int:
        return (when - EPOCH).days

    def date(self, day: int) -> date:
        return EPOCH + timedelta(days=day)

    def _whole(self, day: int) -> tuple[int, int]:
        """When the day is, as seconds; nothing where its first hours are not all of that date."""
        start, end = int(self.begins(day).timestamp()), int(self.begins(day + 1).timestamp())
        early = {datetime.fromtimestamp(t, self.zone).date() for t in range(start, start + 10800, 900)}
        return (start, end) if early == {self.date(day)} else (0, 0)


def host_zone(tz: str = "", localtime: Path = Path("/etc/localtime")) -> tzinfo:
    """The zone of this machine: `tz` is its variable TZ, which goes ahead. UTC where nothing tells."""
    if name := tz.removeprefix(":"):
        try:
            return ZoneInfo(name)
        except (ValueError, OSError, ZoneInfoNotFoundError):
            pass
    try:
        with localtime.open("rb") as file:
            return ZoneInfo.from_file(file, key=str(localtime.resolve()).partition("zoneinfo/")[2] or "local")
    except (ValueError, OSError):
        return UTC


def zone_of(name: str | None, tz: str = "") -> tzinfo:
    """The zone of the config, which has been found to exist; without one, the machine's."""
    return ZoneInfo(name) if name is not None else host_zone(tz)
