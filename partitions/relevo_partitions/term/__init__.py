"""Standing by and leading: from following the log, over a claim, to the last transaction."""
