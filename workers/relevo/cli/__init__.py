"""The `relevo` command. Commands are imported when they are called, so a light install will do."""
