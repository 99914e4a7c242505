"""What a scrape shows."""

from __future__ import annotations

import io

from relevo_engine import logs
from relevo_engine.metrics import NodeMetrics, PartitionGauges
from relevo_partitions.roles import Role
from relevo_partitions.takeover import Cause, Takeover


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
            PartitionGauges(0, "LEADING", 3, 7, {("READY", "mail"): 5}, {"mail": 1_500}, 2_500),
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
