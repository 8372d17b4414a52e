"""The server under fifty concurrent clients with text queries, and under one client: latency and throughput."""

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
from triptych.data.synthetic import SyntheticConfig, generate
from triptych.recipe import Recipe
from triptych.search.collection import Collection
from triptych.search.scan import items_from_rows
from triptych.training.loop import train

NUM_CLIENTS, QUERIES_PER_CLIENT, ROUNDS = 50, 10, 3
OBJECTS = ("bell", "frog", "bird", "drum", "bee", "horn", "clock", "whistle")
COLOURS = ("red", "green", "blue", "yellow", "black", "violet")


def main() -> None:
    """Make a collection, serve it in another process, and send queries."""
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary)
        manifest_path = generate(SyntheticConfig(scenes=600, seed=0), folder / "world")
        train(
            Recipe.load("trimodal", [f"data.manifest={manifest_path}", "training.epochs=1"]),
            folder / "run",
            show_progress=False,
        )
        collection = Collection(folder / "collection", folder / "run")
        collection.index(
            items_from_rows(manifest.read(manifest_path).rows, collection.space), manifest_path, show_progress=False
        )
        print(
            f"{len(collection)} items; {NUM_CLIENTS} clients, {QUERIES_PER_CLIENT} queries each, {ROUNDS} rounds; "
            "then one client"
        )
        command = [sys.executable, "-m", "triptych", "serve", str(folder / "collection"), "--port", "0"]
        environment = {**os.environ, "PYTHONUNBUFFERED": "1"}
        with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=environment) as server:
            try:
                line = server.stdout.readline() if server.stdout else ""
                address = re.search(r"(http://[\d.]+:\d+)/", line)
                assert address, line
                asyncio.run(_measure(address[1], server.pid))
            finally:
                server.terminate()


async def _measure(address: str, pid: int) -> None:
    limits = httpx.Limits(max_connections=NUM_CLIENTS, max_keepalive_connections=NUM_CLIENTS)
    async with httpx.AsyncClient(base_url=address, limits=limits, timeout=60) as client:
        await _send_queries(client, 0, 3)  # warm up
        sequential = await _send_queries(client, 0, ROUNDS * NUM_CLIENTS)
        cpu_before = _cpu_seconds(pid)
        for round_index in range(ROUNDS):
            started = time.perf_counter()
            client_times = await asyncio.gather(
                *(_send_queries(client, client_index, QUERIES_PER_CLIENT) for client_index in range(NUM_CLIENTS))
            )
            times = [seconds for durations in client_times for seconds in durations]
            round_seconds = time.perf_counter() - started
            print(
                f"round {round_index + 1}: {len(times)} answers, 0 errors, {len(times) / round_seconds:.0f} per "
                "second; "
                f"p50 {_format_quantile(times, 0.5)} ms, p95 {_format_quantile(times, 0.95)} ms, slowest "
                f"{_format_quantile(times, 1.0)} ms"
            )
        cpu_milliseconds = 1000 * (_cpu_seconds(pid) - cpu_before) / (ROUNDS * NUM_CLIENTS * QUERIES_PER_CLIENT)
        print(f"CPU time of the server: {cpu_milliseconds:.1f} ms per query, independent of other load")
        print(
            f"one client: {1 / statistics.mean(sequential):.0f} per second; p50 {_format_quantile(sequential, 0.5)} "
            f"ms, p95 {_format_quantile(sequential, 0.95)} ms"
        )
        metrics = (await client.get("/metrics")).text
        count, total = (
            float(re.search(rf"triptych_batch_size_{name} ([\d.]+)", metrics)[1])  # pyright: ignore[reportOptionalSubscript]
            for name in ("count", "sum")
        )
        print(f"{total:.0f} texts encoded in {count:.0f} batches of {total / count:.1f} on average")


def _cpu_seconds(pid: int) -> float:
    """Return the CPU seconds of a process with all its threads (Linux; elsewhere 0)."""
    stat = Path(f"/proc/{pid}/stat")
    fields = stat.read_text(encoding="ascii").rpartition(")")[2].split() if stat.exists() else ["0"] * 13
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


async def _send_queries(client: httpx.AsyncClient, client_index: int, queries: int) -> list[float]:
    """Send the queries of one client and return their durations; any status but 200 raises an error."""
    times = []
    for query_index in range(queries):
        colour = COLOURS[(client_index + query_index) % len(COLOURS)]
        text = f"{query_index + 2} {colour} {OBJECTS[client_index % len(OBJECTS)]}s"
        started = time.perf_counter()
        answer = await client.post("/v1/search", json={"parts": [{"text": text}], "k": 10})
        answer.raise_for_status()
        assert len(answer.json()["hits"]) == 10
        times.append(time.perf_counter() - started)
    return times


def _format_quantile(times: list[float], quantile: float) -> str:
    ordered = sorted(times)
    return f"{1000 * ordered[min(len(ordered) - 1, int(quantile * len(ordered)))]:.0f}"
