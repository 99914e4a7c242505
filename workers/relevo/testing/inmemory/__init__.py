"""The inside of `relevo.testing.Engine`: the real core and the real worker, around lists and a clock."""
