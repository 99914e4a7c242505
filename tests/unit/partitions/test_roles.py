"""A role that changes in a way nobody thought of is a bug that must be loud."""

from __future__ import annotations

import itertools

import pytest

from relevo_partitions.term.roles import LEGAL, IllegalTransition, Role, RoleKeeper


def path_to(role: Role) -> list[Role]:
    """A shortest legal way from the start."""
    paths = {Role.OUT: [Role.OUT]}
    while role not in paths:
        for before, after in LEGAL:
            if before in paths and after not in paths:
                paths[after] = [*paths[before], after]
    return paths[role]


def keeper_in(role: Role) -> RoleKeeper:
    keeper = RoleKeeper(3, lambda *_: None)
    for step in path_to(role)[1:]:
        keeper.to(step)
    return keeper


@pytest.mark.parametrize(
    ("before", "after"), [pair for pair in itertools.permutations(Role, 2) if pair not in LEGAL]
)
def test_a_transition_that_is_not_listed_fails_loudly(before: Role, after: Role) -> None:
    keeper = keeper_in(before)
    with pytest.raises(IllegalTransition, match=f"partition 3: {before} to {after}"):
        keeper.to(after)
    assert keeper.role is before


@pytest.mark.parametrize("role", Role)
def test_every_role_can_be_reached(role: Role) -> None:
    assert keeper_in(role).role is role


@pytest.mark.parametrize("role", [role for role in Role if role is not Role.STOPPED])
def test_every_role_can_be_left(role: Role) -> None:
    assert any(before is role for before, _ in LEGAL)


def test_nothing_leads_out_of_stopped() -> None:
    assert not any(before is Role.STOPPED for before, _ in LEGAL)


def test_leading_is_only_reached_by_a_committed_announcement() -> None:
    assert [before for before, after in LEGAL if after is Role.LEADING] == [Role.ANNOUNCING]


def test_only_a_hot_standby_claims() -> None:
    assert [before for before, after in LEGAL if after is Role.FENCING] == [
        Role.STANDBY, Role.REPLAYING, Role.ANNOUNCING, Role.LEADING,
    ]  # fmt: skip


def test_every_change_is_told_with_its_cause() -> None:
    told: list[tuple[object, ...]] = []
    keeper = RoleKeeper(3, lambda *change: told.append(change))
    keeper.to(Role.FOLLOWING)
    keeper.to(Role.STANDBY)
    keeper.to(Role.STANDBY)
    keeper.to(Role.FENCING, "won")
    assert told == [
        (3, Role.OUT, Role.FOLLOWING, "stands by: loads and follows the log"),
        (3, Role.FOLLOWING, Role.STANDBY, "caught up with the log: a candidate"),
        (3, Role.STANDBY, Role.FENCING, "won"),
    ]
