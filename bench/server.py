"""The server under fifty concurrent text queries: p95, throughput, errors; and the same one after the other."""

from __future__ import annotations

import asyncio
import os
import re
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import httpx

from triptych.data import manifest
from triptych.data.world import World, make
from triptych.recipe import Recipe
from triptych.search.collection import Collection
from triptych.search.items import items_of
from triptych.training.loop import train

AT_ONCE, EACH, ROUNDS = 50, 10, 3
THINGS = ("bell", "frog", "bird", "drum", "bee", "horn", "clock", "whistle")
COLOURS = ("red", "green", "blue", "yellow", "black", "violet")


def main() -> None:
    """Make a collection, serve it in a process of its own, ask."""
    with tempfile.TemporaryDirectory() as place:
        folder = Path(place)
        pairs = make(World(scenes=600, seed=0), folder / "world")
        train(Recipe.load("trimodal", [f"data.manifest={pairs}", "training.epochs=1"]), folder / "run", show=False)
        collection = Collection.create(folder / "collection", folder / "run")
        collection.index(items_of(manifest.read(pairs).rows, collection.space), pairs, show=False)
        print(
            f"{len(collection)} items; {AT_ONCE} visitors, {EACH} queries each, {ROUNDS} rounds; then one visitor alone"
        )
        command = [sys.executable, "-m", "triptych", "serve", str(folder / "collection"), "--port", "0"]
        environment = {**os.environ, "PYTHONUNBUFFERED": "1"}
        with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=environment) as server:
            try:
                line = server.stdout.readline() if server.stdout else ""
                found = re.search(r"(http://[\d.]+:\d+)/", line)
                assert found, line
                asyncio.run(_measure(found[1], server.pid))
            finally:
                server.terminate()


async def _measure(address: str, process: int) -> None:
    limits = httpx.Limits(max_connections=AT_ONCE, max_keepalive_connections=AT_ONCE)
    async with httpx.AsyncClient(base_url=address, limits=limits, timeout=60) as client:
        await _visit(client, 0, 3)  # everything is loaded once
        alone = await _visit(client, 0, ROUNDS * AT_ONCE)
        before = _processor(process)
        for number in range(ROUNDS):
            started = time.perf_counter()
            visits = await asyncio.gather(*(_visit(client, visitor, EACH) for visitor in range(AT_ONCE)))
            times = [seconds for visit in visits for seconds in visit]
            took = time.perf_counter() - started
            print(
                f"round {number + 1}: {len(times)} answers, 0 errors, {len(times) / took:.0f} a second; "
                f"p50 {_ms(times, 0.5)} ms, p95 {_ms(times, 0.95)} ms, slowest {_ms(times, 1.0)} ms"
            )
        spent = 1000 * (_processor(process) - before) / (ROUNDS * AT_ONCE * EACH)
        print(f"the server took {spent:.1f} ms of processor time an answer: that does not depend on what else runs")
        print(f"alone: {1 / statistics.mean(alone):.0f} a second; p50 {_ms(alone, 0.5)} ms, p95 {_ms(alone, 0.95)} ms")
        told = (await client.get("/metrics")).text
        count, total = (float(re.search(rf"triptych_batch_size_{name} ([\d.]+)", told)[1]) for name in ("count", "sum"))  # pyright: ignore[reportOptionalSubscript]
        print(f"{total:.0f} texts went through the encoder in {count:.0f} batches, {total / count:.1f} at a time")


def _processor(process: int) -> float:
    """Seconds of processor time a process has taken, of all its threads (Linux; elsewhere 0)."""
    stat = Path(f"/proc/{process}/stat")
    fields = stat.read_text(encoding="ascii").rpartition(")")[2].split() if stat.exists() else ["0"] * 13
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


async def _visit(client: httpx.AsyncClient, visitor: int, queries: int) -> list[float]:
    """The seconds of each of a visitor's queries; any answer but 200 is an error."""
    times = []
    for number in range(queries):
        words = f"{number + 2} {COLOURS[(visitor + number) % len(COLOURS)]} {THINGS[visitor % len(THINGS)]}s"
        started = time.perf_counter()
        answer = await client.post("/v1/search", json={"parts": [{"text": words}], "k": 10})
        answer.raise_for_status()
        assert len(answer.json()["hits"]) == 10
        times.append(time.perf_counter() - started)
    return times


def _ms(times: list[float], share: float) -> str:
    ordered = sorted(times)
    return f"{1000 * ordered[min(len(ordered) - 1, int(share * len(ordered)))]:.0f}"
