"""Which node a command asks: the one that was meant, and never one of another cluster."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer

import click
import pytest
from click.testing import CliRunner

from relevo.cli import nodes
from relevo.errors import ConfigurationError


class Healthz(BaseHTTPRequestHandler):
    """A node of the cluster `billing`, as far as it takes to be found."""

    def do_GET(self) -> None:
        body = json.dumps({"status": "alive", "node": "a", "cluster": "billing"}).encode()
        self.send_response(200)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *args: object) -> None:
        """Says nothing."""


@pytest.fixture(scope="module")
def node() -> Iterator[str]:
    with HTTPServer(("127.0.0.1", 0), Healthz) as server:
        thread = threading.Thread(target=server.serve_forever, daemon=True)
        thread.start()
        yield f"127.0.0.1:{server.server_address[1]}"
        server.shutdown()
        thread.join()


@click.command()
@nodes.api_options
def ask(api: str | None, zookeeper: str, cluster: str) -> None:
    """Says which node it would ask."""
    click.echo(nodes.find_api(api, zookeeper, cluster).address)


def run(*arguments: str, **environment: str) -> tuple[str, BaseException | None]:
    ran = CliRunner().invoke(ask, arguments, env={"RELEVO_API": None, **environment})
    return ran.output, ran.exception


@pytest.mark.parametrize("arguments", [(), ("--cluster", "billing")])
def test_a_node_of_the_cluster_is_asked(node: str, arguments: tuple[str, ...]) -> None:
    assert run(*arguments, RELEVO_API=node) == (f"{node}\n", None)


def test_a_node_of_another_cluster_is_refused(node: str) -> None:
    """Else `cluster status --cluster other` shows another cluster's jobs as other's."""
    _, error = run("--cluster", "other", RELEVO_API=node)
    assert isinstance(error, ConfigurationError)
    assert "belongs to cluster billing, not other" in str(error)


def test_a_dead_node_in_the_environment_is_passed_over_where_zookeeper_was_named(
    node: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(nodes, "_look_up", lambda _zookeeper, _cluster: [node])
    output, error = run(RELEVO_API="127.0.0.1:1", RELEVO_ZOOKEEPER="z:2181")
    assert error is None
    assert output.splitlines()[-1] == node
    assert "note: no node answers at 127.0.0.1:1" in output


def test_a_dead_node_that_a_flag_names_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(nodes, "_look_up", lambda _zookeeper, _cluster: pytest.fail("it was asked"))
    _, error = run("--api", "127.0.0.1:1", RELEVO_ZOOKEEPER="z:2181")
    assert "no node answers at 127.0.0.1:1" in str(error)
