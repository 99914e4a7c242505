"""What a scrape shows."""

from __future__ import annotations

import io

from relevo_engine import logs
from relevo_engine.metrics import NodeMetrics, PartitionGauges
from relevo_partitions.term.roles import Role
from relevo_partitions.term.takeover import Cause, Takeover


def test_a_scrape_shows_what_is_known_of_snapshots() -> None:
    logs.configure("json", "error", io.StringIO())
    now = 1_000.0
    metrics = NodeMetrics(Role, lambda: now)
    metrics.note("snapshot_loaded", partition=0, snapshot="5-a", taken_at=900_000, seq=5, bytes=70, count=1)
    metrics.note("snapshot_begun", partition=0, seq=9, count=3, log_offset=12, pause_ms=2.0)
    written = {"bytes": 80, "chunks": 2, "seconds": 1.5, "slice_max_ms": 4.0}
    metrics.note("snapshot_written", partition=0, snapshot="9-b", **written)
    text = metrics.render().decode().splitlines()
    assert 'relevo_snapshot_age_seconds{partition="0"} 100.0' in text
    assert 'relevo_snapshot_seq{partition="0"} 5.0' in text, "one that isn't verified counts for nothing"
    verified = {"taken_at": 970_000, "seq": 9, "bytes": 80, "seconds": 0.5}
    metrics.note("snapshot_verified", partition=0, snapshot="9-b", **verified)
    metrics.note("snapshot_retired", partition=0, oldest="5-a", records=3, log_begin=6, commands_begin=2)
    metrics.note("snapshot_refused", partition=1, snapshot="4-c", reason="damaged")
    now = 1_010.0
    text = metrics.render().decode().splitlines()
    for line in (
        'relevo_snapshot_age_seconds{partition="0"} 40.0',
        'relevo_snapshot_seq{partition="0"} 9.0',
        'relevo_snapshot_bytes{partition="0"} 80.0',
        'relevo_snapshot_longest_pause_seconds{partition="0"} 0.004',
        'relevo_snapshot_write_seconds{partition="0"} 1.5',
        'relevo_snapshot_verify_seconds{partition="0"} 0.5',
        'relevo_snapshot_log_begin{partition="0"} 6.0',
        'relevo_snapshots_verified_total{partition="0"} 1.0',
        'relevo_snapshots_refused_total{partition="1"} 1.0',
    ):
        assert line in text, line
    metrics.role_changed(0, "STANDBY", "OUT", "another one stands by")
    left = metrics.render().decode()
    assert 'relevo_snapshot_age_seconds{partition="0"}' not in left, "who stands by knows better"
    assert 'relevo_snapshots_verified_total{partition="0"} 1.0' in left


def test_a_scrape_shows_who_is_held_back_while_it_lasts() -> None:
    logs.configure("json", "error", io.StringIO())
    metrics = NodeMetrics(Role)
    metrics.held_back("c.log", 2, 7)
    line = 'relevo_held_back_records{partition="2",topic="c.log"} 7.0'
    assert line in metrics.render().decode().splitlines()
    metrics.held_back("c.log", 2, 0)
    metrics.held_back("c.log", 2, 0)
    assert "relevo_held_back_records{" not in metrics.render().decode()


def test_a_scrape_shows_counts_roles_and_the_state_of_partitions() -> None:
    logs.configure("json", "error", io.StringIO())
    metrics = NodeMetrics(Role)
    metrics.role_changed(0, "STANDBY", "FENCING", "claimed")
    metrics.role_changed(0, "ANNOUNCING", "LEADING", "epoch 3")
    metrics.takeover_step(0, "fence", 0.02)
    metrics.committed(0, commands=10, records=30, seconds=0.004)
    metrics.committed(0, commands=1, records=2, seconds=0.004)
    metrics.fault(None, "zookeeper_lost", "session over")
    metrics.note("anything", partition=1)
    metrics.leaderless(1)
    metrics.takeover(Takeover(0, Cause.PULSE, "n1"))
    metrics.standby_lag(0, 5)
    metrics.standby_lag(0, None)
    metrics.standby_lag(1, None)
    metrics.standby_lag(1, -1)
    metrics.standby_lag(2, 12)
    metrics.handed_over(0, "leaving", "n2", 0.1)
    metrics.handed_over(1, "leaving", None, 5.0)
    metrics.observe(
        lambda: [
            PartitionGauges(0, "LEADING", 3, 7, {("READY", "mail"): 5}, {"mail": 1_500}, 2_500, 500),
            PartitionGauges(1, "STANDBY", 0),
        ],
    )
    text = metrics.render().decode()
    for line in (
        'relevo_partition_role{partition="0",role="LEADING"} 1.0',
        'relevo_partition_role{partition="0",role="FENCING"} 0.0',
        'relevo_role_changes_total{partition="0",role="LEADING"} 1.0',
        'relevo_takeover_step_seconds_count{step="fence"} 1.0',
        'relevo_transactions_total{partition="0"} 2.0',
        'relevo_commands_total{partition="0"} 11.0',
        'relevo_records_total{partition="0"} 32.0',
        'relevo_transaction_seconds_count{partition="0"} 2.0',
        'relevo_faults_total{kind="zookeeper_lost",partition=""} 1.0',
        'relevo_partition_epoch{partition="0"} 3.0',
        'relevo_partition_lag{partition="0"} 7.0',
        'relevo_jobs{partition="0",state="READY",type="mail"} 5.0',
        'relevo_oldest_ready_seconds{partition="0",type="mail"} 1.5',
        'relevo_oldest_offered_seconds{partition="0"} 2.5',
        'relevo_oldest_overdue_lease_seconds{partition="0"} 0.5',
        "relevo_partitions_without_leader 1.0",
        'relevo_takeovers_total{cause="pulse",standby="none"} 1.0',
        'relevo_standby_lag_records{partition="2"} 12.0',
        'relevo_hand_overs_total{reason="leaving",result="taken"} 1.0',
        'relevo_hand_overs_total{reason="leaving",result="not taken"} 1.0',
    ):
        assert line in text.splitlines(), line
    assert 'relevo_partition_lag{partition="1"}' not in text
    assert 'relevo_standby_lag_records{partition="0"}' not in text, "it stands by no more"
    assert 'relevo_standby_lag_records{partition="1"}' not in text, "not known yet"
