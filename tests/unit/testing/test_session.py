"""A session waits for its warm-up, and tells of a given cluster what that is like."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace, TracebackType
from typing import Any, ClassVar, Self

import pytest
from click.testing import CliRunner

from relevo.cli import drill
from relevo.testing.arrivals import LogFacts
from relevo.testing.drills import ending, session
from relevo.testing.drills.session import Session
from relevo.testing.drills.settings import DrillSettings
from relevo.testing.faults import DrillError
from relevo.testing.ledger import Ledger
from relevo.testing.report import Report

GIVEN = DrillSettings(kafka="k:1", zookeeper="z:1", cluster="theirs", redis="none", brokers=1, nodes=5)


class Context:
    """Something for a ``with`` block."""

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        pass


class StillScene(Context):
    """A scene in which nothing moves: two jobs were accepted, and the first has ended."""

    def __init__(self, _cluster: Any, settings: DrillSettings, _folder: Path, say: Any) -> None:
        self.settings = settings
        self.say = say
        ledger = Ledger(Path(), accepted={"a": 1.0, "b": 2.0})
        self.crew = SimpleNamespace(ledger=ledger, stop_creating=lambda: None)
        self.log = LogFacts(completed={"a": 3.0})

    def watch_for(self, seconds: float) -> None:
        pass

    def check_watchers(self) -> None:
        pass


class GivenCluster(Context):
    """A cluster that somebody else runs, one of whose three nodes is on another machine."""

    kafka = "k:1"
    name = "theirs"
    nodes = ("n1", "n2")
    unreachable: ClassVar = {"n3": "runs on h3, not here"}
    partitions = 7


def make(settings: DrillSettings) -> tuple[Session, list[str]]:
    told: list[str] = []
    return Session(settings, told.append, lambda _grown: None), told


def test_a_warm_up_that_is_not_done_ends_the_session(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """What is left of it would be run in the first drill, and taken for repeats."""
    monkeypatch.setattr(session, "Scene", StillScene)
    monkeypatch.setattr(ending, "DRAIN_S", 0.01)
    made, told = make(DrillSettings(warm_up_s=1))
    with pytest.raises(
        DrillError, match="can't keep up with 10 times the rate: of the warm-up's 2 jobs 1 had"
    ):
        made._warm_up(GivenCluster(), tmp_path)  # type: ignore[arg-type]
    assert told[-1].startswith("not so after")
    monkeypatch.setattr(LogFacts, "ended", lambda *_: True)
    made._warm_up(GivenCluster(), tmp_path)  # type: ignore[arg-type]


def limits(made: Session) -> dict[tuple[str, str], float]:
    return {(each.drill, each.at): each.limit_ms for each in made.report.targets}


def test_of_a_given_cluster_the_report_tells_what_that_is_like(monkeypatch: pytest.MonkeyPatch) -> None:
    """Flags say what would have been started: the report would praise or blame another cluster."""
    played: list[str] = []
    monkeypatch.setattr(Session, "_cluster", lambda *_: GivenCluster())
    monkeypatch.setattr(Session, "_play", lambda _self, _cluster, name, _folder: played.append(name))
    brokers = SimpleNamespace(list_topics=lambda timeout: SimpleNamespace(brokers={1: "", 2: "", 3: ""}))
    monkeypatch.setattr("confluent_kafka.admin.AdminClient", lambda _options: brokers)
    made, _ = make(GIVEN)
    told = ("nodes", "partitions", "brokers", "zookeepers", "session_timeout_s")
    assert {made.report.settings[name] for name in told} == {None}, "nothing is known yet"
    assert not limits(made).keys() & {
        ("leader-kill", "p50"),
        ("zookeeper-cut", "p99"),
        ("leader-freeze", "max"),
    }
    made.run(["worker-kill"])
    assert played == ["worker-kill"]
    assert [made.report.settings[name] for name in told] == [3, 7, 3, None, None]
    assert limits(made)["leader-kill", "p50"] == 300, "of three brokers"
    assert ("leader-freeze", "max") not in limits(made), "it rests on the nodes' session timeout"
    redone = {each.limit_ms for each in made.report.targets if each.measure == "started_redone_ms"}
    assert redone == {4_000}


def test_the_picture_leaves_out_what_is_not_known(tmp_path: Path) -> None:
    made, _ = make(GIVEN)
    made._take(nodes=3, partitions=7, brokers=2)
    drill._write(made, tmp_path / "report.json", tmp_path / "report.html")
    page = (tmp_path / "report.html").read_text()
    assert "100 jobs/s, 7 partitions, 3 nodes, 2 broker(s); " in page
    assert "ZooKeeper server(s)" not in page


def test_the_command_hands_on_how_long_the_cluster_remembers(monkeypatch: pytest.MonkeyPatch) -> None:
    class SeenError(Exception):
        pass

    def seen(settings: DrillSettings, *_: Any) -> None:
        raise SeenError(settings.finished_window_s, settings.finished_count_max)

    monkeypatch.setattr(session, "Session", seen)
    monkeypatch.setattr(drill, "signal", SimpleNamespace(signal=lambda *_: None, SIGTERM=0))
    monkeypatch.setenv("RELEVO_FINISHED_COUNT_MAX", "7")
    arguments = ["leader-kill", "--kafka", "k:1", "--zookeeper", "z:1", "--finished-window-s", "60"]
    assert CliRunner().invoke(drill.command, arguments).exception.args == (60, 7)  # type: ignore[union-attr]


@pytest.mark.parametrize("variable", ["RELEVO_FINISHED_WINDOW_S", "RELEVO_FINISHED_COUNT_MAX"])
def test_a_variable_that_is_meant_for_a_given_cluster_stops_no_other_drill(
    monkeypatch: pytest.MonkeyPatch, variable: str
) -> None:
    """Exported for nodes elsewhere, it has nothing to say to a cluster that is started here."""
    seen: list[DrillSettings] = []

    def begin(settings: DrillSettings, *_: Any) -> None:
        seen.append(settings)
        raise KeyboardInterrupt

    monkeypatch.setattr(session, "Session", begin)
    monkeypatch.setattr(drill, "signal", SimpleNamespace(signal=lambda *_: None, SIGTERM=0))
    monkeypatch.setenv(variable, "odd")
    ran = CliRunner().invoke(drill.command, ["leader-kill"])
    assert (ran.exit_code, len(seen)) == (1, 1), ran.output
    assert (seen[0].finished_window_s, seen[0].finished_count_max) == (24 * 3600, 200_000)
    ran = CliRunner().invoke(drill.command, ["leader-kill", "--zookeeper", "z:1", "--kafka", "k:1"])
    assert (ran.exit_code, len(seen)) == (2, 1)
    assert "'odd' is not a valid integer" in ran.output


def test_of_its_own_cluster_it_tells_what_was_asked_for() -> None:
    made, _ = make(DrillSettings(nodes=2, brokers=3))
    settings = made.report.settings
    assert [settings[name] for name in ("nodes", "partitions", "brokers", "zookeepers")] == [2, 4, 3, 1]
    assert settings["session_timeout_s"] > 0
    assert limits(made)["leader-freeze", "max"] == settings["session_timeout_s"] * 1000 + 300


@pytest.mark.parametrize("given", [True, False])
def test_the_verifier_is_told_how_long_a_given_cluster_remembers(
    monkeypatch: pytest.MonkeyPatch, given: bool
) -> None:
    """A key that was used anew would be called a violation, or one that must not be, none."""
    asked: list[dict[str, Any]] = []
    monkeypatch.setattr("relevo_engine.verify.verify_log", lambda *_, **options: asked.append(options))
    settings = DrillSettings(kafka="k:1" if given else None, finished_window_s=60, finished_count_max=7)
    scene = SimpleNamespace(settings=settings, cluster=GivenCluster())
    ending.verify(scene, {})  # type: ignore[arg-type]
    remembered = asked[0]["remembered"]
    if not given:
        assert remembered is None, "its nodes are set as they are by themselves"
        return
    assert (remembered.finished_window_ms, remembered.finished_count_max) == (60_000, 7)


def test_the_command_runs_several_drills_in_one_session(monkeypatch: pytest.MonkeyPatch) -> None:
    """One cluster for all of them: to start one takes longer than most drills."""
    asked: list[list[str]] = []

    class Seen:
        def __init__(self, *_: Any) -> None:
            self.report = Report({}, {})

        def run(self, names: list[str]) -> None:
            asked.append(names)

    monkeypatch.setattr(session, "Session", Seen)
    monkeypatch.setattr(drill, "signal", SimpleNamespace(signal=lambda *_: None, SIGTERM=0))
    ran = CliRunner().invoke(drill.command, ["soak", "zookeeper-down", "leader-kill"])
    assert asked == [["soak", "zookeeper-down", "zookeeper-down-kill", "leader-kill"]], ran.output
    ran = CliRunner().invoke(drill.command, ["leader-kill", "effects"])
    assert (ran.exit_code, len(asked)) == (2, 1)
    assert "belong together" in ran.output
