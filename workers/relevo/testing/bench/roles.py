"""The processes of a measurement: one that creates jobs, those that work, one that watches the log.

``python roles.py create|work|watch ORDERS``, with a file of orders (JSON). Each takes further orders as lines
on its standard input, answers with lines of JSON on its standard output, and ends when the input does: with
whoever started it, in whatever way that ended.

It uses nothing but what users import from `relevo`, so that it runs against another revision of it too.
"""

from __future__ import annotations

import asyncio
import hashlib
import itertools
import json
import logging
import os
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, Final

import relevo
from relevo.dedup.store import MINE, Answer, Claim, Finish

IN_FLIGHT_MAX: Final = 20_000
PAYLOADS: Final = 256
_REPORT_S: Final = 0.1
_ANSWER_S: Final = 120.0
_print_lock = threading.Lock()


def payload(number: int, size: int) -> dict[str, Any]:
    """Variables like a webhook's, whose JSON has about ``size`` bytes: identifiers, a link, a few words."""
    made: dict[str, Any] = {"event": "check_run", "delivery": number, "url": "https://example.com/hooks/1"}
    items: list[dict[str, Any]] = []
    room = size - len(json.dumps(made, separators=(",", ":"))) - len(',"items":[]')
    for place in itertools.count():
        sha = hashlib.sha256(b"%d.%d" % (number, place)).hexdigest()
        item = {"id": int(sha[:8], 16), "head_sha": sha[:40], "status": "queued", "by": "ana@example.com"}
        room -= len(json.dumps(item, separators=(",", ":"))) + 1
        if room < 0:
            break
        items.append(item)
    return made | {"items": items}


class NoStore(relevo.DedupStore):
    """Remembers nothing: every claim is granted."""

    ttl = 3600.0

    def claim(self, claims: Sequence[Claim]) -> list[Answer]:  # noqa: D102 - as in the contract
        return [MINE] * len(claims)

    def renew(self, claims: Sequence[Claim]) -> list[Answer]:  # noqa: D102
        return [MINE] * len(claims)

    def done(self, finishes: Sequence[Finish]) -> list[Answer]:  # noqa: D102
        return [MINE] * len(finishes)

    def release(self, claims: Sequence[Claim]) -> list[Answer]:  # noqa: D102
        return [MINE] * len(claims)


def store_of(name: str) -> relevo.DedupStore:
    """The dedup store that is called ``none``, ``memory``, or by its address."""
    if name == "none":
        return NoStore()
    if name == "memory":
        return relevo.MemoryDedupStore()
    if name.startswith(("redis://", "rediss://")):
        return relevo.RedisDedupStore(name, volatile_ok=True)
    return relevo.SqlDedupStore(name)


def say(**answer: Any) -> None:
    """One line to whoever started this process."""
    with _print_lock:
        sys.stdout.write(json.dumps(answer) + "\n")
        sys.stdout.flush()


def create(orders: dict[str, Any]) -> None:
    """Create jobs whenever told to: as fast as possible, or at a rate that doesn't wait for answers."""
    with relevo.Client(orders["kafka"], orders["cluster"], **orders["options"]) as client:
        say(ready=True)
        for line in sys.stdin:
            wanted = json.loads(line)
            say(**_create(client, orders, wanted))


def _create(client: relevo.Client, orders: dict[str, Any], wanted: dict[str, Any]) -> dict[str, Any]:
    pool = [payload(n, wanted["bytes"]) for n in range(PAYLOADS)]
    prefix, rate, began = wanted["run"], wanted.get("rate"), time.time()
    expires_at = round((began + orders["expires_s"]) * 1000) if orders["expires_s"] else None

    def jobs() -> Iterator[relevo.NewJob]:
        for number in range(wanted["jobs"]):
            if rate:
                late = time.time() - (began + number / rate)
                if late < 0:
                    time.sleep(-late)
            yield relevo.NewJob(
                type=orders["type"],
                key=f"{prefix}-{number}",
                variables=pool[number % PAYLOADS],
                expires_at=expires_at,
            )

    errors = []
    for made in client.create_many(jobs(), in_flight=IN_FLIGHT_MAX, timeout=_ANSWER_S):
        if made.error is not None:
            errors.append(str(made.error))
    return {
        "run": prefix, "began": began, "ended": time.time(), "refused": len(errors), "errors": errors[:3],
        "cpu_s": round(time.process_time(), 3),
    }  # fmt: skip


def work(orders: dict[str, Any]) -> None:
    """Do nothing for each job, and tell how many were done."""
    app = relevo.WorkerApp(
        orders["kafka"], orders["cluster"], dedup=store_of(orders["dedup"]), **orders["options"]
    )
    starts: list[tuple[str, float]] = []
    noted = bool(orders.get("notes"))

    @app.job(orders["type"], concurrency=orders["concurrency"])
    async def handle(job: relevo.Job) -> None:
        if noted:
            starts.append((job.key, time.time()))
        if orders.get("work_s"):
            await asyncio.sleep(orders["work_s"])

    notes = Notes(orders, "starts") if noted else None
    ended = threading.Event()

    def told() -> None:
        said = -1
        while not ended.wait(_REPORT_S):
            if notes is not None:
                notes.take(starts)
            done = app.stats.done
            if done != said:
                said = done
                say(done=done, cpu_s=round(time.process_time(), 3))

    def until_told() -> None:
        sys.stdin.read()
        app.request_stop()

    _in_thread(until_told)
    _in_thread(told)
    app.run(drain=5.0)
    ended.set()


def watch(orders: dict[str, Any]) -> None:
    """Note when each completion could be read from the log."""
    _in_thread(lambda: (sys.stdin.read(), os._exit(0)))
    notes, seen = Notes(orders, "ends"), 0
    with relevo.JobEvents(
        orders["kafka"], orders["cluster"], "now", kinds=["JobCompleted"], **orders["options"]
    ) as events:
        say(ready=True)
        told_at = 0.0
        while True:
            found = [(event.key, time.time()) for event in events.read(_REPORT_S)]
            seen += len(found)
            if found:
                notes.take(found)
            if time.monotonic() > told_at:
                told_at = time.monotonic() + _REPORT_S
                say(seen=seen)


class Notes:
    """A file of keys and times, complete up to the last number that was told afterwards."""

    def __init__(self, orders: dict[str, Any], kind: str) -> None:
        path = Path(orders["folder"]) / f"{kind}-{os.getpid()}.txt"
        self._file = path.open("a", encoding="ascii", errors="backslashreplace")

    def take(self, found: list[tuple[str, float]]) -> None:
        """Write what is in the list, and take it out."""
        count = len(found)
        self._file.write("".join(f"{key} {at:.6f}\n" for key, at in found[:count]))
        self._file.flush()
        del found[:count]


def _in_thread(call: Callable[[], object]) -> None:
    threading.Thread(target=call, daemon=True).start()


def main(arguments: list[str]) -> int:
    """Run one of the processes."""
    roles = {"create": create, "work": work, "watch": watch}
    if len(arguments) != 2 or arguments[0] not in roles:
        sys.stderr.write("usage: roles.py create|work|watch ORDERS\n")
        return 2
    logging.basicConfig(level=logging.WARNING, format="%(asctime)s %(levelname)s %(name)s %(message)s")
    roles[arguments[0]](json.loads(Path(arguments[1]).read_text(encoding="utf-8")))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
