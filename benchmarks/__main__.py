"""`python -m benchmarks`: every figure in one table, and in a JSON file below .benchmarks/."""

from __future__ import annotations

import tempfile
from pathlib import Path

from rich.console import Console

from benchmarks import bigbody, crowd, overhead, pages, parties, prefix, reading, report, routing, tap
from gateway.demo.install import InstallError
from gateway.demo.processes import StartError


def main() -> None:
    console = Console()
    if not console.is_terminal:
        console.width = 120
    figures: list[report.Figure] = []
    with tempfile.TemporaryDirectory(prefix="pharos-bench-") as name, console.status("measuring") as status:
        folder = Path(name)
        status.update("reading the largest vLLM page")
        figures += reading.scrape_round()
        status.update("hostile bodies of 1 MiB")
        figures.append(reading.hostile_bodies())
        status.update("picks, and grants with 1,000 waiting")
        figures += routing.measure()
        status.update("the prefix index")
        figures += prefix.figures()
        status.update("the pages, with a year of usage")
        figures += pages.measure()
        status.update("replies through the tap")
        figures += tap.measure()
        status.update("a live llama.cpp")
        try:
            figures += reading.live_resolve(folder)
        except (InstallError, StartError) as e:
            figures.append(
                report.Figure("resolve of a live llama.cpp", "ms", None, note=f"not measured: {e}")
            )
        with parties.on_stage(folder) as stage:
            status.update("requests: direct, through nginx, through the gateway")
            figures += overhead.measure(stage)
            status.update("a body of 20 MiB beside small requests")
            figures += bigbody.measure(stage)
            status.update("a thousand streams at once")
            figures += crowd.measure(stage)
    report.show(console, figures)
    if stage.nginx is None:
        console.print(f"nginx: {parties.NGINX_MISSING}.", soft_wrap=True)
    console.print(f"Kept in {report.keep(figures)}", soft_wrap=True)


if __name__ == "__main__":
    main()
