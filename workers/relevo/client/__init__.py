"""Creating jobs and asking about them: what a caller uses, blocking or in coroutines."""
