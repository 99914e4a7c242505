"""Local Kafka and ZooKeeper: they come up, they come back, and they never outlive who wanted them."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path

import pytest
from confluent_kafka import Consumer, Producer, TopicPartition
from confluent_kafka.cimpl import NewTopic
from kazoo.client import KazooClient

from relevo_engine.local import brokers as local_brokers
from relevo_engine.local import home as local_home
from relevo_engine.local.brokers import LocalBrokers
from relevo_engine.local.errors import FolderInUseError, LocalError, ServerError
from relevo_engine.local.kafka import admin, client_settings
from relevo_engine.local.ports import LOOPBACK, free_ports
from relevo_engine.local.processes import is_running
from relevo_engine.local.zookeeper import ask, serves
from tests.support.brokers import Brokers
from tests.support.fixtures import StartBrokers
from tests.support.waiting import wait_until

STARTER = """
import signal, sys
from relevo_engine.local.brokers import LocalBrokers
# A shell that runs the tests in the background lets them ignore it, and children inherit that.
signal.signal(signal.SIGINT, signal.default_int_handler)
with LocalBrokers(int(sys.argv[1]), 1) as brokers:
    try:  # from here on: whoever reads the line may answer it with Ctrl-C at once
        pids = [pid for one in brokers.servers for pid in (one.pid, one.keeper_pid)]
        print(*pids, brokers.home, flush=True)
        signal.pause()
    except KeyboardInterrupt:
        print(*[server.running for server in brokers.servers], flush=True)
print("stopped", flush=True)
"""


def read_all(bootstrap: str, topic: str) -> list[bytes]:
    """The values in partition 0 of the topic, as of now."""
    consumer = Consumer({**client_settings(bootstrap), "group.id": "reader"})
    try:
        partition = TopicPartition(topic, 0, 0)
        _, end = consumer.get_watermark_offsets(partition, timeout=20)
        consumer.assign([partition])
        values: list[bytes] = []

        def caught_up() -> bool:
            values.extend(m.value() or b"" for m in consumer.consume(100, 0.1) if m.error() is None)
            return consumer.position([partition])[0].offset >= end

        wait_until(caught_up, f"{topic} is read up to {end}")
        return values
    finally:
        consumer.close()


def write_one(bootstrap: str, topic: str, value: bytes, *, replicas: int = 1) -> None:
    """Makes the topic if need be and writes one record in a transaction."""
    client = admin(bootstrap)
    if topic not in client.list_topics(timeout=20).topics:
        client.create_topics([NewTopic(topic, 1, replicas)])[topic].result(20)
    producer = Producer({"bootstrap.servers": bootstrap, "transactional.id": topic})
    producer.init_transactions(30)
    producer.begin_transaction()
    producer.produce(topic, value, partition=0)
    producer.commit_transaction(30)


@contextmanager
def zookeeper(hosts: str) -> Iterator[KazooClient]:
    """A connected ZooKeeper client."""
    client = KazooClient(hosts=hosts, timeout=10)
    client.start(timeout=30)
    try:
        yield client
    finally:
        client.stop()
        client.close()


@contextmanager
def starter(brokers: int) -> Iterator[tuple[subprocess.Popen[str], list[int], Path]]:
    """Another process that starts servers: itself, the ids of all processes under it, its data folder."""
    process = subprocess.Popen(
        [sys.executable, "-c", STARTER, str(brokers)],
        stdout=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    with process:
        assert process.stdout is not None
        *pids, home = process.stdout.readline().split()
        try:
            yield process, [int(pid) for pid in pids], Path(home)
        finally:
            process.kill()


def test_shared_brokers_serve_clients(brokers: Brokers, cluster_name: str) -> None:
    """Brokers said to be ready that refuse the first transaction make every test after them flaky."""
    topic = f"{cluster_name}.probe"
    write_one(brokers.kafka, topic, b"one")
    assert read_all(brokers.kafka, topic) == [b"one"]
    with zookeeper(brokers.zookeeper) as client:
        client.create(f"/{cluster_name}", b"here")
        assert client.get(f"/{cluster_name}")[0] == b"here"


def test_stop_leaves_neither_processes_nor_files() -> None:
    """Servers and folders that pile up with every run fill the machine."""
    with LocalBrokers(brokers=0) as brokers:
        home, pids = (
            brokers.home,
            [pid for server in brokers.servers for pid in (server.pid, server.keeper_pid)],
        )
        assert home.is_dir()
        assert all(is_running(pid) for pid in pids)
        brokers.check()
    assert not any(is_running(pid) for pid in pids)
    assert not home.exists()
    brokers.stop()


def test_servers_end_with_a_starter_that_was_killed() -> None:
    """A starter killed with kill -9 cleans nothing up; its brokers would hold ports and memory for ever.

    One of them is frozen at that moment, as in the middle of a drill: it can't obey a polite request to end.
    """
    with starter(brokers=1) as (process, pids, home):
        assert all(is_running(pid) for pid in pids)
        os.kill(pids[2], signal.SIGSTOP)
        process.kill()
        process.wait()
        wait_until(lambda: not any(is_running(pid) for pid in pids), "all servers and keepers are gone")
    assert home.exists()
    with LocalBrokers(brokers=0):
        assert not home.exists(), "the next start removes the folder that nobody uses any more"


def test_ctrl_c_reaches_the_starter_only() -> None:
    """Ctrl-C goes to every process of the terminal; brokers that die of it spoil the orderly shutdown."""
    with starter(brokers=0) as (process, pids, _home):
        os.killpg(process.pid, signal.SIGINT)
        assert process.stdout is not None
        assert process.stdout.readline() == "True\n"
        assert process.stdout.readline() == "stopped\n"
        assert process.wait(30) == 0
        assert not any(is_running(pid) for pid in pids)


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux ties a process to the life of its parent")
def test_a_server_ends_with_its_keeper() -> None:
    """The keeper itself can be killed, by the kernel when memory is short, say."""
    with starter(brokers=0) as (_process, (server, keeper), _home):
        os.kill(keeper, signal.SIGKILL)
        wait_until(lambda: not is_running(server), "the server is gone")


def test_a_killed_server_comes_back_with_its_port_and_data(own_brokers: StartBrokers) -> None:
    """What was acknowledged before a kill -9 is there after the restart, at the address that clients know."""
    own = own_brokers()
    kafka, zoo = own.kafka_servers[0], own.zookeeper_servers[0]
    addresses, old_pids = (own.kafka, own.zookeeper), (kafka.pid, zoo.pid)
    write_one(own.kafka, "kept", b"before")
    with zookeeper(own.zookeeper) as client:
        client.create("/kept", b"before")
    for server, old_pid in zip((kafka, zoo), old_pids, strict=True):
        server.kill()
        assert not is_running(old_pid)
        assert not server.running
        with pytest.raises(ServerError, match=server.name):
            own.check()
        server.restart()
        assert server.pid != old_pid
    assert (own.kafka, own.zookeeper) == addresses
    write_one(own.kafka, "kept", b"after")
    assert read_all(own.kafka, "kept") == [b"before", b"after"]
    with zookeeper(own.zookeeper) as client:
        assert client.get("/kept")[0] == b"before"


def test_a_frozen_server_is_there_and_silent() -> None:
    """A drill that freezes a server needs it to keep its connections, say nothing, and go on afterwards."""
    with LocalBrokers(brokers=0) as own:
        server = own.zookeeper_servers[0]
        server.freeze()
        assert server.running
        assert ask(server.port, "ruok") == ""
        server.thaw()
        wait_until(lambda: serves(server.port), "the thawed server answers")
        server.freeze()
        server.stop()
        with pytest.raises(LocalError, match="zookeeper-1 is not running"):
            server.freeze()


def test_a_kept_folder_is_started_again(tmp_path: Path) -> None:
    """`relevo dev` with a data folder goes on where it ended, at the same addresses."""
    with LocalBrokers(brokers=0, home=tmp_path) as first:
        address = first.zookeeper
        with zookeeper(address) as client:
            client.create("/kept", b"here")
    with LocalBrokers(brokers=0, home=tmp_path) as second:
        assert second.zookeeper == address
        with zookeeper(address) as client:
            assert client.get("/kept")[0] == b"here"
    with pytest.raises(LocalError, match="holds 0 broker"), LocalBrokers(home=tmp_path):
        pass


def test_a_folder_has_one_owner(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Two clusters on one data folder destroy it."""
    monkeypatch.setattr(local_home, "_WAIT_S", 0.0)
    with LocalBrokers(brokers=0, home=tmp_path) as first:
        with pytest.raises(FolderInUseError, match="another process"), LocalBrokers(brokers=0, home=tmp_path):
            pass
        first.check()


def test_a_failed_start_shows_the_log_and_leaves_nothing(tmp_path: Path) -> None:
    """An error without the server's own words sends the reader searching for a log file."""
    data = tmp_path / "zookeeper-1" / "data"
    data.mkdir(parents=True)
    (data / "version-2").write_text("not a folder")
    failing = LocalBrokers(brokers=1, home=tmp_path)
    with pytest.raises(ServerError) as caught:
        failing.start()
    error = caught.value
    assert error.server == "zookeeper-1"
    assert str(error.log_path) in str(error)
    assert "version-2" in error.log_tail
    assert error.log_tail.splitlines()[-1] in str(error)
    assert not any(server.running for server in failing.servers)
    local_home.open_home(tmp_path).close()  # nobody holds it any more


def test_a_port_taken_in_the_meantime_is_replaced(monkeypatch: pytest.MonkeyPatch) -> None:
    """Between the choice of a port and its use another process may take it."""
    with closing(socket.create_server((LOOPBACK, free_ports(1)[0]))) as first_taken:
        taken = [first_taken.getsockname()[1]]

        def choose(count: int) -> list[int]:
            return [taken.pop(), *free_ports(count - 1)] if taken else free_ports(count)

        monkeypatch.setattr(local_brokers, "free_ports", choose)
        said: list[str] = []
        with LocalBrokers(brokers=1, zookeepers=0, report=said.append) as own:
            own.check()
            assert not taken
            assert any("took the port of kafka-1" in line for line in said)


def test_sizes_that_make_no_sense_are_refused() -> None:
    """Two ZooKeeper servers survive the loss of none."""
    with pytest.raises(ValueError, match="0, 1 or 3"):
        LocalBrokers(zookeepers=2)
