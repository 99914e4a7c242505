"""What proves a death and what doesn't, and which bytes are believed."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from relevo_partitions.pulse.evidence import Finding, NoGreeting, Peer, judge
from relevo_partitions.pulse.wire import GREETING_BYTES_MAX, Greeting, join_address, split_address

PEER = Peer("n1", "first", "127.0.0.1:7071")
SAME = Greeting("n1", "first")
LATER = Greeting("n1", "second")
ANOTHER = Greeting("n2", "first")

STRANGERS = [
    b"",
    b"\n",
    b"SSH-2.0-OpenSSH_9.6\r\n",
    b"HTTP/1.1 400 Bad Request\r\n",
    b"RELEVO-PULSE/1 n1 first",
    b"RELEVO-PULSE/2 n1 first\n",
    b"RELEVO-PULSE/1 n1\n",
    b"RELEVO-PULSE/1 n1 first second\n",
    b"RELEVO-PULSE/1  n1 first\n",
    b"RELEVO-PULSE/1 n1 first\r\n",
    b"RELEVO-PULSE/1 n1 first\nmore",
    b"RELEVO-PULSE/1 n\xc3\xbc first\n",
    b"RELEVO-PULSE/1 n1 " + b"x" * 101 + b"\n",
    b"relevo-pulse/1 n1 first\n",
]


@pytest.mark.parametrize(
    ("answer", "met", "finding"),
    [
        (SAME, True, Finding.ALIVE),
        (SAME, False, Finding.ALIVE),
        (LATER, True, Finding.DEAD),
        (LATER, False, Finding.UNCLEAR),
        (ANOTHER, True, Finding.UNCLEAR),
        (ANOTHER, False, Finding.UNCLEAR),
        (NoGreeting.REFUSED, True, Finding.DEAD),
        (NoGreeting.REFUSED, False, Finding.UNCLEAR),
        (NoGreeting.NOTHING_SURE, True, Finding.UNCLEAR),
        (NoGreeting.NOTHING_SURE, False, Finding.UNCLEAR),
    ],
)
def test_a_death_is_proven_by_a_refusal_or_a_successor_where_the_process_was_met(
    answer: Greeting | NoGreeting, met: bool, finding: Finding
) -> None:
    """A living node that is taken for dead loses its partitions for nothing."""
    assert judge(PEER, answer, met=met) is finding


@pytest.mark.parametrize("data", STRANGERS)
def test_a_strangers_bytes_are_no_greeting(data: bytes) -> None:
    """Whatever else took the port since must not speak for a node."""
    assert Greeting.parse(data) is None


@given(st.binary(max_size=GREETING_BYTES_MAX + 50))
def test_only_what_encodes_to_the_same_bytes_is_a_greeting(data: bytes) -> None:
    """Bytes that are read generously are bytes that can be forged by accident."""
    greeting = Greeting.parse(data)
    assert greeting is None or greeting.encode() == data


@given(
    st.from_regex(r"[A-Za-z0-9._-]{1,100}", fullmatch=True), st.from_regex(r"[0-9a-f]{32}", fullmatch=True)
)
def test_a_greeting_is_read_as_it_was_written(node: str, incarnation: str) -> None:
    """A node whose greeting isn't understood is never met."""
    line = Greeting(node, incarnation).encode()
    assert len(line) <= GREETING_BYTES_MAX
    assert Greeting.parse(line) == Greeting(node, incarnation)


@pytest.mark.parametrize("node", ["", "n 1", "n1\n", "nü", "x" * 101])
def test_a_name_that_would_break_the_line_is_refused(node: str) -> None:
    """A line break in a name would let it say two things."""
    with pytest.raises(ValueError, match="must be 1 to 100"):
        Greeting(node, "first").encode()


@pytest.mark.parametrize(
    ("address", "host", "port"),
    [
        ("10.0.0.7:7071", "10.0.0.7", 7071),
        ("relevo-0.relevo:1", "relevo-0.relevo", 1),
        ("[::1]:65535", "::1", 65535),
    ],
)
def test_an_address_is_taken_apart_and_put_together(address: str, host: str, port: int) -> None:
    assert split_address(address) == (host, port)
    assert join_address(host, port) == address


@pytest.mark.parametrize(
    "address",
    ["", "n1", ":7071", "n1:", "n1:0", "n1:65536", "n1:-1", "n1:x", "n1:७", "::1:7071", "[]:7071", "fe80::1"],
)
def test_what_is_no_address_is_refused(address: str) -> None:
    """An address comes from another node's registration: it may hold anything."""
    with pytest.raises(ValueError, match="isn't host:port"):
        split_address(address)
