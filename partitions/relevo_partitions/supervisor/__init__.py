"""The one thread of a host that decides: what it stands by for, claims, hands over and ends."""
