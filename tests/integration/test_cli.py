"""The command line against a real cluster."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import textwrap
from collections.abc import Iterator
from pathlib import Path

import pytest

from relevo_engine.api.client import ApiClient
from relevo_engine.local.cluster import LocalCluster
from tests.support.brokers import Brokers, forget_cluster, unique_cluster_name
from tests.support.nodes import Ran, environment, relevo
from tests.support.waiting import wait_until

HANDLERS = """
import relevo
app = relevo.WorkerApp()

@app.job("greet")
def greet(job):
    if job.variables.get("bad"):
        raise relevo.JobError("NO_GREETING", "told so")
    if job.variables.get("broken"):
        raise relevo.Fail("no route", retriable=False)
    return {"hello": job.variables.get("name")}

no_app = 3
"""


@pytest.fixture(scope="module")
def cluster(brokers: Brokers) -> Iterator[LocalCluster]:
    name = unique_cluster_name("cli")
    with LocalCluster(
        1, 2, kafka=brokers.kafka, zookeeper=brokers.zookeeper, name=name, settings={"settle_s": 0}
    ) as running:
        yield running
    forget_cluster(brokers, name)


@pytest.fixture(scope="module")
def variables(cluster: LocalCluster) -> dict[str, str]:
    return {
        "RELEVO_KAFKA": cluster.kafka,
        "RELEVO_ZOOKEEPER": cluster.zookeeper,
        "RELEVO_CLUSTER": cluster.name,
        "RELEVO_API": cluster.nodes[0].address,
    }


@pytest.fixture(scope="module")
def worker(variables: dict[str, str], tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A worker of type `greet` that learns from flags where Kafka is; gives the folder it runs in."""
    folder = tmp_path_factory.mktemp("worker")
    (folder / "handlers.py").write_text(textwrap.dedent(HANDLERS))
    process = subprocess.Popen(
        [sys.executable, "-m", "relevo", "worker", "run", "handlers:app",
         "--kafka", variables["RELEVO_KAFKA"], "--cluster", variables["RELEVO_CLUSTER"]],
        cwd=folder, env=environment(), stderr=subprocess.PIPE, stdout=subprocess.DEVNULL,
    )  # fmt: skip
    try:
        yield folder
        process.send_signal(signal.SIGTERM)
        _, err = process.communicate(timeout=60)
        assert process.returncode == 0, err.decode()
        assert b"Traceback" not in err
    finally:
        if process.poll() is None:
            process.kill()
            process.communicate()


def run(variables: dict[str, str], *arguments: str, stdin: str = "") -> Ran:
    return relevo(*arguments, stdin=stdin, variables=variables)


def test_one_job_from_flags(variables: dict[str, str]) -> None:
    arguments = ("jobs", "create", "--type", "idle", "--key", "one", "--priority", "7", "--header", "a=b=c")
    made = run(variables, *arguments, "--wait", "decided")
    assert (made.code, made.out) == (0, made.out), made
    assert made.out.startswith("one created (partition ")
    again = run(variables, *arguments, "--wait", "decided")
    assert again.out.startswith("one already there: "), again
    shown = run(variables, "jobs", "get", "one", "--json")
    job = json.loads(shown.out)
    assert (job["priority"], job["headers"], job["variables"]) == (7, {"a": "b=c"}, {})
    assert "priority" in run(variables, "jobs", "get", "one").out


def test_many_jobs_from_lines_of_which_some_are_bad(variables: dict[str, str], tmp_path: Path) -> None:
    lines = [json.dumps({"type": "idle", "key": f"many-{i}", "variables": {"i": i}}) for i in range(200)]
    lines[10:10] = ["no json", "{}", json.dumps({"type": "idle", "key": "x" * 600}), ""]
    file = tmp_path / "jobs.jsonl"
    file.write_text("\n".join(lines))
    ran = run(variables, "jobs", "create", str(file), "--wait", "decided")
    assert ran.code == 1, ran
    told = ran.err.splitlines()
    assert [line.split(":")[0] for line in told[:3]] == ["line 11", "line 12", "line 13"]
    assert told[-1].startswith("200 accepted, 3 bad line(s)")
    assert "Traceback" not in ran.err
    listed = run(variables, "jobs", "list", "--type", "idle", "--limit", "1000", "--json")
    keys = {json.loads(line)["key"] for line in listed.out.splitlines()}
    assert {f"many-{i}" for i in range(200)} <= keys


def test_lines_come_from_standard_input_too_and_a_repeated_import_makes_nothing_twice(
    variables: dict[str, str],
) -> None:
    lines = "".join(json.dumps({"type": "idle", "key": f"again-{i}"}) + "\n" for i in range(20))
    for turn in range(2):
        ran = run(variables, "jobs", "create", "-", "--wait", "decided", "--json", stdin=lines)
        assert ran.code == 0, ran
        assert ("20 of them already there" in ran.err) == bool(turn), ran
        told = [json.loads(line) for line in ran.out.splitlines()]
        assert sorted(each["line"] for each in told) == list(range(1, 21))
        assert {each["created"] for each in told} == {not turn}
        assert {each["state"] for each in told} <= ({"READY", "ACTIVE"} if turn else {None})
    people = run(variables, "jobs", "create", "-", "--wait", "decided", stdin=lines)
    assert {line.split(": ")[1] for line in people.out.splitlines()} == {
        f"again-{i} already there" for i in range(20)
    }
    events = run(
        variables, "events", "tail", "--from", "start", "--no-follow", "--kind", "JobCreated", "--json"
    )
    keys = [json.loads(line)["key"] for line in events.out.splitlines()]
    assert sum(key.startswith("again-") for key in keys) == 20


def test_all_incidents_of_a_type_are_retried_and_each_is_told(
    variables: dict[str, str], worker: Path
) -> None:
    """After an outage thousands wait for a person, who must not name them one by one."""
    broken = {"type": "greet", "variables": {"broken": True}}
    lines = "".join(json.dumps({**broken, "key": f"broken-{i}"}) + "\n" for i in range(30))
    assert run(variables, "jobs", "create", "-", "--wait", "decided", stdin=lines).code == 0
    api = ApiClient(variables["RELEVO_API"])
    wanted = {f"broken-{i}" for i in range(30)}

    def incidents() -> dict[str, int]:
        query = {"state": "incident", "type": "greet", "limit": 1_000}
        return {job["key"]: job["attempt"] for job in api.get("/v1/jobs", query)["jobs"]}

    wait_until(lambda: wanted <= set(incidents()), "all are incidents")
    arguments = ("jobs", "retry", "--all-incidents", "--type", "greet", "--retries", "0", "--json")
    ran = run(variables, *arguments)
    told = [json.loads(line) for line in ran.out.splitlines()]
    assert ran.code == 0, ran
    assert wanted <= {each["key"] for each in told}
    assert {each["outcome"] for each in told} == {"done"}
    assert f"{len(told)} ready again" in ran.err
    wait_until(lambda: dict.fromkeys(wanted, 2).items() <= incidents().items(), "each was tried once more")
    named = ("broken-0", "nobody", "broken-1")
    mixed = run(variables, "jobs", "retry", *named, "--retries", "0", "--json")
    by_key = {each["key"]: each for each in map(json.loads, mixed.out.splitlines())}
    assert mixed.code == 1
    assert (by_key["broken-0"]["outcome"], by_key["broken-1"]["outcome"]) == ("done", "done")
    refused = by_key["nobody"]
    assert (refused["outcome"], refused["retry"], refused["reason"]) == ("not_done", "stop", "NOT_FOUND")
    cancelled = run(variables, "jobs", "cancel", *sorted(wanted), "nobody", "--json")
    assert [json.loads(line)["outcome"] for line in cancelled.out.splitlines()] == ["done"] * 30 + [
        "not_done"
    ]


def test_results_are_waited_for(variables: dict[str, str], worker: Path) -> None:
    done = run(
        variables, "jobs", "create", "--type", "greet", "--variables", '{"name":"Ada"}', "--wait", "result"
    )
    assert done.code == 0, done
    assert 'COMPLETED {"hello":"Ada"}' in done.out
    lines = '{"type":"greet"}\n{"type":"greet","variables":{"bad":true}}\n{"type":"greet"}\n'
    many = run(variables, "jobs", "create", "-", "--wait", "result", stdin=lines)
    assert many.code == 1, many
    assert "line 2: ended as ERRORED NO_GREETING: told so" in many.err
    programs = run(variables, "jobs", "create", "-", "--wait", "result", "--json", stdin=lines)
    told = sorted((json.loads(line) for line in programs.out.splitlines()), key=lambda each: each["line"])
    assert [(each["line"], each["created"], each["result"]["state"]) for each in told] == [
        (1, True, "COMPLETED"), (2, True, "ERRORED"), (3, True, "COMPLETED"),
    ]  # fmt: skip
    assert told[0]["result"]["result"] == {"hello": None}


def test_jobs_nested_as_deep_as_can_be_are_shown(variables: dict[str, str]) -> None:
    """One of them ended every reader of the whole log, and the node answered that it has a bug."""
    deep = "[" * 254 + "]" * 254
    arguments = ("jobs", "create", "--type", "idle", "--key", "deep", "--wait", "decided")
    assert run(variables, *arguments, "--variables", deep).code == 0
    shown = run(variables, "jobs", "get", "deep", "--json")
    assert (shown.code, json.loads(shown.out)["variables"]) == (0, json.loads(deep)), shown
    log = run(variables, "events", "tail", "--key", "deep", "--from", "start", "--no-follow", "--json")
    assert log.code == 0, log
    assert json.loads(log.out.splitlines()[0])["variables"] == json.loads(deep)


def test_listed_jobs_are_cancelled_whatever_their_keys(variables: dict[str, str]) -> None:
    """Through `jq | xargs`, as the help had it, a key with a space cancelled two other jobs."""
    innocent, odd = ["odd-a", "b"], ["odd-a b", "--odd", "odd 'it\"s", "odd\nline", "-", "odd\x1b[31m"]
    lines = "".join(json.dumps({"type": "odd", "key": key}) + "\n" for key in odd)
    lines += "".join(json.dumps({"type": "idle", "key": key}) + "\n" for key in innocent)
    assert run(variables, "jobs", "create", "-", "--wait", "decided", stdin=lines).code == 0
    people = run(variables, "jobs", "list", "--type", "odd")
    assert len(people.out.splitlines()) == 1 + len(odd)
    assert "\x1b" not in people.out
    listed = run(variables, "jobs", "list", "--type", "odd", "--limit", "1000", "--json")
    cancelled = run(variables, "jobs", "cancel", "-", "--json", stdin=listed.out)
    assert cancelled.code == 0, cancelled
    assert {json.loads(line)["key"] for line in cancelled.out.splitlines()} == set(odd)
    assert run(variables, "jobs", "list", "--type", "odd", "--json").out == ""
    for key in innocent:
        assert json.loads(run(variables, "jobs", "get", key, "--json").out)["state"] != "CANCELLED"


def test_jobs_are_cancelled_and_refusals_told(variables: dict[str, str]) -> None:
    run(variables, "jobs", "create", "--type", "idle", "--key", "gone", "--wait", "decided")
    ran = run(variables, "jobs", "cancel", "gone", "never-made", "--reason", "no need")
    assert ran.code == 1, ran
    assert ran.out == "gone cancelled\n"
    assert "job 'never-made' can't be cancelled: there is no such job" in ran.err
    assert json.loads(run(variables, "jobs", "get", "gone", "--json").out)["state"] == "CANCELLED"
    retried = run(variables, "jobs", "retry", "gone")
    assert retried.code == 1, retried
    assert "job 'gone' can't be retried: it has ended already, CANCELLED" in retried.err


def test_events_are_told_for_people_and_for_programs(variables: dict[str, str]) -> None:
    run(variables, "jobs", "create", "--type", "idle", "--key", "told", "--wait", "decided")
    run(variables, "jobs", "cancel", "told")
    people = run(variables, "events", "tail", "--key", "told", "--from", "start", "--no-follow")
    kinds = [line.split()[2] for line in people.out.splitlines()]
    assert kinds[0] == "JobCreated", people
    assert kinds[-1] == "JobCancelled"
    programs = run(variables, "events", "tail", "--key", "told", "--from", "-1h", "--limit", "1", "--json")
    event = json.loads(programs.out)
    assert (event["kind"], event["type"], event["source"] >= 0) == ("JobCreated", "idle", True)
    lower = run(variables, "events", "tail", "--kind", "jobcancelled", "--from", "start", "--no-follow")
    assert "JobCancelled" in lower.out
    none = run(variables, "events", "tail", "--key", "zzz", "--no-follow")
    assert (none.code, none.out) == (0, "")
    assert "no such event" in none.err


def test_status_shows_nodes_and_partitions(variables: dict[str, str]) -> None:
    ran = run(variables, "cluster", "status")
    assert ran.code == 0, ran
    assert "node-1" in ran.out
    found = json.loads(run(variables, "cluster", "status", "--json").out)
    assert [row["leader"] for row in found["partitions"]] == ["node-1", "node-1"]


def test_nodes_are_found_by_zookeeper(variables: dict[str, str]) -> None:
    without = {name: value for name, value in variables.items() if name != "RELEVO_API"}
    assert run(without, "cluster", "status").code == 0


def test_a_dead_node_in_the_environment_is_no_obstacle_where_zookeeper_knows_others(
    variables: dict[str, str],
) -> None:
    """Else a shell that pins one node shows a running cluster as dead once that node is."""
    ran = run(variables | {"RELEVO_API": "127.0.0.1:1"}, "cluster", "status")
    assert ran.code == 0, ran
    assert "note: no node answers at 127.0.0.1:1" in ran.err


@pytest.mark.parametrize(
    ("arguments", "code", "told"),
    [
        (("jobs", "create"), 2, "--type TYPE, or a FILE"),
        (("jobs", "create", "--type", "a b"), 1, "job type 'a b'"),
        (("jobs", "create", "--type", "a", "--variables", "{"), 1, "--variables isn't JSON"),
        (("jobs", "create", "--type", "a", "--run-at", "soon"), 1, "'soon' is no time"),
        (("jobs", "create", "/no/such/file"), 2, "No such file"),
        (("jobs", "get", "no-such-job"), 1, "there is no job with the key 'no-such-job'"),
        (("jobs", "list", "--state", "gone"), 2, "Invalid value"),
        (("events", "tail", "--kind", "JobDone"), 2, "no such kind of event: JobDone; did you mean"),
        (("jobs", "list", "--api", "127.0.0.1"), 2, "must be HOST:PORT"),
        (("events", "tail", "--from", "yesterday"), 2, "'yesterday' is no time"),
        (("events", "tail", "--cluster", "nowhere"), 1, "no topic nowhere.log"),
        (("cluster", "status", "--api", "127.0.0.1:1"), 6, "no node answers at 127.0.0.1:1"),
        (("worker", "run", "no_such_module:app"), 2, "there is no module 'no_such_module'"),
        (("worker", "run", "json:dumps"), 2, "not a WorkerApp"),
        (("worker", "run", "json"), 2, "'json'"),
    ],
)
def test_what_a_user_gets_wrong_is_told_in_a_line(
    variables: dict[str, str], arguments: tuple[str, ...], code: int, told: str
) -> None:
    ran = run(variables, *arguments)
    assert ran.code == code, ran
    assert told in ran.err
    assert "Traceback" not in ran.err
    assert "--debug" not in ran.err


def test_debug_shows_the_traceback(variables: dict[str, str]) -> None:
    ran = run(variables, "--debug", "jobs", "create", "--type", "a b")
    assert "Traceback" in ran.err


@pytest.mark.parametrize("command", [("jobs", "list"), ("jobs", "create", "--type", "a"), ("events", "tail")])
def test_brokers_that_are_away_are_told_in_a_line(command: tuple[str, ...]) -> None:
    ran = relevo(*command, variables={"RELEVO_KAFKA": "127.0.0.1:1", "RELEVO_ZOOKEEPER": "127.0.0.1:1"})
    assert ran.code == 6, ran
    assert "127.0.0.1:1" in ran.err
    assert "Traceback" not in ran.err
